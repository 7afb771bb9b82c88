"""New parameter tokens: exactness, gradients, tau, the optimizer, and the official growth."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from gnomon import GnomonConfig, GnomonForCausalLM, grow
from gnomon.convert import from_tokenformer
from gnomon.convert.tokenformer import tensor_names
from gnomon.growth.report import tolerance
from gnomon.growth.sites import pattentions

GOLDEN = Path(__file__).parent / "golden"
LARGER = {"num_attention_tokens": 32, "num_output_tokens": 32, "num_feed_forward_tokens": 48}
L2_SCORES = ("l2_norm_gelu", "gelu_l2_norm")


def build(score: str = "l2_norm_gelu", dtype: torch.dtype = torch.float32, **fields: object) -> GnomonForCausalLM:
    torch.manual_seed(0)
    sizes = {"num_attention_tokens": 16, "num_output_tokens": 16, "num_feed_forward_tokens": 24} | fields
    config = GnomonConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, score=score, **sizes
    )
    model = GnomonForCausalLM(config).to(dtype)
    for parameter in model.parameters():
        parameter.data *= 4
    return model


def ids(seed: int = 0) -> torch.Tensor:
    return torch.randint(64, (3, 12), generator=torch.Generator().manual_seed(seed))


def train(model: GnomonForCausalLM, optimizer: torch.optim.Optimizer, steps: int = 1) -> float:
    for _ in range(steps):
        loss = model(input_ids=ids(), labels=ids()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("score", "init"),
    [(score, "exact") for score in (*L2_SCORES, "gelu")]
    + [(score, "replicate") for score in (*L2_SCORES, "gelu", "softmax")],
)
def test_exact_and_replicate_leave_the_function_alone(score: str, init: str, dtype: torch.dtype) -> None:
    """Every score has a growth that moves the logits by rounding alone, 1e-12 in float64."""
    model = build(score, dtype)
    before = model(input_ids=ids(1)).logits.detach()
    report = grow(model, init=init, seed=1, **LARGER)
    after = model(input_ids=ids(1)).logits.detach()
    assert float((after - before).norm() / before.norm()) <= tolerance(dtype)
    assert report.exact
    assert report.gap_relative <= tolerance(dtype)
    assert model.config.num_feed_forward_tokens == 48


@pytest.mark.parametrize(
    ("init", "score_scale"), [("exact", "count"), ("random", None), ("random", "hold"), ("reference", None)]
)
def test_inexact_growth_says_so(init: str, score_scale: str | None) -> None:
    """A growth whose tau jumps or whose keys are random moves the logits, and the report does not claim otherwise."""
    report = grow(build(), init=init, score_scale=score_scale, seed=1, **LARGER)
    assert not report.exact
    assert report.gap_relative > 0.01


def test_two_growths_equal_one() -> None:
    """16 -> 24 -> 32 tokens computes the same as 16 -> 32."""
    twice, once = build(dtype=torch.float64), build(dtype=torch.float64)
    grow(twice, num_attention_tokens=24)
    grow(twice, num_attention_tokens=32)
    grow(once, num_attention_tokens=32)
    torch.testing.assert_close(twice(input_ids=ids()).logits, once(input_ids=ids()).logits, rtol=0, atol=1e-12)


def test_exact_wakes_keys_at_once_and_values_one_step_later() -> None:
    """With zero keys the new values have no gradient until the keys have moved."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    grow(model, optimizer=optimizer, seed=1, **LARGER)
    module = model.model.layers[0].feed_forward
    train(model, optimizer)
    assert module.key_tokens.grad[24:].abs().min(dim=1).values.gt(0).all()
    assert not module.value_tokens.grad[24:].any()
    train(model, optimizer)
    assert module.value_tokens.grad[24:].any(dim=1).all()


def test_replicate_wakes_everything_at_once_and_not_in_lockstep() -> None:
    """With offsets the copies' key gradients point elsewhere; without offsets they stay parallel."""
    cosines = {}
    for offset in (0.0, 1.0):
        model = build()
        grow(model, init="replicate", offset_std=offset, seed=1, **LARGER)
        model(input_ids=ids(), labels=ids()).loss.backward()
        module = model.model.layers[0].feed_forward
        assert module.key_tokens.grad.any(dim=1).all()
        assert module.value_tokens.grad.any(dim=1).all()
        first, second = module.key_tokens.grad.unflatten(0, (2, 24))
        cosines[offset] = float(torch.cosine_similarity(first, second, dim=1).mean())
    assert cosines[0.0] > 0.999
    assert cosines[1.0] < 0.8


def test_the_official_growth_gives_the_official_logits() -> None:
    """`reference`, with the reference's own new rows put in, equals the reference's logits after its growth."""
    with (
        safe_open(GOLDEN / "tokenformer_lm_l2_norm_gelu.safetensors", "pt") as small,
        safe_open(GOLDEN / "tokenformer_growth.safetensors", "pt") as large,
    ):
        config, counts = (json.loads(file.metadata()["config"]) for file in (small, large))
        names = [name for name in small.keys() if name.startswith("param.")]  # noqa: SIM118  # no mapping
        model = from_tokenformer({name.removeprefix("param."): small.get_tensor(name) for name in names}, config)
        batch = large.get_tensor("input_ids")
        torch.testing.assert_close(model(input_ids=batch).logits, large.get_tensor("logits_before"), rtol=0, atol=1e-5)
        grow(
            model,
            init="reference",
            num_attention_tokens=counts["qkv_slot_num"],
            num_output_tokens=counts["proj_slot_num"],
            num_feed_forward_tokens=counts["ffn_slot_num"],
        )
        parameters = dict(model.named_parameters())
        for official, ours in tensor_names(2).items():
            old, new = small.get_tensor(f"param.{official}"), large.get_tensor(f"param.{official}")
            assert torch.equal(parameters[ours][: len(old)], old)
            parameters[ours].data[len(old) :] = new[len(old) :]
        torch.testing.assert_close(model(input_ids=batch).logits, large.get_tensor("logits_after"), rtol=0, atol=1e-5)


def test_named_layers_and_sites_grow_alone_and_the_config_describes_them() -> None:
    """Counts a layer and a site end up in the config, and a saved model loads with them."""
    model = build()
    grow(model, layers=[1], num_attention_tokens={"query": 20, "key": 16, "value": 18})
    assert model.config.num_attention_tokens == [16, {"query": 20, "key": 16, "value": 18}]
    assert [module.num_tokens for _, _, module in pattentions(model)][5:8] == [20, 16, 18]


def test_a_grown_model_survives_disk(tmp_path: Path) -> None:
    """A grown model saved and loaded has the same config, tau and logits."""
    model = build()
    grow(model, layers=[1], num_output_tokens=20)
    model.save_pretrained(tmp_path)
    loaded = GnomonForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.num_output_tokens == [16, 20]
    assert float(loaded.model.layers[1].attention.output.score_scale) == 4.0
    assert torch.equal(loaded(input_ids=ids()).logits, model(input_ids=ids()).logits)


@pytest.mark.parametrize(
    ("sizes", "options", "said"),
    [
        ({"num_attention_tokens": 8}, {}, "shrink"),
        ({"num_attention_tokens": 16}, {}, "nothing grows"),
        ({}, {}, "at least one"),
        ({"hidden_widht": 8}, {}, "no size that grows"),
        ({"num_attention_tokens": 32, "hidden_size": 64}, {}, "calls of their own"),
        ({"num_hidden_layers": 3}, {"init": "random"}, "identity"),
        ({"num_attention_tokens": 2.5}, {}, "whole numbers"),
        ({"num_attention_tokens": 32}, {"init": "zero"}, "exact, replicate"),
        ({"num_attention_tokens": 40}, {"init": "replicate"}, "16 to 32 or another"),
        ({"num_attention_tokens": 32}, {"init": "replicate", "score_scale": "hold"}, "unset"),
        ({"num_attention_tokens": 32}, {"layers": [2]}, "0 to 1"),
    ],
)
def test_a_refused_growth_names_rule_value_and_remedy_and_changes_nothing(
    sizes: dict, options: dict, said: str
) -> None:
    """Bad requests raise one sentence and leave parameters and config untouched."""
    model = build()
    state, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    with pytest.raises(ValueError, match=said):
        grow(model, **options, **sizes)
    assert model.config.to_dict() == config
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_exact_is_refused_for_softmax_and_names_replicate() -> None:
    """A zero key takes its share of a softmax row, so `exact` must point to `replicate`."""
    with pytest.raises(ValueError, match="replicate"):
        grow(build("softmax"), **LARGER)


def test_zero_keys_with_zero_values_are_refused() -> None:
    """Tokens that no gradient can ever reach are not made."""
    model = build()
    for _, _, module in pattentions(model):
        module.value_std = 0.0
    with pytest.raises(ValueError, match="no gradient"):
        grow(model, **LARGER)


def test_a_linear_model_and_a_wrapped_model_are_refused() -> None:
    """Growing tokens of a linear model, or of a DDP wrapper, gets the remedy."""
    model = GnomonForCausalLM(
        GnomonConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, projection="linear")
    )
    with pytest.raises(ValueError, match="linear layers"):
        grow(model, num_attention_tokens=64)
    wrapped = object.__new__(torch.nn.parallel.DistributedDataParallel)
    with pytest.raises(ValueError, match=r"pass model\.module"):
        grow(wrapped, num_attention_tokens=64)
