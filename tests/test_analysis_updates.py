"""Model updates, signals and scales, against hand-made steps and against what the theorems say in their own setting."""

import math
import statistics

import jaxtyping
import pytest
import torch

from gnomon.analysis.gains import Gains, sublayer_scales, update_bound
from gnomon.analysis.signals import gradient_norms, model_blocks, record_activations
from gnomon.analysis.updates import Setting, build_model, draw_batches, measure_depths, measure_update
from gnomon.data.packing import collate
from gnomon.models.config import GnomonConfig
from gnomon.models.text import GnomonForCausalLM
from gnomon.nn.initialization import magneto_gains

FIELDS = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "projection": "linear",
    "tie_word_embeddings": False,
}


def ids(batch: int, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random ids that are their own labels."""
    drawn = torch.randint(0, FIELDS["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": drawn, "labels": drawn}


def build(placement: str = "pre", depth: int = 2, seed: int = 0, **changes: object) -> GnomonForCausalLM:
    """A model of a study."""
    fields = {**FIELDS, **changes.pop("fields", {})}
    return build_model(Setting(fields, **changes), placement, depth, seed)


def test_the_activation_hook_gives_one_number_a_layer_that_grows_slower_than_the_depth() -> None:
    """48 layers give 48 numbers, and a fresh Pre-LN stream grows by less than the ratio of the layers."""
    model = build("pre", 48, fields={"hidden_size": 32})
    with record_activations(model) as sizes, torch.no_grad():
        model(**ids(2, 12))
    assert len(sizes) == 48
    assert 1.0 < sizes[47] / sizes[11] < 3.0
    with torch.no_grad(), record_activations(model) as others, torch.autocast("cpu", torch.bfloat16):
        model.float()(**ids(2, 12))
    assert others == pytest.approx(sizes, rel=0.05)


def test_the_activation_hook_is_gone_after_its_context() -> None:
    """A pass behind the context changes no number."""
    model = build()
    with record_activations(model) as sizes, torch.no_grad():
        model(**ids(1, 5))
    kept = list(sizes)
    with torch.no_grad():
        model(**ids(1, 9, seed=1))
    assert sizes == kept
    assert not any(block._forward_hooks for block in model_blocks(model))


def test_gradient_norms_are_those_of_the_blocks_own_parameters() -> None:
    """Each number is the norm of the block's gradient put into one vector."""
    model = build(depth=3)
    model(**ids(2, 7)).loss.backward()
    for norm, block in zip(gradient_norms(model), model.model.layers, strict=True):
        flat = torch.cat([parameter.grad.flatten() for parameter in block.parameters()])
        assert norm == pytest.approx(float(flat.norm()), rel=1e-6)


@pytest.mark.parametrize("moved", ["matrices", "blocks", "all"])
def test_an_update_is_what_torchs_own_sgd_does(moved: str) -> None:
    """The measured update equals the change of the last hidden state after one step of torch.optim.SGD."""
    batch, rate = ids(3, 8), 1e-4
    seen = measure_update(build("sub"), batch, learning_rate=rate, moved=moved)
    model = build("sub")
    parameters = list(model.parameters()) if moved == "all" else list(model.model.layers.parameters())
    if moved == "matrices":
        parameters = [parameter for parameter in parameters if parameter.dim() == 2]
    with torch.no_grad():
        before = model.model(batch["input_ids"]).last_hidden_state
    loss = model(**batch).loss
    loss.backward()
    loss = loss.detach()
    torch.optim.SGD(parameters, lr=rate).step()
    with torch.no_grad():
        after = model.model(batch["input_ids"]).last_hidden_state
    distance = (after - before)[:, :-1].norm(dim=-1).square().mean().sqrt()  # the last position predicts nothing
    assert seen.update == pytest.approx(float(distance) / rate, rel=1e-9)
    assert seen.loss == pytest.approx(float(loss), rel=1e-12)


def test_measuring_leaves_the_model_as_it_was() -> None:
    """Weights are bit-equal afterwards, the mode is kept, and no gradient stays."""
    model = build("deep").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measure_update(model, ids(2, 6), moved="all")
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_update_is_in_proportion_to_the_rate() -> None:
    """At rates a hundredfold apart the update over the rate agrees to 1 in 1000."""
    small, large = (measure_update(build("sub", 4), ids(2, 8), learning_rate=rate).update for rate in (1e-7, 1e-5))
    assert small == pytest.approx(large, rel=1e-3)


def growth(placement: str, **changes: object) -> float:
    """Mean update of 32 layers over that of 4 in the theorems' setting: one token, no activation, matrices alone."""
    setting = Setting({**FIELDS, "hidden_size": 64, "intermediate_size": 64}, is_activation_linear=True, **changes)
    rows = list(measure_depths(setting, [placement], (4, 32), [ids(4, 2, seed) for seed in range(5)]))
    return rows[1]["update"] / rows[0]["update"]


def test_in_the_theorems_setting_sub_norm_stays_flat_where_pre_norm_grows() -> None:
    """From 4 to 32 layers Pre-LN's update doubles, as it does without Sub-LN's gain; Sub-LN's stays within 40%."""
    assert growth("pre") > 2.0
    assert growth("sub", gain=1.0) > 2.0
    assert 0.6 < growth("sub") < 1.4


def test_deep_norm_is_flat_until_its_norms_weights_move_too() -> None:
    """From 3 to 24 layers DeepNorm's update stays within 20% by its matrices, and triples by all its parameters."""
    ratios = {}
    for moved in ("matrices", "blocks"):
        setting = Setting(FIELDS, moved=moved)
        rows = list(measure_depths(setting, ["deep"], (3, 24), [ids(4, 8, seed) for seed in range(2)]))
        ratios[moved] = rows[1]["update"] / rows[0]["update"]
    assert 0.8 < ratios["matrices"] < 1.2
    assert ratios["blocks"] > 3.0


def test_scales_are_read_off_as_they_were_drawn() -> None:
    """With square matrices Xavier's gain g gives v = w = g in every sublayer, to 5%."""
    model = build("pre", 3, fields={"hidden_size": 64, "intermediate_size": 64})
    Gains(1.7).draw_(model, seed=3)
    outputs, inputs = sublayer_scales(model)
    assert len(outputs) == len(inputs) == 6
    assert outputs == pytest.approx([1.7] * 6, rel=0.05)
    assert inputs == pytest.approx([1.7] * 6, rel=0.05)


def test_the_bound_beside_a_measurement_is_the_theorems_at_the_models_own_scales() -> None:
    """Square matrices with gamma give 2 (1 + H) / gamma^2 d for Sub-LN; post-norm placements have no bound."""
    depth = 6
    gamma = magneto_gains(0, depth)[1]
    model = build("sub", depth, fields={"hidden_size": 64, "intermediate_size": 64})
    harmonic = math.fsum(1 / number for number in range(1, 2 * depth))
    assert update_bound(model, learning_rate=1.0) == pytest.approx(64 * 2 * (1 + harmonic) / gamma**2, rel=0.05)
    assert update_bound(build("post", depth), learning_rate=1.0) is None


def test_rows_hold_means_over_batches_and_one_number_a_layer() -> None:
    """A study's update is the mean between its lowest and highest, and its signals have the model's depth."""
    batches = [ids(2, 6, seed) for seed in range(3)]
    row = next(measure_depths(Setting(FIELDS), ["peri"], [3], batches))
    alone = [measure_update(build("peri", 3, seed), batch).update for seed, batch in enumerate(batches)]
    assert row["update"] == pytest.approx(statistics.fmean(alone), rel=1e-12)
    assert [row["lowest"], row["highest"]] == pytest.approx([min(alone), max(alone)], rel=1e-12)
    assert len(row["activations"]) == len(row["gradients"]) == 3


def test_batches_repeat_no_window_and_more_than_there_are_is_refused() -> None:
    """All windows of all batches differ, and the refusal names both counts."""
    windows = [{"input_ids": torch.tensor([n, n]), "labels": torch.tensor([n, n])} for n in range(7)]
    batches = draw_batches(windows, collate, batch_size=2, num_batches=3)
    assert len({int(row[0]) for batch in batches for row in batch["input_ids"]}) == 6
    with pytest.raises(ValueError, match="7 sequences, fewer than the 8"):
        draw_batches(windows, collate, batch_size=2, num_batches=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"removed_norms": ["outer"]}, "before or inner; got 'outer'"),
        ({"initialization": "kaiming"}, "config or xavier; got 'kaiming'"),
    ],
)
def test_settings_that_do_not_exist_are_refused(changes: dict, message: str) -> None:
    """The sentence names what there is and what came."""
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_a_step_of_no_size_and_an_unknown_set_of_parameters_are_refused() -> None:
    """A rate of 0 and a misspelt `moved` get the rule and the value."""
    with pytest.raises(ValueError, match="learning_rate must be above 0; got 0"):
        measure_update(build(), ids(1, 4), learning_rate=0)
    with pytest.raises(ValueError, match="matrices, blocks, all; got 'norms'"):
        measure_update(build(), ids(1, 4), moved="norms")


@pytest.mark.parametrize(("placement", "initialization"), [("sub", "magneto"), ("deep", "deepnet")])
def test_decoders_of_200_layers_train_at_the_default_rate(
    placement: str, initialization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty AdamW steps at 6e-4 end below the loss they began with, and every loss is finite."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # 200 layers' checks cost more than their steps
    torch.manual_seed(0)
    sizes = {"intermediate_size": 16, "num_attention_heads": 1, "positions": "none", "num_hidden_layers": 200}
    fields = {**FIELDS, **sizes, "norm_placement": placement}
    model = GnomonForCausalLM(GnomonConfig(**fields, initialization=initialization))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    pattern = torch.arange(8).repeat(2, 1)
    losses = []
    for _ in range(50):
        loss = model(input_ids=pattern, labels=pattern, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(map(math.isfinite, losses))
    assert statistics.fmean(losses[-5:]) < statistics.fmean(losses[:5]) - 0.5
