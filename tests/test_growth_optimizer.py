"""The optimizer carried across a growth, rules for rows, layers inserted, and the way back."""

import copy

import pytest
import torch

from gnomon import grow
from gnomon.growth.depth import insert_layers
from gnomon.growth.optimizer import grow_parameter
from gnomon.growth.rows import RowRule, RowUpdates
from gnomon.growth.shrink import shrink
from test_growth_tokens import LARGER, build, ids, train

SMALLER = {"num_attention_tokens": 16, "num_output_tokens": 16, "num_feed_forward_tokens": 24}
OPTIMIZERS = [
    lambda p: torch.optim.AdamW(p, lr=1e-3),
    lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    lambda p: torch.optim.RMSprop(p, lr=1e-4),
    lambda p: torch.optim.Adagrad(p, lr=1e-3),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["adamw", "amsgrad", "sgd", "rmsprop", "adagrad"])
def test_state_keeps_old_rows_and_gets_zeros_for_new_ones(make: object) -> None:
    """Whatever the optimizer, each state tensor of a parameter's shape is padded and the next step runs."""
    model = build()
    optimizer = make(model.parameters())
    train(model, optimizer, 3)
    parameter = model.model.layers[0].feed_forward.key_tokens
    before = {key: copy.deepcopy(value) for key, value in optimizer.state[parameter].items()}
    grow(model, optimizer=optimizer, seed=1, **LARGER)
    assert model.model.layers[0].feed_forward.key_tokens is parameter
    for key, value in optimizer.state[parameter].items():
        if torch.is_tensor(value) and value.numel() > 1:
            assert torch.equal(value[:24], before[key])
            assert not value[24:].any()
    assert train(model, optimizer, 2) < 10


def test_the_loss_moves_little_over_growth_and_first_step() -> None:
    """With carried state the loss moves by under 1% over growth and a step; the official growth moves it more."""
    moved = {}
    for init in ("exact", "replicate", "reference"):
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
        before = train(model, optimizer, 20)
        grow(model, init=init, optimizer=optimizer, seed=1, **LARGER)
        grown = float(model(input_ids=ids(), labels=ids()).loss.detach())
        train(model, optimizer)
        stepped = float(model(input_ids=ids(), labels=ids()).loss.detach())
        moved[init] = max(abs(grown / before - 1), abs(stepped / before - 1))
    assert moved["exact"] < 0.01
    assert moved["replicate"] < 0.01
    assert moved["reference"] > 0.01


def test_an_optimizer_of_another_model_or_with_state_that_cannot_grow_is_refused() -> None:
    """Both refusals name the reason, and the second the state and the parameter."""
    model, other = build(), build()
    with pytest.raises(ValueError, match="no parameter of this model"):
        grow(model, optimizer=torch.optim.AdamW(other.parameters()), **LARGER)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    train(model, optimizer)
    with pytest.raises(ValueError, match=r"row_var of .*key_tokens"):
        grow(model, optimizer=optimizer, **LARGER)


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_new_rows_move_as_under_a_fresh_optimizer(beta2: float) -> None:
    """With their own count corrected, new rows of a warm AdamW follow the rows of a fresh one."""
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(4, 3))
    options = {"lr": 0.01, "betas": (0.9, beta2), "weight_decay": 0.1}
    warm = torch.optim.AdamW([parameter], **options)
    for _ in range(50):
        parameter.grad = torch.randn(4, 3)
        warm.step()
    rows = torch.randn(2, 3)
    grow_parameter(parameter, torch.cat((parameter.data, rows)), torch.tensor([0, 1, 2, 3, -1, -1]), optimizer=warm)
    alone = torch.nn.Parameter(rows.clone())
    fresh = torch.optim.AdamW([alone], **options)
    RowUpdates(warm).add("parameter", parameter, RowRule(old_rows=4, born=50.0))
    for _ in range(10):
        parameter.grad = torch.randn(6, 3)
        alone.grad = parameter.grad[4:].clone()
        warm.step()
        fresh.step()
    torch.testing.assert_close(parameter.data[4:], alone.data, rtol=0, atol=2e-6)


def test_new_rows_warm_up_apart_from_old_ones() -> None:
    """Over warmup_steps the new rows' updates rise linearly to the whole, while the old rows move as ever."""
    moved = {}
    for warmup_steps in (0, 4):
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(4, 3))
        optimizer = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.0)
        parameter.grad = torch.ones(4, 3)
        optimizer.step()
        RowUpdates(optimizer).add("p", parameter, RowRule(2, warmup_steps=warmup_steps, warmup_from=1.0))
        steps = []
        for _ in range(5):
            before = parameter.detach().clone()
            parameter.grad = torch.ones(4, 3)
            optimizer.step()
            steps.append((parameter.detach() - before).abs().mean(dim=1))
        moved[warmup_steps] = torch.stack(steps)
    ratio = moved[4] / moved[0]
    torch.testing.assert_close(ratio[:, :2], torch.ones(5, 2))
    torch.testing.assert_close(ratio[:, 2], torch.tensor([0.25, 0.5, 0.75, 1.0, 1.0]), rtol=1e-4, atol=0)


def test_frozen_rows_stay_bitwise_equal_and_rates_scale_updates() -> None:
    """10 AdamW steps with decay and warm moments leave frozen rows bitwise equal; half a rate is half an update."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    train(model, optimizer, 3)
    grow(model, optimizer=optimizer, seed=1, **LARGER)
    rules = RowUpdates(optimizer)
    parameter = model.model.layers[0].feed_forward.key_tokens
    rules.add("model.layers.0.feed_forward.key_tokens", parameter, RowRule(old_rows=24, old_rate=0.0, new_rate=0.5))
    saved = rules.state_dict()
    before = parameter.detach().clone()
    train(model, optimizer, 10)
    assert torch.equal(parameter[:24], before[:24])
    assert (parameter[24:] != before[24:]).all()
    rules.detach()
    again = RowUpdates(optimizer)
    again.load_state_dict(saved, model)
    middle = parameter.detach().clone()
    train(model, optimizer)
    assert torch.equal(parameter[:24], middle[:24])


@pytest.mark.parametrize("fields", [{}, {"num_output_tokens": [3, 4]}], ids=["uniform", "per-layer"])
def test_inserted_layers_change_nothing_and_learn(fields: dict) -> None:
    """Identity blocks leave the logits as they are, join the optimizer, and have gradients everywhere by step two."""
    model = build(**fields)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer)
    before = model(input_ids=ids()).logits
    report = insert_layers(model, num_hidden_layers=4, positions=[0, 1], optimizer=optimizer, seed=0)
    assert report.exact
    torch.testing.assert_close(model(input_ids=ids()).logits, before, rtol=0, atol=1e-6)
    assert [layer.attention.layer_index for layer in model.model.layers] == [0, 1, 2, 3]
    train(model, optimizer, 2)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    generated = model.generate(ids()[:1], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert generated.shape == (1, 15)


def test_dropping_what_was_grown_gives_the_model_back_bit_for_bit() -> None:
    """Grow by m, then drop: parameters, tau, config and optimizer state are the original ones."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 2)
    state, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    for importance in ("contribution", "last"):
        grow(model, optimizer=optimizer, seed=1, **LARGER)
        report = shrink(model, importance=importance, optimizer=optimizer, **SMALLER)
        assert report.exact
        assert model.config.to_dict() == config
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
        for index, values in optimizer.state_dict()["state"].items():
            assert all(torch.equal(value, moments[index][key]) for key, value in values.items())


def test_shrinking_by_contribution_loses_less_than_dropping_the_last() -> None:
    """Where tokens differ in importance, dropping the least important moves the outputs less."""
    gaps = {}
    for importance in ("contribution", "last"):
        model = build()
        for parameter in (
            model.model.layers[0].feed_forward.value_tokens,
            model.model.layers[1].attention.value.value_tokens,
        ):
            parameter.data[: len(parameter) // 2] *= 0.01
        report = shrink(model, importance=importance, probe={"input_ids": ids()}, num_feed_forward_tokens=12)
        assert not report.exact
        gaps[importance] = report.gap_relative
    assert gaps["contribution"] < gaps["last"]
