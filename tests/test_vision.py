"""Models of images: patches and positions, and what tests/contract.py promises of models of text."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoModel, AutoModelForImageClassification, AutoModelForMaskedImageModeling, pipeline

import gnomon
from contract import DIFFERENT, SAME, gap
from gnomon import GnomonConfig, GnomonForImageClassification, GnomonForMaskedImageModeling, GnomonModel
from gnomon.analysis.flops import count_parameters
from gnomon.data.image_processing import build_image_processor
from gnomon.models.inputs import (
    image_to_patches,
    interpolate_positions,
    patches_to_image,
    random_mask,
    sinusoidal_positions_2d,
)
from gnomon.models.presets import PRESETS, preset
from samples import LINEAR, PLACED, TINY, build

IMAGES = {"vocab_size": None, "image_size": [12, 8], "patch_size": [3, 2], "num_channels": 2, "num_labels": 5}
FORMS = {
    "tokens": {**TINY, **IMAGES},
    "mean of patches": {**TINY, **IMAGES, "use_class_token": False},
    "mean beside a class token": {**TINY, **IMAGES, "classifier_pooling": "mean"},
    "2-d sines": {**LINEAR, **IMAGES, "positions": "sinusoidal_2d", "use_bias": True},
    "rotary": {**TINY, **IMAGES, "positions": "rotary"},
    "patches as tokens": {**TINY, **IMAGES, "patch_projection": "pattention", "num_patch_tokens": 9},
    "patches as wide as the model": {**LINEAR, **IMAGES, "num_channels": 1, "patch_size": [4, 8], "image_size": 16},
    "padded": {**TINY, **IMAGES, "image_size": [11, 7], "use_image_padding": True},
    "convolutions first": {**TINY, **IMAGES, "patch_size": [2, 4], "image_size": [8, 12], "stem_conv_channels": [5]},
    "convolutions, biases": {
        **LINEAR,
        **IMAGES,
        **{"patch_size": 8, "image_size": 16, "use_bias": True, "stem_conv_channels": [4, 6], "norm": "layer"},
    },
    "sub, linear": {**PLACED["sub, linear"], **IMAGES},
    "deep, tokens": {**PLACED["deep, tokens"], **IMAGES},
}
HEADS = (GnomonForImageClassification, GnomonForMaskedImageModeling)
FEW = ("tokens", "2-d sines", "patches as tokens", "padded", "convolutions first", "convolutions, biases")
every_form = pytest.mark.parametrize("form", FORMS)
some_forms = pytest.mark.parametrize("form", FEW[1:])
every_head = pytest.mark.parametrize("cls", HEADS)
every_case = pytest.mark.parametrize(
    ("cls", "form"), [*((HEADS[0], form) for form in FORMS), *((HEADS[1], form) for form in FEW)]
)


def model_of(cls: type = GnomonForImageClassification, form: str = "tokens", **changes):
    return build(cls, {**FORMS[form], **changes})


def inputs(model, rows: int = 3, seed: int = 1) -> dict[str, torch.Tensor]:
    return model.random_inputs(rows=rows, seed=seed)


def answers(model, batch: dict[str, torch.Tensor], **more) -> torch.Tensor:
    outputs = model(**batch, **more)
    return outputs.reconstruction if "reconstruction" in outputs else outputs.logits


def loss_of(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    is_classifier = isinstance(model, GnomonForImageClassification)
    return model(**batch, **({"labels": torch.tensor([0, 4, 2])} if is_classifier else {})).loss


def test_patches_are_those_of_a_convolution() -> None:
    """A linear layer on the cut patches equals a convolution of that stride, and the cut is undone exactly."""
    images, weight = torch.randn(2, 3, 12, 10), torch.randn(7, 3, 4, 5)
    patches = image_to_patches(images, (4, 5))
    expected = F.conv2d(images, weight, stride=(4, 5)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(patches @ weight.flatten(1).T, expected)
    assert torch.equal(patches_to_image(patches, (4, 5), (3, 2)), images)


@torch.no_grad()
def test_the_stem_is_its_convolutions_norms_and_activations_one_after_the_other() -> None:
    """Every number of a patch of 8 x 8 pixels, by loops over what its two convolutions see."""
    embed = model_of(form="convolutions, biases").double().model.embed_patches
    image = torch.randn(1, 2, 16, 16, dtype=torch.float64)
    seen = image[0]
    for convolution, norm in zip(embed.stem.convolutions, embed.stem.norms, strict=True):
        convolution.bias.normal_()
        padded, side = F.pad(seen, (1, 1, 1, 1)), seen.shape[1] // 2
        halved = torch.empty(len(convolution.bias), side, side, dtype=torch.float64)
        for row in range(side):
            for column in range(side):
                window = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
                numbers = (convolution.weight * window).sum(dim=(1, 2, 3)) + convolution.bias
                scaled = (numbers - numbers.mean()) / (numbers.var(unbiased=False) + norm.eps).sqrt()
                halved[:, row, column] = F.gelu(scaled * norm.weight + norm.bias)
        seen = halved
    patches = torch.stack([seen[:, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].flatten() for r in (0, 1) for c in (0, 1)])
    expected = embed.projection(patches) + embed.positions.weight[1:]
    torch.testing.assert_close(embed(image)[0, 1:], expected)


def test_positions_of_other_sizes_are_those_of_transformers_vit() -> None:
    """Bicubic on the grid, the class row untouched, and the same table where the size is the same."""
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    peer = ViTEmbeddings(ViTConfig(image_size=12, patch_size=3, hidden_size=8, num_attention_heads=2))
    table = peer.position_embeddings[0].detach()
    found = interpolate_positions(table, (4, 4), (6, 5))
    expected = peer.interpolate_pos_encoding(torch.zeros(1, 31, 8), 18, 15)[0].detach()
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[0], table[0])
    assert interpolate_positions(table, (4, 4), (4, 4)) is table


def test_sines_number_rows_and_columns() -> None:
    """Each patch's numbers are the sines and cosines of its own row and column; twice the grid spans the same image."""
    waves = sinusoidal_positions_2d((3, 4), 8).view(3, 4, 8)
    frequencies = torch.tensor([1.0, 0.01])
    for row, column in ((0, 0), (2, 1), (1, 3)):
        angles = (column * frequencies, row * frequencies)
        expected = torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())])
        torch.testing.assert_close(waves[row, column], expected)
    fine = sinusoidal_positions_2d((6, 8), 8, trained=(3, 4)).view(6, 8, 8)
    torch.testing.assert_close(fine[0, 0, 0], torch.tensor(-0.25).sin())
    torch.testing.assert_close(fine[5, 7, 4], torch.tensor(2.25).sin())


def test_as_many_patches_are_hidden_in_every_row() -> None:
    """The share that is asked for, in other places in each row; none or all are refused."""
    hidden = random_mask(50, 20, 0.6, torch.Generator().manual_seed(0))
    assert hidden.sum(1).tolist() == [12] * 50
    assert len({tuple(row.tolist()) for row in hidden}) == 50
    assert random_mask(4, 3, 0.01).sum(1).tolist() == [1] * 4
    for ratio in (0.0, 1.0):
        with pytest.raises(ValueError, match="mask_ratio hides some of an image's patches and shows others"):
            random_mask(1, 4, ratio)


@every_case
def test_backward_reaches_every_parameter(cls: type, form: str) -> None:
    """The loss has a gradient that is not zero for each; nothing is built that is not used."""
    model = model_of(cls, form)
    loss_of(model, inputs(model)).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]


@every_case
@torch.no_grad()
def test_rows_of_a_batch_are_independent(cls: type, form: str) -> None:
    """An image's answer is the one that it has by itself, and depends on the image, whatever stands beside it."""
    model = model_of(cls, form)
    batch, other = inputs(model), inputs(model, seed=2)
    found = answers(model, batch)
    assert gap(found[:1], answers(model, {name: tensor[:1] for name, tensor in batch.items()})) < SAME
    mixed = {name: torch.cat((tensor[:1], other[name][1:])) for name, tensor in batch.items()}
    assert gap(answers(model, mixed)[:1], found[:1]) < SAME
    assert gap(answers(model, other), found) > DIFFERENT


@pytest.mark.parametrize("form", ["tokens", "2-d sines", "rotary"])
@torch.no_grad()
def test_where_a_patch_stands_matters(form: str) -> None:
    """Two patches that change places change the answer in every position scheme; without positions they do not."""
    model = model_of(form=form)
    images = inputs(model)["pixel_values"]
    height, width = model.model.embed_patches.patch
    moved = images.clone()
    moved[:, :, :height, :width] = images[:, :, height : 2 * height, :width]
    moved[:, :, height : 2 * height, :width] = images[:, :, :height, :width]
    assert gap(model(pixel_values=moved).logits, model(pixel_values=images).logits) > DIFFERENT
    blind = model_of(form=form, positions="none")
    assert gap(blind(pixel_values=moved).logits, blind(pixel_values=images).logits) < SAME


@every_head
@some_forms
def test_gradient_checkpointing_gives_the_same_gradients(cls: type, form: str) -> None:
    """Every gradient is the same number, dropout and stochastic depth included."""
    model = model_of(cls, form, hidden_dropout=0.1, drop_path_rate=0.2).train()
    found = []
    for again in (False, True):
        if again:
            model.activation_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(3)
        loss_of(model, inputs(model)).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@every_case
@torch.no_grad()
def test_models_come_back_from_disk_through_the_auto_classes(cls: type, form: str, tmp_path) -> None:
    """Bit for bit, and the backbone alone gives the same features."""
    model = model_of(cls, form)
    model.save_pretrained(tmp_path)
    auto = AutoModelForImageClassification if cls is HEADS[0] else AutoModelForMaskedImageModeling
    loaded = auto.from_pretrained(tmp_path).eval()
    assert type(loaded) is cls
    batch = inputs(model)
    assert torch.equal(answers(loaded, batch), answers(model, batch))
    backbone = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(backbone, GnomonModel)
    images = {"pixel_values": batch["pixel_values"]}
    features = backbone(**images).last_hidden_state
    assert torch.equal(features, model.model(**images).last_hidden_state)
    assert backbone.embed_tokens is None
    assert backbone.embed_positions is None


@pytest.mark.parametrize(
    ("cls", "form"),
    [(HEADS[0], "patches as tokens"), (HEADS[0], "deep, tokens"), (HEADS[1], "tokens"), (HEADS[1], "padded")],
)
def test_growth_of_tokens_and_depth_is_exact(cls: type, form: str) -> None:
    """More parameter tokens and more layers leave every answer as it was, and the config describes the result."""
    model = model_of(cls, form)
    batch = inputs(model)
    before = answers(model, batch).detach()
    sizes = {"num_attention_tokens": 24, "num_output_tokens": 25, "num_feed_forward_tokens": 60}
    report = gnomon.grow(model, **sizes, seed=0)
    assert report.exact
    assert report.dead_parameters == 0
    if form != "deep, tokens":
        assert gnomon.grow(model, num_hidden_layers=3, seed=0).exact
    assert gap(answers(model, batch), before) < SAME
    assert model.config.num_attention_tokens == 24


@pytest.mark.parametrize(
    ("cls", "form"),
    [(HEADS[0], form) for form in ("patches as wide as the model", "patches as tokens", "2-d sines", "sub, linear")]
    + [(HEADS[1], "tokens")],
)
def test_growth_of_widths_says_whether_it_is_exact(cls: type, form: str) -> None:
    """Hidden size by whole copies and heads grow without a change where the report calls them exact."""
    is_computed = "sines" in form
    for sizes in ({"hidden_size": 64}, {"num_attention_heads": 8, "num_key_value_heads": 8}):
        model = model_of(cls, form)
        if is_computed and "hidden_size" in sizes:
            with pytest.raises(ValueError, match="positions sinusoidal_2d follow from hidden_size"):
                gnomon.grow(model, **sizes)
            continue
        batch = inputs(model)
        before = answers(model, batch).detach()
        report = gnomon.grow(model, **sizes, seed=0)
        assert report.exact == (gap(answers(model, batch), before) < SAME)
        assert report.exact or form.startswith("sub")
        loss_of(model, batch).backward()


@every_head
@pytest.mark.parametrize("form", ["tokens", "2-d sines"])
@torch.no_grad()
def test_images_of_other_sizes_work(cls: type, form: str) -> None:
    """Larger and smaller ones of whole patches, of any proportions; where it is not wanted they are refused."""
    model = model_of(cls, form)
    for height, width in ((24, 16), (6, 4), (12, 20)):
        outputs = model(pixel_values=torch.randn(2, 2, height, width))
        found = outputs.logits if cls is HEADS[0] else outputs.loss
        assert found.isfinite().all()
        if cls is HEADS[1]:
            assert outputs.reconstruction.shape == (2, 2, height, width)
    with pytest.raises(ValueError, match=r"images must be 12 x 8 pixels; got 24 x 16: .* interpolate_pos_encoding"):
        model(pixel_values=torch.randn(2, 2, 24, 16), interpolate_pos_encoding=False)


@torch.no_grad()
def test_sizes_that_no_patch_divides_are_refused_unless_padded() -> None:
    """One sentence with both sizes; padding fills with zeros below and to the right."""
    images = torch.randn(2, 2, 11, 7)
    message = r"patches of 3 x 2 pixels must divide the image; got 11 x 7: resize it, or set use_image_padding"
    with pytest.raises(ValueError, match=message):
        model_of()(pixel_values=images)
    with pytest.raises(ValueError, match=message):
        GnomonConfig(**{**FORMS["tokens"], "image_size": [11, 7]})
    model = model_of(use_image_padding=True)
    assert gap(model(pixel_values=images).logits, model(pixel_values=F.pad(images, (0, 1, 0, 1))).logits) < SAME


def test_other_channels_are_refused() -> None:
    """With the shape and where to get the right one."""
    with pytest.raises(ValueError, match=r"\(batch, 2 channels, height, width\); got \(2, 3, 12, 8\): use the image"):
        model_of()(pixel_values=torch.randn(2, 3, 12, 8))


def test_the_loss_takes_classes_shares_and_smoothing() -> None:
    """Class numbers, and shares as mixup makes them, are one cross-entropy, with smoothing on either."""
    model = model_of()
    batch, numbers = inputs(model), torch.tensor([0, 4, 2])
    logits = model(**batch).logits
    for labels in (numbers, torch.tensor([[0.25, 0, 0.75, 0, 0], [0, 0, 0, 1, 0], [0.1, 0.2, 0.3, 0.2, 0.2]])):
        for smoothing in (0.0, 0.2):
            loss = model(**batch, labels=labels, label_smoothing=smoothing).loss
            torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=smoothing))
    torch.testing.assert_close(
        model(**batch, labels=F.one_hot(numbers, 5).float()).loss, model(**batch, labels=numbers).loss
    )
    torch.testing.assert_close(
        model(**batch, labels=numbers, num_items_in_batch=6).loss, model(**batch, labels=numbers).loss / 2
    )


@pytest.mark.parametrize("form", ["tokens", "convolutions first"])
@torch.no_grad()
def test_only_hidden_patches_are_asked_for_and_none_of_their_pixels_is_seen(form: str) -> None:
    """The loss is the mean distance over hidden pixels, and what stands in hidden patches cannot change the image."""
    model = model_of(GnomonForMaskedImageModeling, form)
    batch = inputs(model)
    patch, hidden = model.model.embed_patches.patch, batch["bool_masked_pos"]
    outputs = model(**batch)
    shown = patches_to_image(
        hidden.unsqueeze(-1).repeat(1, 1, model.model.embed_patches.pixels), patch, model.model.embed_patches.grid
    )
    distance = (outputs.reconstruction - batch["pixel_values"]).abs()[shown]
    torch.testing.assert_close(outputs.loss, distance.mean())
    other = torch.where(shown, torch.randn_like(batch["pixel_values"]), batch["pixel_values"])
    assert torch.equal(model(**{**batch, "pixel_values": other}).reconstruction, outputs.reconstruction)
    void = batch["pixel_values"].masked_fill(shown.bool(), float("nan"))
    assert torch.equal(model(**{**batch, "pixel_values": void}).reconstruction, outputs.reconstruction)
    assert gap(model(pixel_values=other, bool_masked_pos=~hidden).reconstruction, outputs.reconstruction) > DIFFERENT
    with pytest.raises(ValueError, match=r"bool_masked_pos must be \(batch, patches\), here \(3, \d+\); got \(3, 4\)"):
        model(pixel_values=other, bool_masked_pos=hidden[:, :4])


@torch.no_grad()
def test_a_pretrained_encoder_loads_into_a_classifier(tmp_path) -> None:
    """All of the backbone is there; only the classifier is new."""
    pretrained = model_of(GnomonForMaskedImageModeling)
    pretrained.save_pretrained(tmp_path)
    tuned, report = GnomonForImageClassification.from_pretrained(tmp_path, num_labels=7, output_loading_info=True)
    assert list(report["missing_keys"]) == ["classifier.weight"]
    assert all(
        torch.equal(tensor, tuned.model.state_dict()[name]) for name, tensor in pretrained.model.state_dict().items()
    )


def test_the_pipeline_classifies_images_from_a_folder(tmp_path) -> None:
    """Of any size and color, after `import gnomon`, with the classes' names."""
    names = {number: f"class {number}" for number in range(5)}
    model = model_of(num_channels=1, id2label=names, label2id={name: number for number, name in names.items()})
    model.save_pretrained(tmp_path)
    build_image_processor((12, 8), 1).save_pretrained(tmp_path)
    classify = pipeline("image-classification", model=str(tmp_path), device="cpu")
    (best, *_) = classify(Image.new("RGB", (31, 17), (200, 10, 60)))
    assert best["label"] in names.values()
    assert 0 < best["score"] <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": None}, "patch_size needs image_size, which makes a model of images; got"),
        ({"image_size": [8]}, r"image_size is a whole number of at least 1, or \[height, width\]; got \[8\]"),
        ({"patch_size": 0}, r"patch_size is a whole number of at least 1, or \[height, width\]; got 0"),
        ({"is_decoder": True}, "a model of images is a single stack that looks both ways; leave is_decoder unset"),
        ({"scale_embedding": True}, "scale_embedding is for token embeddings"),
        ({"stem_conv_channels": []}, r"stem_conv_channels is a list of whole numbers of at least 2, .*; got \[\]"),
        ({"stem_conv_channels": [4, 1]}, r"stem_conv_channels is a list of whole numbers .*; got \[4, 1\]"),
        ({"stem_conv_channels": [4]}, r"2 must divide the patches; got patches of 3 x 2 pixels and .* \[4\]"),
        ({"num_patch_tokens": 9}, "num_patch_tokens needs patch_projection: pattention"),
        ({"patch_projection": "convolution"}, "patch_projection must be one of linear, pattention; got 'convolution'"),
        ({"classifier_pooling": "last"}, "classifier_pooling of images is mean, or first with use_class_token"),
        ({"classifier_pooling": "first", "use_class_token": False}, "classifier_pooling of images is mean"),
        ({"hidden_size": 36, "positions": "sinusoidal_2d", "num_attention_heads": 2}, None),
        (
            {"hidden_size": 38, "positions": "sinusoidal_2d", "num_attention_heads": 2},
            "hidden_size of at least 8 that 4",
        ),
    ],
)
def test_configurations_of_images_are_checked(changes: dict, message: str | None) -> None:
    """Each refusal is one sentence with the rule and the value."""
    fields = {**FORMS["tokens"], **changes}
    if message is None:
        assert GnomonConfig(**fields).is_decoder is False
        return
    with pytest.raises(ValueError, match=message):
        GnomonConfig(**fields)


def test_text_and_images_do_not_take_each_others_inputs() -> None:
    """A model of images has no table of tokens, one of text no patches, and each says so."""
    with pytest.raises(ValueError, match="has no table of tokens; give pixel_values"):
        model_of().model(input_ids=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="pixel_values are for models with an image_size"):
        GnomonModel(GnomonConfig(**TINY))(pixel_values=torch.zeros(1, 2, 12, 8))
    with pytest.raises(ValueError, match="needs image_size in its config"):
        GnomonForImageClassification(GnomonConfig(**TINY))
    with pytest.raises(ValueError, match="positions sinusoidal_2d needs image_size"):
        GnomonConfig(**TINY, positions="sinusoidal_2d")


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vit-b-matched", 86.4), ("vit-b", 114.8), ("vit-l-matched", 304.0), ("vit-l", 404.7)],
)
def test_published_vits_have_the_published_millions(name: str, millions: float) -> None:
    """Patch 16, 1,000 classes, no biases; the cost formula agrees to the last parameter; a Transformer has as many."""
    with torch.device("meta"):
        model = GnomonForImageClassification(preset(f"tokenformer-{name}"))
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert round(counted / 1e6, 1) == millions
    assert count_parameters(PRESETS[f"tokenformer-{name}"]).total == counted
    assert abs(count_parameters(PRESETS[f"transformer-{name}"]).total / counted - 1) < 0.001


@every_form
def test_the_cost_formula_counts_every_parameter_of_a_classifier(form: str) -> None:
    """Whatever the pooling, the positions and the projection."""
    model = model_of(form=form)
    assert count_parameters(FORMS[form]).total == sum(parameter.numel() for parameter in model.parameters())
