"""Grafts on transformers' own models: exact at the start, learning, frozen, saved, merged."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import gnomon
from gnomon.growth.graft_files import CONFIG_FILE, WEIGHTS_FILE
from gnomon.growth.graft_layers import grafted_layers
from gnomon.growth.graft_targets import feed_forwards, places, probe_for
from gnomon.growth.report import gap, probe_outputs
from gnomon.nn.functional import pattention

TEXT = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDTHS = {"hidden_size": 32, "intermediate_size": 48}
CONFIGS: dict[str, Callable[[], Any]] = {
    "GPT2LMHeadModel": lambda: hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "LlamaForCausalLM": lambda: hf.LlamaConfig(**TEXT, **WIDTHS, num_key_value_heads=2),
    "MistralForCausalLM": lambda: hf.MistralConfig(**TEXT, hidden_size=32, intermediate_size=32, num_key_value_heads=2),
    "GPTNeoXForCausalLM": lambda: hf.GPTNeoXConfig(**TEXT, **WIDTHS),
    "BertForMaskedLM": lambda: hf.BertConfig(**TEXT, **WIDTHS),
    "T5ForConditionalGeneration": lambda: hf.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    ),
    "BartForConditionalGeneration": lambda: hf.BartConfig(
        vocab_size=50,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
    ),
    "ViTForImageClassification": lambda: hf.ViTConfig(
        num_hidden_layers=2, num_attention_heads=4, **WIDTHS, image_size=16, patch_size=4, num_labels=5
    ),
    "Wav2Vec2ForCTC": lambda: hf.Wav2Vec2Config(
        **TEXT,
        **WIDTHS,
        conv_dim=(16, 16),
        conv_kernel=(10, 8),
        conv_stride=(10, 8),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        layerdrop=0.0,
        mask_time_prob=0.0,
    ),
}
"""Model class -> a tiny config; Mistral's feed-forward is as wide as the model, which no shape can tell apart."""

SIZES = {"tokens": {"num_tokens": 6}, "neurons": {"num_neurons": 10}}


def build(name: str, scale: float = 3.0) -> Any:
    """A random model, its weights large enough that every part matters."""
    torch.manual_seed(0)
    model = getattr(hf, name)(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)
    return model


def batch_for(model: Any) -> dict[str, Tensor]:
    """Inputs with labels to learn by heart."""
    torch.manual_seed(1)
    batch = probe_for(model)
    if "pixel_values" in batch:
        labels = torch.tensor([1, 3])
    elif "input_values" in batch:
        labels = torch.randint(1, model.config.vocab_size, (2, 6))
    else:
        labels = torch.randint(model.config.vocab_size, batch["input_ids"].shape)
    return {**batch, "labels": labels}


def moved(model: Any) -> Any:
    """The model with its graft away from zero, so that the graft decides what comes out."""
    torch.manual_seed(2)
    with torch.no_grad():
        for _, layer in grafted_layers(model):
            for parameter in layer.graft.parameters():
                parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", CONFIGS)
def test_a_graft_is_exact_and_then_learns_with_the_rest_bitwise_frozen(name: str, sizes: dict[str, int]) -> None:
    """Logits move by at most 5e-6 at first, the loss falls in 20 steps, and no old weight changes by one bit."""
    model = build(name)
    batch = batch_for(model)
    before, old = probe_outputs(model, batch), copy.deepcopy(model.state_dict())
    report = gnomon.graft(model, **sizes, seed=0)
    assert report.exact
    assert gap(before, probe_outputs(model, batch))[0] <= 5e-6
    new = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in new) == report.parameters_after - report.parameters_before
    keys = {key: value.clone() for key, value in model.state_dict().items() if key not in old}
    optimizer = torch.optim.AdamW(new, lr=2e-2, weight_decay=0.1)
    losses = []
    for _ in range(20):
        loss = model(**batch).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.9 * losses[0]
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in old.items())
    assert all(not torch.equal(after[key], value) for key, value in keys.items() if "score_scale" not in key)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_graft_gives_the_same_outputs_on_a_fresh_base(name: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """The adapter's folder holds all that was learnt: bit-equal logits, every name matched, two files, no pickle."""
    model = build(name)
    gnomon.graft(model, **sizes)
    batch = probe_for(model)
    wanted = probe_outputs(moved(model), batch)
    gnomon.save_graft(model, tmp_path / "graft")
    assert sorted(path.name for path in (tmp_path / "graft").iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]
    fresh = build(name)
    assert gap(wanted, probe_outputs(fresh, batch))[0] > 0.01
    loading = gnomon.load_graft(fresh, tmp_path / "graft")
    assert (len(loading.missing), len(loading.unexpected)) == (0, 0)
    assert len(loading.matched) == len(fresh.state_dict()) - len(build(name).state_dict())
    assert torch.equal(probe_outputs(fresh, batch), wanted)


PLAIN = """
import sys, torch, transformers
root, *names = sys.argv[1:]
for name in names:
    folder = f"{root}/{name}"
    model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    batch = torch.load(f"{folder}/batch.pt", weights_only=True)
    with torch.no_grad():
        torch.save(model.eval()(**batch).logits.double(), f"{folder}/logits.pt")
assert not [module for module in sys.modules if module.split(".")[0] == "gnomon"]
"""


def test_merged_checkpoints_load_in_plain_transformers(tmp_path: Path) -> None:
    """Every architecture's merged folder gives the grafted outputs in a process that never imports this library."""
    wanted = {}
    for name in CONFIGS:
        model = build(name)
        gnomon.graft(model, num_neurons=10)
        batch = probe_for(model)
        wanted[name] = probe_outputs(moved(model), batch)
        count = sum(parameter.numel() for parameter in model.parameters())
        report = gnomon.merge_graft(model)
        assert report.exact
        assert (report.parameters_before, report.parameters_after) == (count, count)
        assert all(parameter.requires_grad for parameter in model.parameters())
        model.save_pretrained(tmp_path / name)
        torch.save(batch, tmp_path / name / "batch.pt")
    command = [sys.executable, "-c", PLAIN, str(tmp_path), *CONFIGS]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    for name, logits in wanted.items():
        found = torch.load(tmp_path / name / "logits.pt", weights_only=True)
        assert gap(logits, found)[0] <= 5e-6


def test_a_layer_with_tokens_computes_the_equation() -> None:
    """y = W x + b + Theta(x K^T) V, outputs and gradients, for every score, against the equations."""
    for score in ("l2_norm_gelu", "gelu_l2_norm", "softmax", "gelu"):
        model = build("BertForMaskedLM").double()
        gnomon.graft(model, num_tokens=5, targets=r"layer\.0\.attention\.self\.query$", score=score)
        ((name, layer),) = grafted_layers(moved(model))
        assert name.endswith("query")
        x = torch.randn(3, 32, dtype=torch.float64, requires_grad=True)
        new = layer.graft
        tokens = pattention(x, new.key_tokens, new.value_tokens, score=score, score_scale=new.score_scale)
        wanted = x @ layer.weight.T + layer.bias + tokens
        found = layer(x)
        assert gap(wanted.detach(), found.detach())[0] <= 1e-12
        inputs = (x, new.key_tokens, new.value_tokens)
        for first, second in zip(
            torch.autograd.grad(wanted.square().sum(), inputs, retain_graph=True),
            torch.autograd.grad(found.square().sum(), inputs),
            strict=True,
        ):
            assert gap(first, second)[0] <= 1e-10


def test_values_have_a_gradient_at_once_and_keys_from_the_second_step() -> None:
    """With values at zero the keys' first gradient is exactly zero, and after one step of the values it is not."""
    model = build("GPT2LMHeadModel")
    gnomon.graft(model, num_tokens=4, num_neurons=4, seed=0)
    batch = batch_for(model)
    names = ("key_tokens", "value_tokens")
    found = []
    for _ in range(2):
        model(**batch).loss.backward()
        found.append(
            {
                part: max(float(p.grad.abs().max()) for n, p in model.named_parameters() if n.endswith(part))
                for part in (*names, "c_fc.graft.weight", "mlp.c_proj.graft.weight")
            }
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    assert found[0]["key_tokens"] == found[0]["c_fc.graft.weight"] == 0.0
    assert found[0]["value_tokens"] > 0
    assert found[0]["mlp.c_proj.graft.weight"] > 0
    assert all(value > 0 for value in found[1].values())


def test_targets_choose_layers_by_kind_and_by_name() -> None:
    """`attention` and `feed_forward` split a block's layers between them; regular expressions pick single ones."""
    model = build("LlamaForCausalLM")
    found = places(model, probe_for(model))
    assert [place.name.rpartition(".")[2] for place in found if place.is_attention] == [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    ] * 2
    assert [[place.name.rpartition(".")[2] for place in (*fit.write, fit.read)] for fit in feed_forwards(found)] == [
        ["gate_proj", "up_proj", "down_proj"]
    ] * 2
    gnomon.graft(model, num_tokens=2, targets=[r"layers\.1\..*q_proj", "lm_head"])
    assert [name for name, _ in grafted_layers(model)] == ["model.layers.1.self_attn.q_proj", "lm_head"]
    model = build("LlamaForCausalLM")
    report = gnomon.graft(model, num_tokens=2, num_neurons=3)
    assert [part["role"] for part in report.parts].count("tokens") == 8
    assert [part["tokens_after"] for part in report.parts if part["role"] != "tokens"] == [3] * 6


def test_trainable_all_freezes_nothing_and_merging_gives_back_what_trained() -> None:
    """`all` leaves every flag as it was, and a layer frozen before the graft stays so after the merge."""
    model = build("BertForMaskedLM")
    gnomon.graft(model, num_neurons=2, trainable="all")
    assert all(parameter.requires_grad for parameter in model.parameters())
    model = build("BertForMaskedLM")
    model.bert.embeddings.requires_grad_(False)
    gnomon.graft(model, num_neurons=2)
    gnomon.merge_graft(model)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"bert.embeddings.{name}" for name, _ in model.bert.embeddings.named_parameters()}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no counts": ({}, "num_tokens .*num_neurons"),
    "zero tokens": ({"num_tokens": 0}, "above 0; got 0"),
    "zero keys beside zero values": ({"num_tokens": 4, "key_std": 0.0}, "no gradient, ever"),
    "zero neurons' keys": ({"num_neurons": 4, "key_std": 0.0}, "no gradient, ever"),
    "no match": ({"num_tokens": 4, "targets": "mlp.up"}, r"'mlp.up' matches none of the \d+ linear layers"),
    "no regular expression": ({"num_tokens": 4, "targets": "("}, "regular expression"),
    "neurons for attention": ({"num_neurons": 4, "targets": "attention"}, "num_neurons widens feed-forwards"),
    "neurons and attention": ({"num_neurons": 4, "targets": ("attention", "feed_forward")}, "num_tokens as well"),
    "no targets": ({"num_tokens": 4, "targets": ()}, "targets is empty"),
    "tokens without a place": ({"num_tokens": 4, "num_neurons": 4, "targets": "feed_forward"}, "leave num_tokens away"),
    "unknown score": ({"num_tokens": 4, "score": "relu"}, "score must be one of"),
    "unknown word": ({"num_tokens": 4, "trainable": "none"}, "tokens, all"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_graft_changes_nothing(arguments: dict[str, Any], said: str) -> None:
    """A graft that cannot be done says rule, value and remedy, and leaves names, flags and classes alone."""
    model = build("BertForMaskedLM")
    names, classes = list(model.state_dict()), [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=said):
        gnomon.graft(model, **arguments)
    assert list(model.state_dict()) == names
    assert [type(module) for module in model.modules()] == classes
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_cannot_be_grafted_is_refused() -> None:
    """A gnomon model is sent to `grow`, a wrapper to its module, a bare module away, a second graft to the base."""
    own = gnomon.GnomonForCausalLM(gnomon.preset("tokenformer-tiny"))
    with pytest.raises(ValueError, match=r"use gnomon\.grow"):
        gnomon.graft(own, num_tokens=4)
    with pytest.raises(ValueError, match=r"pass model\.module"):
        gnomon.graft(object.__new__(torch.nn.parallel.DistributedDataParallel), num_tokens=4)
    with pytest.raises(TypeError, match="PreTrainedModel"):
        gnomon.graft(torch.nn.Linear(2, 2), num_tokens=4)
    model = build("BertForMaskedLM")
    model.cls.predictions.decoder.forward = torch.relu
    with pytest.raises(ValueError, match="replaced the forward of cls"):
        gnomon.graft(model, num_tokens=4)
    model = build("BertForMaskedLM")
    gnomon.graft(model, num_tokens=4)
    with pytest.raises(ValueError, match="grafted already"):
        gnomon.graft(model, num_tokens=4)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            lambda: hf.BitNetForCausalLM(hf.BitNetConfig(**TEXT, **WIDTHS, num_key_value_heads=2)),
            "something between its layers knows their width",
        ),
        (
            lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**TEXT, **WIDTHS, num_key_value_heads=2, pad_token_id=0)),
            "writes the gate and the hidden units",
        ),
    ],
    ids=["an inner norm", "a fused gate"],
)
def test_a_feed_forward_that_cannot_be_widened_says_so_and_takes_tokens(model: Callable[[], Any], said: str) -> None:
    """An inner norm or a fused gate refuses neurons, leaves the model whole, and lets tokens stand beside it."""
    model = model().eval()
    before = probe_outputs(model, probe_for(model))
    with pytest.raises(ValueError, match=said):
        gnomon.graft(model, num_neurons=4)
    assert torch.equal(before, probe_outputs(model, probe_for(model)))
    assert gnomon.graft(model, num_tokens=4).exact


def test_a_model_with_inputs_of_two_kinds_takes_a_probe_of_its_user() -> None:
    """CLIP does not run on made-up ids alone, is told to take a probe, and with one is grafted in both towers."""
    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = hf.CLIPConfig(
        text_config={**tower, "vocab_size": 50, "eos_token_id": 2},
        vision_config={**tower, "image_size": 16, "patch_size": 8},
    )
    model = hf.CLIPModel(config).eval()
    with pytest.raises(ValueError, match=r"CLIPModel cannot run on the probe input_ids .*probe="):
        gnomon.graft(model, num_neurons=4)
    probe = {"input_ids": torch.arange(8)[None], "pixel_values": torch.randn(1, 3, 16, 16)}
    report = gnomon.graft(model, num_neurons=4, probe=probe)
    assert report.exact
    assert {part["name"].split(".")[0] for part in report.parts} == {"text_model", "vision_model"}
    assert gnomon.merge_graft(model, probe=probe).exact
    assert (model.config.text_config.intermediate_size, model.config.vision_config.intermediate_size) == (52, 52)


def test_merging_is_refused_where_the_mathematics_or_the_config_forbid_it() -> None:
    """Tokens beside a layer, one widened layer of two, and a config without a word for the width are refused whole."""
    model = build("LlamaForCausalLM")
    with pytest.raises(ValueError, match="no graft to merge"):
        gnomon.merge_graft(model)
    gnomon.graft(model, num_tokens=4)
    with pytest.raises(ValueError, match="no linear function"):
        gnomon.merge_graft(model)
    model = build("LlamaForCausalLM")
    gnomon.graft(model, num_neurons=4, targets=r"layers\.0\.mlp")
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp.*feed-forward alike"):
        gnomon.merge_graft(model)
    assert model.config.intermediate_size == 48
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    bloom = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4))
    gnomon.graft(bloom, num_neurons=4)
    with pytest.raises(ValueError, match=r"the config \(unchanged\) gives \(128, 32\)"):
        gnomon.merge_graft(bloom)


def saved(name: str, folder: Path, **sizes: int) -> Path:
    """A graft's folder."""
    model = build(name)
    gnomon.graft(model, **sizes)
    return gnomon.save_graft(model, folder)


def test_a_graft_of_another_model_is_refused_with_the_counts(tmp_path: Path) -> None:
    """Another architecture matches nothing, a narrower or shallower twin in part; each says how many of each."""
    folder = saved("LlamaForCausalLM", tmp_path / "graft", num_tokens=4)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM .*GPT2LMHeadModel: matched 0, missing 0, unexpected 42"):
        gnomon.load_graft(build("GPT2LMHeadModel"), folder)
    config = CONFIGS["LlamaForCausalLM"]()
    config.num_hidden_layers = 1
    shallow = hf.LlamaForCausalLM(config)
    with pytest.raises(ValueError, match=r"matched 21, missing 0, unexpected 21, such as model\.layers\.1"):
        gnomon.load_graft(shallow, folder)
    assert not list(grafted_layers(shallow))
    loading = gnomon.load_graft(shallow, folder, strict=False)
    assert (len(loading.matched), len(loading.unexpected)) == (21, 21)
    config.hidden_size, config.head_dim = 16, 4
    with pytest.raises(ValueError, match="matched 0, missing 0, unexpected 42"):
        gnomon.load_graft(hf.LlamaForCausalLM(config), folder, strict=False)


def test_half_a_feed_forward_is_never_loaded(tmp_path: Path) -> None:
    """With one tensor missing, the counts name it, and without strictness its whole feed-forward is left out."""
    folder = saved("LlamaForCausalLM", tmp_path / "graft", num_neurons=4)
    state = load_file(folder / WEIGHTS_FILE)
    del state["model.layers.0.mlp.up_proj.graft.weight"]
    save_file(state, folder / WEIGHTS_FILE)
    model = build("LlamaForCausalLM")
    with pytest.raises(ValueError, match="matched 3, missing 1, unexpected 2"):
        gnomon.load_graft(model, folder)
    loading = gnomon.load_graft(model, folder, strict=False)
    assert loading.missing == ["model.layers.0.mlp.up_proj.graft.weight"]
    assert [name for name, _ in grafted_layers(model)] == [
        f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")
    ]
    assert torch.isfinite(probe_outputs(model, probe_for(model))).all()


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    """No folder, a cut file, a foreign format, an existing output and a model without graft get one sentence each."""
    model = build("BertForMaskedLM")
    with pytest.raises(FileNotFoundError, match=CONFIG_FILE):
        gnomon.load_graft(model, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no graft to save"):
        gnomon.save_graft(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    folder = saved("BertForMaskedLM", tmp_path / "graft", num_neurons=4)
    gnomon.load_graft(model, folder)
    with pytest.raises(FileExistsError, match="exists"):
        gnomon.save_graft(model, folder)
    weights, config = folder / WEIGHTS_FILE, json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "format": "other"}))
    with pytest.raises(ValueError, match="gnomon-graft-1"):
        gnomon.load_graft(build("BertForMaskedLM"), folder)
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "parts": [{"name": "x", "units": 3}]}))
    with pytest.raises(ValueError, match=r"graft\.json is damaged"):
        gnomon.load_graft(build("BertForMaskedLM"), folder)
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged"):
        gnomon.load_graft(build("BertForMaskedLM"), folder)
