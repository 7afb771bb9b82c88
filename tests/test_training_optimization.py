"""The learning rate's course, what decays, the order of the data, and gradients over several passes."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from gnomon import GnomonForCausalLM
from gnomon.data.packing import collate
from gnomon.training.optimization import EpochSampler, decayed_parameters, learning_rate_factor, steps_per_epoch
from gnomon.training.options import TrainingOptions
from gnomon.training.progress import Progress, StagePlan
from gnomon.training.tasks import find_task
from gnomon.training.trainer import StageTrainer
from samples import TINY, build, language_model


def course(**settings: Any) -> list[float]:
    """The factors of all steps."""
    return [learning_rate_factor(step, **settings) for step in range(settings["max_steps"])]


def test_the_warm_up_is_a_line_to_the_peak_and_the_cosine_meets_its_middle() -> None:
    """Step w is the first at the peak, half way down the cosine is the mean of peak and floor, no step is lost."""
    factors = course(max_steps=110, warmup_steps=10, floor=0.1)
    assert factors[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx((1 + 0.1) / 2)
    assert min(factors) > 0.1 - 1e-9
    assert factors[-1] == pytest.approx(0.1, abs=1e-3)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[10:]))


def test_linear_and_constant_courses_and_no_warm_up() -> None:
    """A linear course falls by equal parts, a constant one not at all, and without warm-up both start at the peak."""
    assert course(max_steps=4, warmup_steps=0, schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert course(max_steps=3, warmup_steps=0, schedule="constant") == [1.0, 1.0, 1.0]


def test_an_unset_warm_up_is_a_hundredth_of_the_stage() -> None:
    """The paper's 1% is taken where the recipe is silent, and a warm-up never swallows the stage."""
    silent = TrainingOptions(max_steps=2000)
    assert [silent.resolved_warmup_steps(steps) for steps in (9, 10, 2000)] == [0, 1, 20]
    assert TrainingOptions(epochs=1.0, warmup_steps=50).resolved_warmup_steps(8) == 7


def test_everything_decays_but_norms_biases_and_score_scales() -> None:
    """Tokens, matrices and embeddings shrink; gains, biases and a learned tau do not, whatever their names."""
    for variant in ("learned score scale", "linear with biases", "rms norm"):
        model = language_model(variant)
        decayed = set(decayed_parameters(model))
        kept = {name for name, _ in model.named_parameters() if name not in decayed}
        assert kept
        assert all(name.endswith((".bias", ".score_scale")) or "norm" in name or "residual" in name for name in kept)
    decayed = decayed_parameters(language_model("learned score scale"))
    assert {name.rsplit(".", 1)[-1] for name in decayed} == {"key_tokens", "value_tokens", "weight"}
    assert "model.embed_tokens.weight" in decayed
    assert "model.norm.weight" not in decayed


def test_an_epoch_has_every_sequence_once_in_an_order_of_its_own() -> None:
    """Each epoch is a permutation; seed, stage and epoch change it, and torch's own generator does not."""

    def order(seed: int = 0, stage: int = 0, epoch: int = 0) -> list[int]:
        sampler = EpochSampler(50, seed, stage)
        sampler.set_epoch(epoch)
        return list(sampler)

    torch.manual_seed(1)
    first = order()
    torch.manual_seed(2)
    assert order() == first
    assert sorted(first) == list(range(50))
    orders = [first, order(seed=1), order(stage=1), order(epoch=1)]
    assert len({tuple(each) for each in orders}) == 4


def test_steps_of_an_epoch_count_the_last_short_one() -> None:
    """11 sequences in batches of 2, three batches a step: six batches, two steps."""
    options = TrainingOptions(max_steps=1, batch_size=2, gradient_accumulation_steps=3)
    assert [steps_per_epoch(size, options) for size in (11, 12, 13)] == [2, 2, 3]


class _Gradients(TrainerCallback):
    """Keeps the gradients of every step before they are used."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def first_gradients(rows: list[Any], folder: Path, **training: Any) -> dict[str, Tensor]:
    """The gradients of one step of the stage trainer over these rows."""
    options = TrainingOptions(max_steps=1, warmup_steps=0, max_grad_norm=None, **training)
    keeper = _Gradients()
    trainer = StageTrainer(
        task=find_task("language-modeling"),
        model=build(GnomonForCausalLM, TINY, factor=1.0),
        options=options,
        plan=StagePlan(index=0, max_steps=1, seed=0, folder=folder, best_folder=folder / "best"),
        train_dataset=rows,
        collate=collate,
        tokenizer=SimpleNamespace(save_pretrained=lambda folder: None),
        evaluate=lambda model: SimpleNamespace(loss=1.0, perplexity=1.0, bits_per_byte=1.0),
        interrupted=lambda: False,
        progress=Progress(),
        callbacks=[keeper],
    )
    trainer.train()
    assert len(keeper.steps) == 1
    return keeper.steps[0]


def test_accumulated_gradients_do_not_depend_on_how_rows_are_split(tmp_path: Path) -> None:
    """Rows of 3, 9, 5 and 12 tokens give the same gradient as 1x4, 2x2 and 4x1: summed, then divided by all targets."""
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(64, (length,), generator=generator) for length in (3, 9, 5, 12)]
    rows = [{"input_ids": row, "labels": row.clone()} for row in ids]
    whole, halves, singles = (
        first_gradients(rows, tmp_path / str(size), batch_size=size, gradient_accumulation_steps=4 // size)
        for size in (4, 2, 1)
    )
    assert set(whole) == set(singles)
    for name, gradient in whole.items():
        torch.testing.assert_close(halves[name], gradient, atol=1e-6, rtol=0)
        torch.testing.assert_close(singles[name], gradient, atol=1e-6, rtol=0)
    model = build(GnomonForCausalLM, TINY, factor=1.0)
    targets = sum(len(row) - 1 for row in ids)
    total = sum(model(row[None], labels=row[None]).loss * (len(row) - 1) for row in ids)
    (total / targets).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(whole[name], parameter.grad, atol=1e-6, rtol=0)


def test_checkpointed_activations_give_the_same_gradients(tmp_path: Path) -> None:
    """Computing activations twice changes no gradient."""
    row = torch.randint(64, (12,), generator=torch.Generator().manual_seed(4))
    rows = [{"input_ids": row, "labels": row.clone()}]
    kept = first_gradients(rows, tmp_path / "kept", batch_size=1)
    twice = first_gradients(rows, tmp_path / "twice", batch_size=1, gradient_checkpointing=True)
    for name, gradient in kept.items():
        torch.testing.assert_close(twice[name], gradient, atol=1e-7, rtol=0)
