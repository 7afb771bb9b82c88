"""Multiway layers and the stack of images and texts: each token sees the parameters of its own modality."""

import pytest
import torch
from torch import nn
from transformers import AutoModel

import gnomon
import reference
from contract import DIFFERENT, SAME, gap
from gnomon import GnomonForImageTextMaskedModeling, GnomonForMaskedLM, GnomonModel
from gnomon.analysis.flops import count_parameters
from gnomon.nn import Pattention
from gnomon.nn.functional import SCORES, default_score_scale
from gnomon.nn.multiway import MultiwayPattention, SeparateLayers, call, route
from samples import LINEAR, PLACED, TINY, build, random_ids

ENCODER = {"is_decoder": False, "num_modalities": 2}
FORMS = {
    "separate, tokens": {**TINY, **ENCODER},
    "separate, sub, linear": {**PLACED["sub, linear"], **ENCODER, "use_bias": True},
    "separate, peri": {**PLACED["peri, tokens"], **ENCODER, "norm": "rms"},
    "separate, three, causal": {**LINEAR, "num_modalities": 3},
    "shared and own tokens": {**TINY, **ENCODER, "multiway": "tokens", "num_modality_tokens": 7},
    "own tokens, mlp": {
        **{name: size for name, size in TINY.items() if name != "num_feed_forward_tokens"},
        **ENCODER,
        "multiway": "tokens",
        "feed_forward": "mlp",
        "intermediate_size": 80,
        "score": "softmax",
    },
}
PAIRS = {
    "shared": {**TINY, "is_decoder": False},
    "separate": FORMS["separate, tokens"],
    "tokens": FORMS["shared and own tokens"],
    "separate, sub, linear": FORMS["separate, sub, linear"],
}
IMAGE = {
    "image_size": [12, 8],
    "patch_size": [3, 2],
    "num_channels": 2,
    "positions": "rotary",
    "max_position_embeddings": 40,
}
every_form = pytest.mark.parametrize("form", FORMS)
every_pair = pytest.mark.parametrize("form", PAIRS)


def ids_of(*shape: int, modalities: int = 2, seed: int = 3) -> torch.Tensor:
    return random_ids(*shape, seed=seed, vocab_size=modalities)


def model_of(form: str) -> GnomonModel:
    return build(GnomonModel, FORMS[form])


def pair_model(form: str, **changes) -> GnomonForImageTextMaskedModeling:
    return build(GnomonForImageTextMaskedModeling, {**PAIRS[form], **IMAGE, **changes})


def pair_batch(model, rows: int = 3, length: int = 7) -> dict[str, torch.Tensor]:
    batch = model.random_inputs(rows=rows, length=length)
    return {**batch, "labels": batch["input_ids"], "attention_mask": torch.ones_like(batch["input_ids"])}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("num_modalities", [2, 3])
def test_own_tokens_behind_shared_ones_equal_the_naive_loop(score: str, num_modalities: int) -> None:
    """One token at a time, K = [K_shared; K_m]: outputs and gradients of every part, in rows that mix modalities."""
    torch.manual_seed(0)
    tau = default_score_scale(score, 5 + 3)
    layer = MultiwayPattention(
        Pattention(6, 4, 5, score=score, score_scale=tau, key_std=1.0, value_std=1.0),
        num_modalities=num_modalities,
        num_modality_tokens=3,
    )
    x, ids = torch.randn(2, 7, 6, requires_grad=True), ids_of(2, 7, modalities=num_modalities)
    leaves = [x, *layer.parameters()]

    def naive() -> torch.Tensor:
        rows = []
        for token, modality in zip(x.reshape(-1, 6), ids.flatten().tolist(), strict=True):
            keys = torch.cat((layer.shared.key_tokens, layer.key_tokens[modality]))
            values = torch.cat((layer.shared.value_tokens, layer.value_tokens[modality]))
            rows.append(reference.pattention(token, keys, values, score, tau))
        return torch.stack(rows).view(2, 7, 4)

    found, expected = layer(x, ids), naive()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weights = torch.linspace(-1, 1, 4)
    for gradient, wanted in zip(
        torch.autograd.grad((found * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)


def test_copies_equal_the_naive_loop_and_absent_modalities_get_zero_gradients() -> None:
    """Each token through its own copy; a modality that no row has is still part of the graph."""
    torch.manual_seed(0)
    layer, x, ids = SeparateLayers([nn.Linear(5, 3) for _ in range(3)]), torch.randn(2, 4, 5), ids_of(2, 4)
    found = layer(x, ids)
    loop = [layer.copies[m](token) for token, m in zip(x.view(-1, 5), ids.flatten().tolist(), strict=True)]
    torch.testing.assert_close(found, torch.stack(loop).view(2, 4, 3))
    found.sum().backward()
    assert layer.copies[0].weight.grad.any()
    assert layer.copies[2].weight.grad is not None
    assert not layer.copies[2].weight.grad.any()


def test_ids_that_do_not_fit_are_refused() -> None:
    """None at all, another shape, or a modality that does not exist; a layer that is not multiway needs none."""
    layer, x = SeparateLayers([nn.Identity(), nn.Identity()]), torch.randn(2, 4, 5)
    with pytest.raises(ValueError, match="needs modality_ids"):
        call(layer, x, None)
    with pytest.raises(ValueError, match=r"one entry a token, \(2, 4\); got \(2, 3\)"):
        route(x, ids_of(2, 3), list(layer.copies))
    with pytest.raises(ValueError, match="must lie in 0 to 1; got 0 to 5"):
        layer(x, torch.tensor([[0, 5, 1, 1], [0, 0, 1, 1]]))
    assert call(nn.Identity(), x, ids_of(2, 4)) is x
    plain = build(GnomonModel, TINY)
    with pytest.raises(ValueError, match="are for models with num_modalities"):
        plain(random_ids(2, 4), modality_ids=ids_of(2, 4))


@every_form
@torch.no_grad()
def test_a_stack_hears_of_every_tokens_modality(form: str) -> None:
    """Another id at one place changes that row and no other; rows permute, padding is unseen, and none is refused."""
    model, inputs = model_of(form), random_ids(3, 9)
    ids = ids_of(3, 9, modalities=model.config.num_modalities)
    outputs = model(inputs, modality_ids=ids).last_hidden_state
    other = ids.clone()
    other[0, 4] = (other[0, 4] + 1) % model.config.num_modalities
    changed = model(inputs, modality_ids=other).last_hidden_state
    assert gap(changed[1:], outputs[1:]) < SAME
    assert gap(changed[0, 4], outputs[0, 4]) > DIFFERENT
    order = [2, 0, 1]
    assert gap(model(inputs[order], modality_ids=ids[order]).last_hidden_state, outputs[order]) < SAME
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 6:] = 0
    alone = model(inputs[1:2, :6], modality_ids=ids[1:2, :6]).last_hidden_state
    assert gap(model(inputs, attention_mask=mask, modality_ids=ids).last_hidden_state[1:2, :6], alone) < SAME
    with pytest.raises(ValueError, match="needs modality_ids"):
        model(inputs)


@torch.no_grad()
def test_one_modality_alone_is_the_plain_model_with_its_copies() -> None:
    """Copy m of every layer is a whole model; the other copies have no part in it."""
    model, plain = (
        model_of("separate, sub, linear"),
        build(GnomonModel, {**FORMS["separate, sub, linear"], "num_modalities": None}),
    )
    inputs = random_ids(2, 9)
    for modality in (0, 1):
        state = {
            name.replace(f"copies.{modality}.", ""): tensor
            for name, tensor in model.state_dict().items()
            if "copies" not in name or f"copies.{modality}." in name
        }
        plain.load_state_dict(state)
        found = model(inputs, modality_ids=torch.full((2, 9), modality)).last_hidden_state
        assert gap(found, plain(inputs).last_hidden_state) < SAME


@every_form
def test_backward_reaches_every_parameter_and_checkpointing_changes_no_gradient(form: str) -> None:
    """With all modalities in the batch; recomputed activations give the same gradients."""
    gradients = []
    for is_checkpointed in (False, True):
        model = model_of(form).train()
        if is_checkpointed:
            model.activation_checkpointing_enable()
        ids = ids_of(3, 9, modalities=model.config.num_modalities)
        outputs = model(random_ids(3, 9), modality_ids=ids).last_hidden_state
        (outputs * torch.linspace(-1, 1, outputs.shape[-1])).square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        assert gradient.any(), name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("form", ["separate, tokens", "shared and own tokens"])
@torch.no_grad()
def test_tokens_of_a_multiway_model_grow_exactly(form: str, tmp_path) -> None:
    """The copies' or the shared tokens; the config follows, and a saved model loads."""
    model, inputs, ids = build(GnomonForMaskedLM, FORMS[form]), random_ids(3, 9), ids_of(3, 9)
    before = model(inputs, modality_ids=ids).logits
    probe = {"input_ids": inputs, "modality_ids": ids}
    report = gnomon.grow(model, num_attention_tokens=24, num_feed_forward_tokens=64, probe=probe, seed=0)
    assert report.exact
    assert gap(model(inputs, modality_ids=ids).logits, before) < SAME
    model.save_pretrained(tmp_path)
    loaded = GnomonForMaskedLM.from_pretrained(tmp_path)
    assert loaded.config.num_feed_forward_tokens == 64
    assert torch.equal(loaded(inputs, modality_ids=ids).logits, model(inputs, modality_ids=ids).logits)


DEPTH_AND_WIDTHS = {
    "layers": {"num_hidden_layers": 4},
    "heads": {"num_attention_heads": 8},
    "head size": {"head_dim": 12},
    "hidden size": {"hidden_size": 64},
    "inner width": {"intermediate_size": 160},
}
GROWN = {**PAIRS, "separate, peri": FORMS["separate, peri"], "own tokens, mlp": FORMS["own tokens, mlp"]}


@pytest.mark.parametrize("form", GROWN)
@pytest.mark.parametrize("size", DEPTH_AND_WIDTHS)
def test_depth_and_widths_of_a_multiway_model_grow_exactly(form: str, size: str, tmp_path) -> None:
    """In float64 both what is written and what is painted stay; the grown model learns on and comes back from disk.

    Under the inner norm of `sub` a wider head is not exact, and is said not to be.
    """
    sizes, fields = DEPTH_AND_WIDTHS[size], {**GROWN[form], **IMAGE}
    torch.manual_seed(0)
    model = GnomonForImageTextMaskedModeling(gnomon.GnomonConfig(**fields)).double().eval()
    for name, parameter in model.named_parameters():
        if not name.endswith("score_scale"):
            parameter.data += 0.1 * torch.randn_like(parameter)
    batch, optimizer = pair_batch(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        before = model(**batch)
    if size == "inner width" and fields.get("feed_forward", fields.get("projection")) not in ("mlp", "linear"):
        with pytest.raises(ValueError, match="num_feed_forward_tokens"):
            gnomon.grow(model, optimizer=optimizer, **sizes)
        return
    report = gnomon.grow(model, optimizer=optimizer, seed=0, **sizes)
    with torch.no_grad():
        after = model(**batch)
    is_exact = not (size == "head size" and fields.get("norm_placement") == "sub")
    assert report.exact == is_exact
    for name in ("logits", "reconstruction"):
        assert (float((after[name] - before[name]).norm() / before[name].norm()) < 1e-12) == is_exact, name
    model.save_pretrained(tmp_path)
    loaded = GnomonForImageTextMaskedModeling.from_pretrained(tmp_path, dtype=torch.float64)
    assert gap(loaded(**batch).logits, after.logits) < SAME  # tau is float32 on disk
    model(**batch).loss.backward()
    optimizer.step()
    assert not torch.equal(model(**batch).logits, after.logits)


@every_pair
def test_hidden_parts_of_pairs_texts_and_images_are_asked_for(form: str, tmp_path) -> None:
    """A pair's loss is that of both, each sees the other, either comes alone, and every parameter learns from pairs."""
    model = pair_model(form)
    batch = pair_batch(model)
    both = model(**batch)
    assert both.logits.shape == (3, 7, 64)
    assert both.reconstruction.shape == batch["pixel_values"].shape
    text = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    image = {name: batch[name] for name in ("pixel_values", "bool_masked_pos")}
    alone = model(**text), model(**image)
    assert alone[0].reconstruction is None
    assert alone[1].logits is None
    assert gap(both.logits, alone[0].logits) > DIFFERENT, "texts do not see their images"
    assert gap(both.reconstruction, alone[1].reconstruction) > DIFFERENT, "images do not see their texts"
    wrong = {**batch, "pixel_values": batch["pixel_values"][:, :, :, [1, 0, *range(2, 8)]]}
    assert model(**wrong).loss != both.loss
    both.loss.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    loaded = GnomonForImageTextMaskedModeling.from_pretrained(tmp_path)
    assert torch.equal(loaded(**batch).loss, both.loss)
    assert type(AutoModel.from_pretrained(tmp_path)) is GnomonModel
    with pytest.raises(ValueError, match="got neither"):
        model()
    with pytest.raises(ValueError, match="got 3 and 2"):
        model(**{**image, "input_ids": batch["input_ids"][:2]})


@every_pair
def test_a_padded_text_of_a_pair_equals_the_pair_alone(form: str) -> None:
    """Behind its image, too: positions of patches and tokens are counted apart."""
    model = pair_model(form)
    batch = pair_batch(model)
    mask = batch["attention_mask"].clone()
    mask[1, 4:] = 0
    with torch.no_grad():
        found = model(**{**batch, "attention_mask": mask}).logits[1, :4]
        row = {name: tensor[1:2] for name, tensor in batch.items()}
        short = {**row, **{name: row[name][:, :4] for name in ("input_ids", "attention_mask", "labels")}}
        assert gap(found, model(**short).logits[0]) < SAME


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_modalities": 1}, "num_modalities must be at least 2"),
        ({"multiway": "tokens"}, "multiway needs num_modalities"),
        ({"num_modalities": 2, "multiway": "both"}, "must be one of separate, tokens"),
        ({"num_modalities": 2, "num_modality_tokens": 4}, "needs multiway: tokens"),
        ({"num_modalities": 2, "multiway": "tokens", "projection": "linear"}, "needs parameter tokens"),
        ({"num_modalities": 2, "encoder_layers": 2, "decoder_layers": 2}, "is for a single stack"),
    ],
)
def test_a_configuration_that_cannot_be_says_what_is_wrong(fields: dict, message: str) -> None:
    """In one sentence with the rule, the value and the remedy."""
    with pytest.raises(ValueError, match=message):
        gnomon.GnomonConfig(**{"hidden_size": 32, "num_attention_heads": 4, **fields})


@every_form
def test_the_formula_counts_what_the_model_has_and_what_one_token_passes(form: str) -> None:
    """All modalities' parameters in the blocks, and of these a token's own where the cost of a pass is asked for."""
    model, plain = (
        model_of(form),
        {**FORMS[form], "num_modalities": None, "multiway": None, "num_modality_tokens": None},
    )
    fields, counts = model.config.to_dict(), count_parameters(FORMS[form])
    in_blocks = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name)
    assert counts.total - counts.embedding - counts.head == in_blocks
    active = count_parameters(fields, is_active=True)
    if fields["multiway"] == "separate":
        assert active.non_embedding == count_parameters(plain).non_embedding
    else:
        assert count_parameters(plain).non_embedding < active.non_embedding < counts.non_embedding


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", ["separate, sub, linear", "shared and own tokens"])
def test_the_compiled_stack_is_one_graph_and_equals_eager(form: str) -> None:
    """Fullgraph, forward and gradients, in rows that mix modalities, and again with other ids."""
    torch.compiler.reset()
    model = model_of(form)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for seed in (3, 4):
        results = []
        for forward in (model, compiled):
            model.zero_grad()
            outputs = forward(random_ids(3, 9), modality_ids=ids_of(3, 9, seed=seed)).last_hidden_state
            (outputs * torch.linspace(-1, 1, outputs.shape[-1])).square().mean().backward()
            results.append((outputs, [parameter.grad.clone() for parameter in model.parameters()]))
        assert gap(results[1][0], results[0][0]) < SAME
        for found, expected in zip(results[1][1], results[0][1], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.compiler.reset()
