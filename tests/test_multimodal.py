"""Two towers for images and texts: what they promise together, and what tests/contract.py promises of one stack."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModel, AutoModelForZeroShotImageClassification

import gnomon
from contract import DIFFERENT, SAME, gap
from gnomon import GnomonForImageTextContrastive, GnomonImageTextConfig
from gnomon.analysis.flops import count_parameters
from gnomon.models.multimodal import LARGEST_LOGIT_SCALE, contrastive_loss, equal_rows
from samples import LINEAR, PLACED, TINY

TEXT = {"max_position_embeddings": 40}
IMAGE = {"vocab_size": None, "image_size": [12, 8], "patch_size": [3, 2], "num_channels": 2}
FORMS = {
    "tokens": ({**TINY, **TEXT}, {**TINY, **IMAGE}),
    "texts both ways": ({**TINY, **TEXT, "is_decoder": False}, {**TINY, **IMAGE, "use_class_token": False}),
    "sub, linear": ({**PLACED["sub, linear"], **TEXT, "is_decoder": False}, {**PLACED["sub, linear"], **IMAGE}),
    "towers unlike": (
        {
            **LINEAR,
            **TEXT,
            "hidden_size": 24,
            "positions": "learned",
            "classifier_pooling": "first",
            "is_decoder": False,
        },
        {**PLACED["deep, tokens"], **IMAGE, "num_hidden_layers": 3, "use_bias": False},
    ),
}
every_form = pytest.mark.parametrize("form", FORMS)


def model_of(form: str = "tokens", seed: int = 0, **changes) -> GnomonForImageTextContrastive:
    """A model in evaluation mode; fresh tokens are larger than they would be, so that a missing mask is seen."""
    torch.manual_seed(seed)
    text, image = FORMS[form]
    model = GnomonForImageTextContrastive(
        GnomonImageTextConfig(text_config=text, vision_config=image, projection_dim=20, **changes)
    ).eval()
    with torch.no_grad():
        for tower in (model.text_model, model.vision_model):
            for name, parameter in tower.named_parameters():
                if parameter.dim() > 1 and tower.config.initialization in ("tokenformer", "normal"):
                    parameter.mul_(1.0 if name.startswith("projection") else 4.0)
    return model


@every_form
def test_a_tower_reads_its_padding_no_more_than_the_text_alone(form: str) -> None:
    """A padded row's vector is that of the text by itself; without the mask it is another, save for a causal prefix."""
    model = model_of(form)
    batch = model.random_inputs(rows=3, length=12)
    ids, mask = batch["input_ids"], torch.ones(3, 12, dtype=torch.long)
    for row, real in enumerate((12, 7, 3)):
        mask[row, real:] = 0
    with torch.no_grad():
        masked, blind = (model.get_text_features(ids, seen).pooler_output for seen in (mask, None))
        for row, real in enumerate((12, 7, 3)):
            alone = model.get_text_features(ids[row : row + 1, :real]).pooler_output[0]
            assert gap(masked[row], alone) < SAME
            assert row == 0 or gap(blind[row], alone) > DIFFERENT


@every_form
@torch.no_grad()
def test_logits_are_scaled_cosines_of_unit_vectors_and_rows_are_independent(form: str) -> None:
    """Either direction is the other turned round, rows permute with their inputs, and texts may outnumber images."""
    model = model_of(form)
    batch = model.random_inputs(rows=5, length=9)
    outputs = model(**batch)
    images, texts = (
        F.normalize(features.pooler_output, dim=-1)
        for features in (model.get_image_features(batch["pixel_values"]), model.get_text_features(batch["input_ids"]))
    )
    torch.testing.assert_close(outputs.logits_per_image, images @ texts.T / 0.07, rtol=1e-4, atol=1e-4)
    assert torch.equal(outputs.logits_per_text, outputs.logits_per_image.T)
    order = [4, 1, 0]
    fewer = model(batch["input_ids"], batch["pixel_values"][order])
    torch.testing.assert_close(fewer.logits_per_image, outputs.logits_per_image[order])
    assert len(set(outputs.image_embeds[:, 0].tolist())) == 5, "images are not told apart"


def test_the_loss_is_clips_and_counts_equal_texts_as_equally_right() -> None:
    """Without equal texts it is the mean of both cross-entropies of the diagonal; two alike share the target."""
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.arange(4)
    expected = (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2
    torch.testing.assert_close(contrastive_loss(logits), expected)
    ids = torch.tensor([[5, 6, 9], [5, 6, 8], [7, 6, 0], [5, 7, 9]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    same = equal_rows(ids, mask)
    assert same.sum() == 6
    assert same[0, 1]
    assert equal_rows(ids).sum() == 4, "with the padding read they differ"
    by_hand = 0.0
    for rows in (logits.log_softmax(1), logits.T.log_softmax(1)):
        by_hand -= (rows[0, :2].mean() + rows[1, :2].mean() + rows[2, 2] + rows[3, 3]) / 4
    torch.testing.assert_close(contrastive_loss(logits, same), by_hand / 2)


@every_form
def test_backward_reaches_every_parameter_and_checkpointing_changes_no_gradient(form: str) -> None:
    """Both towers, both projections and the temperature; recomputing activations gives the same gradients."""
    gradients = []
    for is_checkpointed in (False, True):
        model = model_of(form).train()
        if is_checkpointed:
            model.activation_checkpointing_enable()
        model(**model.random_inputs(rows=4, length=9), return_loss=True).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        assert gradient.any(), name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


@every_form
@torch.no_grad()
def test_a_saved_model_loads_as_it_was(form: str, tmp_path) -> None:
    """Through the Auto classes too, with both towers' configurations; a missing tensor would be reported."""
    model = model_of(form)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is GnomonImageTextConfig
    for part in ("text_config", "vision_config"):
        assert config.to_dict()[part] == model.config.to_dict()[part]
    batch = model.random_inputs(rows=3, length=9)
    for auto in (AutoModel, AutoModelForZeroShotImageClassification):
        loaded, report = auto.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert torch.equal(loaded(**batch).logits_per_image, model(**batch).logits_per_image)


@torch.no_grad()
def test_more_words_are_more_rows_of_the_tower_of_texts(tmp_path) -> None:
    """`resize_token_embeddings` keeps the old rows; the configuration follows, and the file comes back."""
    model = model_of()
    batch = model.random_inputs(rows=3, length=9)
    before = model(**batch).logits_per_text
    model.resize_token_embeddings(80)
    assert model.config.vocab_size == model.config.text_config.vocab_size == 80
    assert torch.equal(model(**batch).logits_per_text, before)
    model.save_pretrained(tmp_path)
    loaded = GnomonForImageTextContrastive.from_pretrained(tmp_path)
    assert loaded.get_input_embeddings().weight.shape[0] == 80
    assert torch.equal(loaded(**batch).logits_per_text, before)


@pytest.mark.parametrize("tower", ["text_model", "vision_model"])
@pytest.mark.parametrize(
    "sizes", [{"num_attention_tokens": 24, "num_output_tokens": 31}, {"num_hidden_layers": 3}, {"hidden_size": 64}]
)
def test_a_tower_grows_exactly_and_the_config_follows(tower: str, sizes: dict[str, int], tmp_path) -> None:
    """Tokens, layers or width, with the optimizer of the whole model; the grown model is saved, loaded and trained."""
    model = model_of("texts both ways")
    batch = model.random_inputs(rows=4, length=9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(**batch, return_loss=True).loss.backward()
    optimizer.step()
    with torch.no_grad():
        before = model(**batch).logits_per_image
    report = gnomon.grow(getattr(model, tower), optimizer=optimizer, seed=0, **sizes)
    assert report.exact
    with torch.no_grad():
        assert gap(model(**batch).logits_per_image, before) < 3 * SAME
    part = "text_config" if tower == "text_model" else "vision_config"
    for name, size in sizes.items():
        assert model.config.to_dict()[part][name] == size
    model.save_pretrained(tmp_path)
    loaded = GnomonForImageTextContrastive.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits_per_image, model(**batch).logits_per_image)
    optimizer.zero_grad()
    model(**batch, return_loss=True).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("form", ["tokens", "texts both ways", "sub, linear"])
def test_the_formula_counts_both_towers(form: str) -> None:
    """Parameters of the whole model, the temperature among them."""
    model = model_of(form)
    assert count_parameters(model.config.to_dict()).total == model.num_parameters()


def test_a_tower_grows_by_its_name_and_the_report_is_of_the_whole_model() -> None:
    """Measured on the tower's own part of a probe; its parts and the whole model's parameters are reported."""
    model = model_of()
    probe, before = model.random_inputs(rows=3, length=9), model.num_parameters()
    report = gnomon.grow(model, tower="vision", num_hidden_layers=4, probe=probe, seed=0)
    assert report.exact
    assert (report.parameters_before, report.parameters_after) == (before, model.num_parameters())
    assert [part["name"].split(":")[0] for part in report.parts] == ["vision"] * 2
    assert model.config.vision_config.num_hidden_layers == 4
    assert model.config.text_config.num_hidden_layers == 2


def test_both_towers_at_once_are_refused_with_what_to_do() -> None:
    """One call has one set of sizes; the message names the towers, and nothing has changed."""
    model = model_of()
    with pytest.raises(ValueError, match="name one at a time, tower: text or tower: vision"):
        gnomon.grow(model, num_attention_tokens=24)
    with pytest.raises(ValueError, match="tower must be text or vision; got tower 'audio'"):
        gnomon.grow(model, tower="audio", num_attention_tokens=24)
    with pytest.raises(ValueError, match="is no model of two towers; got tower 'text': leave it unset"):
        gnomon.grow(model.text_model, tower="text", num_attention_tokens=24)
    assert model.config.text_config.num_attention_tokens == 16


def test_the_temperature_never_passes_clips_bound_and_can_come_back() -> None:
    """A scale beyond 100 counts as 100, and while training it is put back so that its gradient still moves it."""
    model = model_of()
    batch = model.random_inputs(rows=4, length=9)
    with torch.no_grad():
        model.logit_scale.fill_(7.0)
        outputs = model(**batch)
        assert outputs.logits_per_image.abs().max() <= 100.0 * (1 + 1e-6)
    model.train()
    model(**batch, return_loss=True).loss.backward()
    assert model.logit_scale.item() == pytest.approx(LARGEST_LOGIT_SCALE)
    assert model.logit_scale.grad.abs() > 0


def test_images_and_texts_that_belong_together_are_learned() -> None:
    """Sixteen pairs are told apart after 60 steps, from chance at the start."""
    model = model_of("texts both ways").train()
    batch = model.random_inputs(rows=16, length=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(60):
        loss = model(**batch, return_loss=True).loss
        assert step or loss.item() > 0.5 * math.log(16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(**batch).logits_per_image.argmax(dim=1)
    assert torch.equal(found, torch.arange(16))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vision_config": {"vocab_size": 9}}, "vision_config needs image_size"),
        ({"text_config": {"image_size": 32, "patch_size": 8}}, "text_config is of a model of text"),
        ({"text_config": {"encoder_layers": 2, "decoder_layers": 2}}, "a tower is one stack"),
        ({"text_config": {"hiden_size": 32}}, "did you mean 'hidden_size'"),
        ({"text_confg": {}}, "did you mean 'text_config'"),
        ({"hidden_size": 32}, "put a tower's fields into"),
        ({"projection_dim": 0}, "projection_dim must be at least 1"),
        ({"logit_scale_init_value": 9.0}, "logit_scale_init_value is a logarithm"),
    ],
)
def test_a_configuration_that_cannot_be_says_what_is_wrong(fields: dict, message: str) -> None:
    """In one sentence, whichever part it is in."""
    good = {"vision_config": {"image_size": 32, "patch_size": 8}}
    with pytest.raises(ValueError, match=message):
        GnomonImageTextConfig(**{**good, **fields})


def test_a_missing_side_or_unequal_numbers_are_refused() -> None:
    """A forward pass needs both, and its loss a text for each image."""
    model = model_of()
    batch = model.random_inputs(rows=3, length=9)
    with pytest.raises(ValueError, match="pixel_values are missing"):
        model(batch["input_ids"])
    with pytest.raises(ValueError, match="got 2 images and 3 texts"):
        model(batch["input_ids"], batch["pixel_values"][:2], return_loss=True)
