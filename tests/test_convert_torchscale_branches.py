"""torchscale's multiway encoders: whole in one stack, or one branch as a model by itself, BEiT-3's images and texts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import gnomon
from conversions import convert
from gnomon.convert import from_torchscale, to_torchscale
from gnomon.convert.torchscale import config_to_torchscale, layout
from samples import build, random_ids

WIDTH, HEADS, HIDDEN, LAYERS, LENGTH = 16, 2, 24, 2, 9
SETTINGS = {
    "encoder_embed_dim": WIDTH,
    "encoder_attention_heads": HEADS,
    "encoder_ffn_embed_dim": HIDDEN,
    "encoder_layers": LAYERS,
    "multiway": True,
}
BEIT = {**SETTINGS, "vocab_size": 64, "img_size": 8, "patch_size": 4, "in_chans": 3, "no_output_layer": True}
LINEAR = {
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 20,
    "projection": "linear",
    "use_bias": True,
    "positions": "none",
    "is_decoder": False,
    "num_modalities": 2,
}


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers_of_two_branches() -> dict[str, Tensor]:
    """The layers and the last norm of a multiway Sub-LN encoder, by torchscale's names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for branch in "AB":
        for layer in (f"layers.{index}" for index in range(LAYERS)):
            for site in ("q_proj", "k_proj", "v_proj", "out_proj"):
                shapes[f"{layer}.self_attn.{site}.{branch}"] = (WIDTH, WIDTH)
            shapes[f"{layer}.ffn.{branch}.fc1"] = (HIDDEN, WIDTH)
            shapes[f"{layer}.ffn.{branch}.fc2"] = (WIDTH, HIDDEN)
            shapes[f"{layer}.ffn.{branch}.ffn_layernorm"] = (HIDDEN,)
            for norm in ("self_attn.inner_attn_ln", "self_attn_layer_norm", "final_layer_norm"):
                shapes[f"{layer}.{norm}.{branch}"] = (WIDTH,)
        shapes[f"layer_norm.{branch}"] = (WIDTH,)
    tensors: dict[str, Tensor] = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        tensors[f"{name}.weight"] = numbers(*shape, seed=seed) * (0.3 if len(shape) > 1 else 0.2)
        if len(shape) == 1:
            tensors[f"{name}.weight"] += 1.0
        tensors[f"{name}.bias"] = numbers(shape[0], seed=1000 + seed) * 0.2
    return tensors


def encoder_of_tokens() -> dict[str, Tensor]:
    """A multiway encoder with one table of tokens, one of positions, and an output projection."""
    return {
        **layers_of_two_branches(),
        "embed_tokens.weight": numbers(64, WIDTH, seed=2000),
        "embed_positions.weight": numbers(22, WIDTH, seed=2001),
        "output_projection.weight": numbers(64, WIDTH, seed=2002),
    }


def beit() -> dict[str, Tensor]:
    """A BEiT-3 of 8 x 8 pixels in patches of 4 x 4: the class token and four patches, and 20 tokens of text."""
    return {
        "text_embed.weight": numbers(64, WIDTH, seed=2000),
        "vision_embed.mask_token": numbers(1, 1, WIDTH, seed=2003),
        "vision_embed.cls_token": numbers(1, 1, WIDTH, seed=2004),
        "vision_embed.proj.weight": numbers(WIDTH, 3, 4, 4, seed=2005),
        "vision_embed.proj.bias": numbers(WIDTH, seed=2006),
        "encoder.embed_positions.A.weight": numbers(1 + 4 + 2, WIDTH, seed=2007),
        "encoder.embed_positions.B.weight": numbers(22, WIDTH, seed=2008),
        **{f"encoder.{name}": tensor for name, tensor in layers_of_two_branches().items()},
    }


def encode(tensors: dict[str, Tensor], x: Tensor, split: int) -> Tensor:
    """The reference: every layer on the first part by its A, on the rest by its B. Source: MultiwayNetwork.forward."""

    def both(name: str, x: Tensor, apply: Any) -> Tensor:
        before, after = x[:, :split], x[:, split:]
        return torch.cat([apply(name.replace("*", "A"), before), apply(name.replace("*", "B"), after)], dim=1)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def feed_forward(name: str, x: Tensor) -> Tensor:
        return linear(f"{name}.fc2", norm(f"{name}.ffn_layernorm", F.gelu(linear(f"{name}.fc1", x))))

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    for index in range(LAYERS):
        layer = f"layers.{index}"
        inner = both(f"{layer}.self_attn_layer_norm.*", x, norm)
        q, k, v = (heads(both(f"{layer}.self_attn.{site}_proj.*", inner, linear)) for site in "qkv")
        scores = (q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5).softmax(-1)
        seen = (scores @ v).transpose(1, 2).reshape(x.shape)
        x = x + both(f"{layer}.self_attn.out_proj.*", both(f"{layer}.self_attn.inner_attn_ln.*", seen, norm), linear)
        x = x + both(f"{layer}.ffn.*", both(f"{layer}.final_layer_norm.*", x, norm), feed_forward)
    return both("layer_norm.*", x, norm)


def reference_logits(tensors: dict[str, Tensor], ids: Tensor, split: int) -> Tensor:
    """Logits of `encoder_of_tokens`, positions counted from row 2 over both parts."""
    x = tensors["embed_tokens.weight"][ids] + tensors["embed_positions.weight"][2 : 2 + ids.shape[1]]
    return encode(tensors, x, split) @ tensors["output_projection.weight"].T


def modalities(ids: Tensor, split: int) -> Tensor:
    return (torch.arange(ids.shape[1]) >= split).long().expand_as(ids)


@pytest.mark.parametrize("split", [0, 4, LENGTH])
def test_a_whole_encoder_computes_what_the_split_computes(split: int) -> None:
    """Logits and every gradient equal the reference's, whether both parts have tokens or only one."""
    tensors = {name: tensor.requires_grad_() for name, tensor in encoder_of_tokens().items()}
    model, ids = from_torchscale(tensors, SETTINGS), random_ids(3, LENGTH)
    assert type(model) is gnomon.GnomonForMaskedLM
    assert model.config.num_modalities == 2
    found, expected = model(ids, modality_ids=modalities(ids, split)).logits, reference_logits(tensors, ids, split)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    other = model(ids, modality_ids=modalities(ids, (split + 3) % 10)).logits
    assert (other - expected).abs().max() > 0.1, "the branches are not told apart"
    weights = torch.linspace(-1, 1, 64)
    (found * weights).mean().backward()
    (expected * weights).mean().backward()
    given = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = layout(model.config, has_head=True).write(model, given)
    assert gradients.keys() == tensors.keys()
    for name, gradient in gradients.items():
        wanted = torch.zeros_like(gradient) if tensors[name].grad is None else tensors[name].grad
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_placement": "sub"},
        {"norm_placement": "deep", "positions": "xpos"},
        {"norm_placement": "post", "positions": "learned", "position_offset": 2, "tie_word_embeddings": False},
        {"norm_placement": "pre", "positions": "relative_bias", "relative_attention_bidirectional": True},
    ],
)
def test_a_multiway_encoder_goes_out_and_comes_back_bit_equal(fields: dict[str, Any], tmp_path: Path) -> None:
    """Through files, from our side and from theirs, with its class and its configuration."""
    model = build(gnomon.GnomonForMaskedLM, {**LINEAR, **fields})
    model.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", "--to", "torchscale")
    convert("torchscale", tmp_path / "theirs", tmp_path / "again")
    convert(tmp_path / "again", tmp_path / "back", "--to", "torchscale")
    again = gnomon.GnomonForMaskedLM.from_pretrained(tmp_path / "again")
    assert again.config == gnomon.GnomonForMaskedLM.from_pretrained(tmp_path / "ours").config
    state = again.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    theirs, back = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert theirs.keys() == back.keys()
    assert all(torch.equal(theirs[name], back[name]) for name in theirs)
    assert json.loads((tmp_path / "theirs" / "config.yml").read_text())["multiway"] is True


def test_torchscales_own_names_come_back_bit_equal() -> None:
    """Every tensor of the hand-made checkpoint, under its own name, and each setting."""
    tensors = encoder_of_tokens()
    model = from_torchscale(tensors, SETTINGS)
    back = to_torchscale(model)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert SETTINGS.items() <= config_to_torchscale(model.config).items()


@pytest.mark.parametrize(("branch", "split"), [("A", LENGTH), ("B", 0)])
@torch.no_grad()
def test_a_branch_is_a_plain_encoder(branch: str, split: int, tmp_path: Path) -> None:
    """Its logits are the whole encoder's with every token on its side, and its file holds its tensors bit for bit."""
    tensors, ids = encoder_of_tokens(), random_ids(3, LENGTH)
    save_file(tensors, tmp_path / "theirs.safetensors")
    (tmp_path / "config.yml").write_text(json.dumps(SETTINGS))
    convert("torchscale", tmp_path / "theirs.safetensors", tmp_path / "ours", "--branch", branch)
    model = gnomon.GnomonForMaskedLM.from_pretrained(tmp_path / "ours")
    assert model.config.num_modalities is None
    torch.testing.assert_close(model(ids).logits, reference_logits(tensors, ids, split), rtol=0, atol=1e-5)
    kept = {name.replace(f".{branch}.", "."): tensor for name, tensor in tensors.items() if f".{branch}." in name}
    back = to_torchscale(model)
    assert len(kept) == (len(tensors) - 3) / 2
    assert all(torch.equal(back[name], tensor) for name, tensor in kept.items())


@pytest.mark.parametrize("prefix", ["", "beit3."])
@torch.no_grad()
def test_beit_3_comes_apart_into_a_model_of_images_and_one_of_texts(prefix: str, tmp_path: Path) -> None:
    """Branch A equals a convolution, a class token, its own positions and its layers; branch B a table and its own."""
    tensors = beit()
    (tmp_path / "theirs").mkdir()
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, tmp_path / "theirs" / "model.safetensors")
    (tmp_path / "theirs" / "config.yml").write_text(json.dumps(BEIT))
    for branch in "AB":
        convert("torchscale", tmp_path / "theirs", tmp_path / branch, "--branch", branch)
    layers = {name.removeprefix("encoder."): tensor for name, tensor in tensors.items() if "layer" in name}
    images = numbers(3, 3, 8, 8, seed=7)
    patches = F.conv2d(images, tensors["vision_embed.proj.weight"], tensors["vision_embed.proj.bias"], stride=4)
    token = tensors["vision_embed.cls_token"].expand(3, -1, -1)
    x = torch.cat([token, patches.flatten(2).transpose(1, 2)], dim=1) + tensors["encoder.embed_positions.A.weight"][2:]
    model = gnomon.GnomonModel.from_pretrained(tmp_path / "A")
    torch.testing.assert_close(model(pixel_values=images).last_hidden_state, encode(layers, x, 5), rtol=0, atol=1e-5)
    ids = random_ids(3, LENGTH)
    x = tensors["text_embed.weight"][ids] + tensors["encoder.embed_positions.B.weight"][2 : 2 + LENGTH]
    model = gnomon.GnomonModel.from_pretrained(tmp_path / "B")
    torch.testing.assert_close(model(ids).last_hidden_state, encode(layers, x, 0), rtol=0, atol=1e-5)
    back = to_torchscale(model)
    assert torch.equal(back["embed_positions.weight"], tensors["encoder.embed_positions.B.weight"])


def test_a_branch_of_images_heads_a_classifier(tmp_path: Path) -> None:
    """The converted backbone is what a model of image classes starts from; only its head is new."""
    from_torchscale(beit(), BEIT, branch="A").save_pretrained(tmp_path)
    model, report = gnomon.GnomonForImageClassification.from_pretrained(
        tmp_path, num_labels=5, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert not report["unexpected_keys"]
    assert model(numbers(2, 3, 8, 8, seed=1)).logits.shape == (2, 5)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A whole BEiT-3, a branch that there is not, settings that contradict the weights, another format."""
    tensors, whole = beit(), encoder_of_tokens()
    with pytest.raises(ValueError, match=r"encoder.embed_positions.A.weight for one, .* convert a branch by itself"):
        from_torchscale(tensors, BEIT)
    with pytest.raises(ValueError, match="branches A and B; got 'C'"):
        from_torchscale(tensors, BEIT, branch="C")
    with pytest.raises(ValueError, match=r"got multiway False and 42 tensors of that branch: leave the branch out"):
        from_torchscale(whole, {**SETTINGS, "multiway": False}, branch="A")
    plain = {name: tensor for name, tensor in whole.items() if ".A." not in name and ".B." not in name}
    with pytest.raises(ValueError, match="got multiway True and 0 tensors"):
        from_torchscale(plain, SETTINGS, branch="B")
    with pytest.raises(ValueError, match=r"lacks 42 of 45 tensors, the first layers\.0\."):
        from_torchscale(whole, {**SETTINGS, "multiway": False})
    with pytest.raises(ValueError, match=r"embed_positions.weight has shape \(7, 16\), .* makes it \(12, 16\)"):
        from_torchscale(tensors, {**BEIT, "img_size": 12}, branch="A")
    with pytest.raises(ValueError, match="no_scale_embedding must be True for images"):
        from_torchscale(tensors, {**BEIT, "no_scale_embedding": False}, branch="A")
    save_file(whole, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="--branch is for torchscale's multiway encoders, not for gpt2"):
        convert("gpt2", tmp_path, tmp_path / "out", "--branch", "A")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_modalities": 3, "norm_placement": "sub"}, "needs num_modalities None or 2; this model has 3"),
        ({"is_decoder": True, "norm_placement": "sub"}, "needs num_modalities None; this model has 2"),
        ({"num_modalities": None, "image_size": 32, "vocab_size": None}, "needs image_size None; this model has 32"),
    ],
)
def test_a_model_that_torchscale_has_no_branches_for_is_refused(fields: dict[str, Any], message: str) -> None:
    """Three modalities, a multiway decoder, images."""
    with pytest.raises(ValueError, match=message):
        to_torchscale(build(gnomon.GnomonModel, {**LINEAR, **fields}))
