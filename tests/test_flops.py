"""The cost formulas against the published sizes, the models themselves, and torch's own counter."""

import subprocess
import sys

import pytest

from gnomon.analysis import flops
from gnomon.models.presets import PRESETS

EXACT_TOTALS = {
    "tokenformer-150m": 151_881_216,
    "tokenformer-450m": 454_166_528,
    "tokenformer-900m": 903_252_480,
    "tokenformer-1.5b": 1_587_219_456,
    "tokenformer-owt2-354m": 353_503_232,
    "tokenformer-owt2-757m": 756_156_416,
}
MILLIONS = {
    "tokenformer-growth-124m": 123.6,
    "tokenformer-growth-354m": 354.2,
    "tokenformer-growth-757m": 753.8,
    "tokenformer-growth-1.4b": 1309.7,
}

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ATTENTION_TOKENS = {"num_attention_tokens": 16, "num_output_tokens": 16}
TINY = {**SIZES, **ATTENTION_TOKENS, "num_feed_forward_tokens": 48}
LINEAR = {**SIZES, "projection": "linear", "intermediate_size": 80}
VARIANTS = {
    "pattention": TINY,
    "linear": LINEAR,
    "linear with biases": {**LINEAR, "use_bias": True},
    "gated": {**LINEAR, "feed_forward": "glu"},
    "gated with biases": {**LINEAR, "feed_forward": "glu", "use_bias": True},
    "linear attention, pattention feed-forward": {
        **SIZES,
        "projection": "linear",
        "feed_forward": "pattention",
        "num_feed_forward_tokens": 48,
        "use_bias": True,
    },
    "pattention attention, linear feed-forward": {
        **SIZES,
        **ATTENTION_TOKENS,
        "feed_forward": "mlp",
        "intermediate_size": 80,
    },
    "untied": {**TINY, "tie_word_embeddings": False},
    "grouped queries": {**TINY, "num_key_value_heads": 2},
    "grouped queries, linear": {**LINEAR, "num_key_value_heads": 1, "use_bias": True},
    "heads narrower than the width": {
        **TINY,
        "head_dim": 6,
        "rope_parameters": {"partial_rotary_factor": 1.0},
    },
    "learned score scales": {**TINY, "learn_score_scale": True},
    "rms norms": {**TINY, "norm": "rms"},
    "affine norms": {**TINY, "norm": "layer"},
    "tokens by site": {**TINY, "num_attention_tokens": {"query": 5, "key": 7, "value": 11}},
    **{
        f"{place}, linear": {**LINEAR, "norm_placement": place}
        for place in ("post", "deep", "sub", "peri", "normformer")
    },
    **{
        f"{place}, affine": {**TINY, "norm_placement": place, "norm": "layer"}
        for place in ("sub", "normformer", "post")
    },
    "tokens by layer": {**TINY, "num_attention_tokens": [16, 24], "num_feed_forward_tokens": [48, 13]},
}


def build(fields: dict, device: str = "meta"):
    """A causal language model of these fields, with eager attention."""
    import torch

    from gnomon.models.config import GnomonConfig
    from gnomon.models.text import GnomonForCausalLM

    with torch.device(device):
        return GnomonForCausalLM(GnomonConfig(**fields, attn_implementation="eager"))


@pytest.mark.parametrize("name", EXACT_TOTALS)
def test_released_sizes_have_the_published_counts_to_the_last_number(name: str) -> None:
    """The formula gives the released checkpoints' parameter counts exactly."""
    assert flops.count_parameters(PRESETS[name]).total == EXACT_TOTALS[name]


@pytest.mark.parametrize("name", MILLIONS)
def test_growth_sizes_round_to_the_papers_millions(name: str) -> None:
    """The growth chain's sizes are the published ones to a tenth of a million."""
    assert round(flops.count_parameters(PRESETS[name]).total / 1e6, 1) == MILLIONS[name]


def test_non_embedding_parameters_are_the_papers_n() -> None:
    """For every TokenFormer N = 2 L d (n_query + n_key + n_value + n_output + n_feed_forward)."""
    for name, fields in PRESETS.items():
        if not name.startswith("tokenformer"):
            continue
        tokens = 3 * fields["num_attention_tokens"] + fields["num_output_tokens"] + fields["num_feed_forward_tokens"]
        expected = 2 * fields["num_hidden_layers"] * fields["hidden_size"] * tokens
        assert flops.count_parameters(fields).non_embedding == expected, name


@pytest.mark.parametrize("name", [name for name in PRESETS if "-vit-" not in name])
def test_the_formula_counts_what_each_preset_allocates(name: str) -> None:
    """A preset's model, built without memory, has exactly the parameters that the formula counts."""
    parameters = build(PRESETS[name]).parameters()
    assert sum(p.numel() for p in parameters) == flops.count_parameters(PRESETS[name]).total


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_formula_counts_every_kind_of_parameter(variant: str) -> None:
    """Biases, norms, score scales, the head and the weights are each counted as the model names them."""
    counts = flops.count_parameters(VARIANTS[variant])
    found = dict.fromkeys(("embedding", "attention", "feed_forward", "norms", "biases", "score_scales", "head"), 0)
    for name, parameter in build(VARIANTS[variant]).named_parameters():
        site = name.split(".")
        if site[-1] == "score_scale":
            kind = "score_scales"
        elif "embed_tokens" in site:
            kind = "embedding"
        elif "lm_head" in site:
            kind = "head"
        elif {"norm", "before", "after", "outer", "inner_norm", "scale_heads"} & set(site):
            kind = "norms"
        elif site[-1] == "bias":
            kind = "biases"
        else:
            kind = "attention" if "attention" in site else "feed_forward"
        found[kind] += parameter.numel()
    assert {kind: getattr(counts, kind) for kind in found} == found


PAIR = {"num_hidden_layers": None, "encoder_layers": 2, "decoder_layers": 1, "decoder_start_token_id": 1}
IMAGE = {"image_size": [12, 8], "patch_size": 4, "num_channels": 3, "is_decoder": False}
BOTH = {**IMAGE, "positions": "rotary"}
WHOLE = {
    "learned positions": ("GnomonForCausalLM", {**LINEAR, "positions": "learned", "position_offset": 2}),
    "relative bias": ("GnomonForMaskedLM", {**TINY, "positions": "relative_bias", "is_decoder": False}),
    "pair": ("GnomonForSeq2SeqLM", {**LINEAR, **PAIR, "positions": "learned", "use_bias": True}),
    "untied pair": ("GnomonForSeq2SeqLM", {**TINY, **PAIR, "tie_word_embeddings": False}),
    "peri pair": ("GnomonForSeq2SeqLM", {**LINEAR, **PAIR, "norm_placement": "peri", "positions": "relative_bias"}),
    "sub pair": ("GnomonForSeq2SeqLM", {**LINEAR, **PAIR, "norm_placement": "sub"}),
    "deep pair": ("GnomonForSeq2SeqLM", {**LINEAR, **PAIR, "norm_placement": "deep"}),
    "normformer pair": ("GnomonForSeq2SeqLM", {**LINEAR, **PAIR, "norm_placement": "normformer"}),
    "classifier of texts": ("GnomonForSequenceClassification", {**TINY, "is_decoder": False, "num_labels": 7}),
    "classifier of tokens": ("GnomonForTokenClassification", {**LINEAR, "tie_word_embeddings": False}),
    "painter": ("GnomonForMaskedImageModeling", {**LINEAR, **IMAGE, "vocab_size": None, "use_bias": True}),
    "painter of tokens": ("GnomonForMaskedImageModeling", {**TINY, **IMAGE, "vocab_size": None}),
    "painter, convolutions first": (
        "GnomonForMaskedImageModeling",
        {**LINEAR, **IMAGE, "vocab_size": None, "use_bias": True, "stem_conv_channels": [6, 10]},
    ),
    "classifier, convolutions first": (
        "GnomonForImageClassification",
        {**TINY, **IMAGE, "vocab_size": None, "patch_projection": "pattention", "stem_conv_channels": [6]},
    ),
    "images and texts": ("GnomonForImageTextMaskedModeling", {**TINY, **BOTH}),
    "images and texts, untied": (
        "GnomonForImageTextMaskedModeling",
        {**LINEAR, **BOTH, "num_modalities": 2, "tie_word_embeddings": False, "use_bias": True},
    ),
    "images and texts, own tokens": (
        "GnomonForImageTextMaskedModeling",
        {**TINY, **BOTH, "num_modalities": 2, "multiway": "tokens", "num_modality_tokens": 7},
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_formula_counts_every_parameter_of_every_head(name: str) -> None:
    """Tables of positions, second embeddings, and the heads of pairs, of painters, and of images with texts."""
    import torch

    import gnomon

    cls, fields = WHOLE[name]
    with torch.device("meta"):
        model = getattr(gnomon, cls)(gnomon.GnomonConfig(**fields))
    fields = {**model.config.to_dict(), "architectures": [cls]}
    assert flops.count_parameters(fields).total == model.num_parameters()


@pytest.mark.parametrize("name", [name for name, row in WHOLE.items() if row[1].get("image_size")])
def test_operations_on_images_with_heads_are_those_torch_counts(name: str) -> None:
    """Of hidden patches painted, and of a text beside its image: every position, and each head on its own."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import gnomon

    cls, fields = WHOLE[name]
    model = getattr(gnomon, cls)(gnomon.GnomonConfig(**fields, attn_implementation="eager")).eval()
    batch = model.random_inputs(rows=1, length=11)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**batch)
    expected = flops.forward_flops_per_token({**model.config.to_dict(), "architectures": [cls]}, 11)
    assert expected <= counter.get_total_flops() < expected * 1.002


def test_operations_of_a_classifier_of_tokens_are_those_torch_counts() -> None:
    """Its head reads classes, so that the table of tokens is looked up and multiplies nothing."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import gnomon

    model = gnomon.GnomonForTokenClassification(gnomon.GnomonConfig(**LINEAR, attn_implementation="eager")).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.ones(1, 11).long())
    fields = {**model.config.to_dict(), "architectures": ["GnomonForTokenClassification"]}
    assert counter.get_total_flops() == 11 * flops.forward_flops_per_token(fields, 11)


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_operations_equal_those_torch_counts(variant: str) -> None:
    """Two operations a weight and 4 d T a token are all that torch counts in an eager forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    length = 12
    model = build(VARIANTS[variant], device="cpu").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(1, length, dtype=torch.long), use_cache=False)
    expected = flops.forward_flops_per_token(VARIANTS[variant], length) * length
    # Rotary angles are an outer product, once a pass: a few operations that the formula leaves out.
    assert expected <= counter.get_total_flops() < expected * 1.001


def test_training_costs_three_forward_passes_as_torch_counts_them() -> None:
    """A backward pass multiplies each weight and each score twice."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    length = 12
    model = build(TINY, device="cpu").train()
    ids = torch.zeros(1, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    counted, expected = counter.get_total_flops(), flops.training_flops(TINY, length, length)
    assert expected <= counted < expected * 1.001


def test_growth_leaves_the_cost_of_token_attention_alone() -> None:
    """From 124M to 1.4B parameters token-token attention stays at 36,864 T^2 operations."""
    for name in MILLIONS:
        assert flops.token_attention_flops(PRESETS[name], 1000) == 36_864 * 1000**2


@pytest.mark.parametrize("variant", ["pattention", "grouped queries", "untied"])
def test_memory_is_what_the_tensors_take(variant: str) -> None:
    """Weights, gradients, AdamW's moments and the cache take exactly the bytes that the formula says."""
    import torch

    fields, batch, length = VARIANTS[variant], 3, 7
    model = build(fields, device="cpu")
    ids = torch.zeros(batch, length, dtype=torch.long)
    output = model(input_ids=ids, labels=ids, use_cache=True)
    output.loss.backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()

    def size(tensors) -> int:
        return sum(t.numel() * t.element_size() for t in tensors)

    memory = flops.memory_bytes(fields, length, batch)
    moments = [m for state in optimizer.state.values() for name, m in state.items() if name != "step"]
    caches = [t for layer in output.cache.layers for t in (layer.keys, layer.values)]
    assert memory.weights == size(model.parameters())
    assert memory.gradients == size(p.grad for p in model.parameters())
    assert memory.optimizer == size(moments)
    assert memory.cache == size(caches)
    assert flops.memory_bytes(fields, length, batch, "bfloat16").cache * 2 == memory.cache


def test_an_unknown_dtype_is_refused_by_name() -> None:
    """The sizes of number formats are known for three of them only."""
    with pytest.raises(ValueError, match="float32, bfloat16, float16, not 'int8'"):
        flops.memory_bytes(TINY, 8, dtype="int8")


def test_cost_accounting_imports_no_torch() -> None:
    """Counting a preset's parameters leaves torch and transformers unimported."""
    code = (
        "import sys; from gnomon.analysis import flops; from gnomon.models.presets import PRESETS;"
        "flops.count_parameters(PRESETS['tokenformer-150m']);"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
