"""Merging a model of images with one of texts: what stays exact, what does not, and what is refused."""

import pytest
import torch

from contract import DIFFERENT, SAME, gap
from gnomon import GnomonForImageTextMaskedModeling, GnomonForMaskedImageModeling, GnomonForMaskedLM
from gnomon.growth.merge import HOWS, merge_models
from samples import PLACED, TINY, build, random_ids

TEXT = {**TINY, "is_decoder": False, "max_position_embeddings": 40}
IMAGES = {
    **TINY,
    "vocab_size": None,
    "image_size": [12, 8],
    "patch_size": [3, 2],
    "num_channels": 2,
    "positions": "rotary",
    "max_position_embeddings": 40,
}
FORMS = {
    "tokens": {},
    "softmax": {"score": "softmax"},
    "gelu": {"score": "gelu"},
    "sub": {"norm_placement": PLACED["sub, tokens"]["norm_placement"], "norm": "layer"},
}


def two(form: str = "tokens", images: dict | None = None, text: dict | None = None):
    vision = build(GnomonForMaskedImageModeling, {**IMAGES, **FORMS[form], **(images or {})}, seed=1)
    return vision, build(GnomonForMaskedLM, {**TEXT, **FORMS[form], **(text or {})}, seed=2)


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_merge_with_own_tokens_keeps_both_models(form: str, tmp_path) -> None:
    """Images alone and texts alone have the outputs they had; the merged model is saved, and the two are untouched."""
    vision, text = two(form)
    before = {name: tensor.clone() for name, tensor in vision.state_dict().items()}
    merged = merge_models(vision, text)
    ids, images = random_ids(3, 9), vision.random_inputs(rows=3)
    assert gap(merged(input_ids=ids).logits, text(ids).logits) < SAME
    painted = merged(**images)
    assert gap(painted.reconstruction, vision(**images).reconstruction) < SAME
    torch.testing.assert_close(painted.loss, vision(**images).loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in vision.state_dict().items())
    merged.save_pretrained(tmp_path)
    loaded = GnomonForImageTextMaskedModeling.from_pretrained(tmp_path)
    assert torch.equal(loaded(input_ids=ids).logits, merged(input_ids=ids).logits)


@pytest.mark.parametrize("score", ["l2_norm_gelu", "gelu_l2_norm", "gelu"])
@torch.no_grad()
def test_shared_tokens_are_exact_only_where_the_others_do_not_answer(score: str) -> None:
    """All tokens for all inputs change both; with no values for images and the score gelu, texts are as they were."""
    vision, text = two(images={"score": score}, text={"score": score})
    ids, images = random_ids(3, 9), vision.random_inputs(rows=3)
    merged = merge_models(vision, text, how="shared")
    assert merged.config.num_attention_tokens == 32
    assert merged.config.num_modalities is None
    assert gap(merged(input_ids=ids).logits, text(ids).logits) > DIFFERENT
    assert gap(merged(**images).reconstruction, vision(**images).reconstruction) > DIFFERENT
    for name, parameter in vision.model.named_parameters():
        if name.endswith("value_tokens"):
            parameter.zero_()
    vision.model.norm.load_state_dict(text.model.norm.state_dict())
    silent = merge_models(vision, text, how="shared")
    is_exact = gap(silent(input_ids=ids).logits, text(ids).logits) < SAME
    assert is_exact == (score == "gelu"), "an L2 norm sees the other keys even where their values are 0"


@pytest.mark.parametrize("how", HOWS)
def test_a_merged_model_learns_from_pairs(how: str) -> None:
    """Every parameter gets a gradient, and a few steps lower the loss of pairs."""
    merged = merge_models(*two(), how=how).train()
    batch = merged.random_inputs(rows=4, length=7)
    batch["labels"] = batch["input_ids"]
    optimizer, losses = torch.optim.AdamW(merged.parameters(), lr=1e-3), []
    for _ in range(8):
        loss = merged(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.any() for parameter in merged.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("images", "text", "how", "message"),
    [
        (
            {},
            {"num_attention_tokens": 24},
            "own",
            "num_attention_tokens must be the same .* got 16 and 24: grow the smaller",
        ),
        ({}, {"num_hidden_layers": 3}, "own", "num_hidden_layers must be the same in both models; got 2"),
        ({}, {}, "both", "how must be one of own, shared"),
        ({"norm": "layer"}, {"norm": "layer"}, "shared", "norm layer_plain; got layer: merge own"),
        ({"positions": "learned"}, {"positions": "learned"}, "own", "positions must be one of rotary, xpos, none"),
        ({}, {"num_output_tokens": [20, 30]}, "shared", "num_output_tokens differs by layer or site"),
    ],
)
def test_models_that_do_not_fit_are_refused(images: dict, text: dict, how: str, message: str) -> None:
    """With the field, both values and the remedy."""
    with pytest.raises(ValueError, match=message):
        merge_models(*two(images=images, text=text), how=how)


def test_the_order_of_the_two_is_checked() -> None:
    """Images first, texts second."""
    vision, text = two()
    with pytest.raises(ValueError, match="a model of images and one of texts, in this order"):
        merge_models(text, vision)
