"""The tasks of text: one table, the right loss however a step is split, runs that resume, and clear refusals."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import gnomon
from gnomon.data.packing import collate
from gnomon.data.translation import collate_pairs
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe, TrainingOptions
from gnomon.training.preparation import load_checkpoint, prepare
from gnomon.training.progress import Progress, StagePlan
from gnomon.training.recipe import load_recipe
from gnomon.training.tasks import TASKS, find_task, task_of_fields
from gnomon.training.trainer import StageTrainer
from samples import build
from test_training_optimization import _Gradients
from tiny_runs import read_lines
from tiny_tasks import ENCODER, PAIR, task_recipe, write_rows

TINY_ENCODER = {**ENCODER, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64}
TINY_PAIR = {**PAIR, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64, "decoder_start_token_id": 1}
LENGTHS = (3, 9, 5, 12)


def batches_of(task: str) -> tuple[Any, list[dict[str, Tensor]], Any]:
    """A model, four rows of 3, 9, 5 and 12 tokens, and what makes a batch of them."""
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(2, 64, (length,), generator=generator) for length in LENGTHS]
    if task == "masked-language-modeling":
        rows = []
        for number, row in enumerate(ids):
            hidden = torch.arange(len(row)) % (number + 2) == 0  # another share of targets in every row
            rows.append({"input_ids": row.masked_fill(hidden, 0), "labels": row.masked_fill(~hidden, -100)})
        return build(gnomon.GnomonForMaskedLM, TINY_ENCODER, factor=1.0), rows, collate
    rows = [{"input_ids": row, "labels": other} for row, other in zip(ids, reversed(ids), strict=True)]
    model = build(gnomon.GnomonForSeq2SeqLM, TINY_PAIR, factor=1.0)
    return model, rows, lambda chosen: collate_pairs(chosen, pad_token_id=0, start_token_id=1)


def gradients(task: str, folder: Path, batch_size: int, **training: Any) -> dict[str, Tensor]:
    """The gradients of one step over the four rows, in micro-batches of that size."""
    model, rows, collator = batches_of(task)
    options = TrainingOptions(
        max_steps=1,
        warmup_steps=0,
        max_grad_norm=None,
        batch_size=batch_size,
        gradient_accumulation_steps=4 // batch_size,
        **training,
    )
    keeper = _Gradients()
    trainer = StageTrainer(
        task=find_task(task),
        model=model,
        options=options,
        plan=StagePlan(index=0, max_steps=1, seed=0, folder=folder, best_folder=folder / "best"),
        train_dataset=rows,
        collate=collator,
        tokenizer=None,
        evaluate=lambda model: SimpleNamespace(loss=1.0, **dict.fromkeys(find_task(task).measures, 0.0)),
        interrupted=lambda: False,
        progress=Progress(),
        callbacks=[keeper],
    )
    trainer.train()
    return keeper.steps[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("task", ["masked-language-modeling", "translation"])
def test_accumulated_gradients_weigh_by_targets(task: str, smoothing: float, tmp_path: Path) -> None:
    """Rows with 3 to 12 tokens give one gradient as 1x4, 2x2 and 4x1, with and without label smoothing."""
    whole, halves, singles = (
        gradients(task, tmp_path / str(size), size, label_smoothing=smoothing) for size in (4, 2, 1)
    )
    assert whole.keys() == halves.keys() == singles.keys()
    for name, expected in whole.items():
        assert torch.allclose(halves[name], expected, atol=1e-6, rtol=1e-5), name
        assert torch.allclose(singles[name], expected, atol=1e-6, rtol=1e-5), name


@pytest.mark.parametrize("task", ["masked-language-modeling", "translation"])
def test_a_mean_of_micro_batches_would_not_do(task: str) -> None:
    """The twin of the test above: averaging each row's own mean gives another gradient, so that test can fail."""
    model, rows, collator = batches_of(task)
    find = find_task(task).loss
    whole = collator(rows)
    find(model, whole, (whole["labels"] != -100).sum(), 0.0).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row in rows:
        batch = collator([row])
        (find(model, batch, (batch["labels"] != -100).sum(), 0.0) / len(rows)).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert max(float((found[name] - grad).abs().max()) for name, grad in expected.items()) > 1e-3


def test_the_table_names_public_heads_and_the_recipes_words() -> None:
    """Every task that a recipe may name has an entry, a module with a `TASK`, and a public model class."""
    words = {value for kind in get_args(Recipe.model_fields["task"].annotation) for value in get_args(kind)}
    assert words == set(TASKS)
    for name, entry in TASKS.items():
        assert entry.head in gnomon.__all__, name
        assert set(entry.needs) | set(entry.reads) <= set(DataOptions.model_fields)


def test_a_model_says_what_it_is_for() -> None:
    """Without a task in the recipe an encoder masks, an encoder-decoder translates, anything else predicts."""
    assert task_of_fields({"is_decoder": False}) == "masked-language-modeling"
    assert task_of_fields({"encoder_layers": 2, "decoder_layers": 1}) == "translation"
    assert task_of_fields({"num_hidden_layers": 2}) == "language-modeling"
    assert load_recipe("demo").task == "language-modeling"


@pytest.mark.parametrize(
    "task", [name for name in TASKS if name in ("masked-language-modeling", "text-classification", "translation")]
)
def test_a_task_trains_and_scores_by_its_own_measures(task: str, tmp_path: Path) -> None:
    """A few steps end in a ledger with the task's measures, a figure, and a model that loads as its own class."""
    recipe = task_recipe(task, write_rows(tmp_path), evaluate_every=2, evaluation_sequences=2)
    result = gnomon.train(recipe, tmp_path / "run", progress=False)
    (row,) = result.ledger
    assert row["status"] == "finished"
    assert row["parameters"] > row["non_embedding_parameters"] > 0
    assert row["flops"] > 0
    for measure in find_task(task).measures:
        assert isinstance(row[measure], float)
    scored = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "validation_loss" in line]
    assert len(scored) == 2
    assert set(find_task(task).measures) <= set(scored[0])
    assert type(load_checkpoint(tmp_path / "run" / "model")).__name__ == TASKS[task].head
    assert (tmp_path / "run" / "figures" / "loss.svg").is_file()


def test_a_masked_run_continues_with_the_masks_it_would_have_seen(tmp_path: Path) -> None:
    """Three steps, a new start from their checkpoint and three more give the weights of six, bit by bit."""
    recipe = task_recipe(
        "masked-language-modeling", write_rows(tmp_path), max_steps=6, save_every=3, gradient_accumulation_steps=2
    )
    recipe["model"] = {**recipe["model"], "hidden_dropout": 0.1}
    gnomon.train(recipe, tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for part in ("stage-0/checkpoint-6", "model", "figures"):
        shutil.rmtree(tmp_path / "cut" / part)
    (tmp_path / "cut" / "ledger.jsonl").unlink()
    gnomon.train(recipe, tmp_path / "cut", resume=True, progress=False)
    whole, cut = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_fine_tuning_keeps_the_backbone_and_starts_a_head(tmp_path: Path) -> None:
    """A classifier made of a masked model's checkpoint has its weights, its tokenizer and a label for every class."""
    file = write_rows(tmp_path)
    gnomon.train(task_recipe("masked-language-modeling", file, max_steps=2), tmp_path / "encoder", progress=False)
    recipe = task_recipe("text-classification", file) | {"model": {"checkpoint": str(tmp_path / "encoder" / "model")}}
    del recipe["tokenizer"]
    prepared = prepare(load_recipe(recipe))
    encoder = load_file(tmp_path / "encoder" / "model" / "model.safetensors")
    kept = {name: tensor for name, tensor in prepared.model.state_dict().items() if name.startswith("model.")}
    assert all(torch.equal(tensor, encoder[name]) for name, tensor in kept.items())
    assert prepared.model.config.id2label == {0: "big", 1: "small"}
    assert "mask_token" in prepared.processor.special_tokens_map
    again = prepare(load_recipe(recipe)).model.classifier.weight
    assert torch.equal(again, prepared.model.classifier.weight)


def test_a_backbone_with_a_hole_is_refused(tmp_path: Path) -> None:
    """A new head may be missing from a checkpoint, but no tensor of the backbone."""
    from safetensors.torch import save_file

    file = write_rows(tmp_path)
    gnomon.train(task_recipe("masked-language-modeling", file, max_steps=2), tmp_path / "run", progress=False)
    weights = tmp_path / "run" / "model" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.0.attention.query.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks tensor model\.layers\.0\.attention\.query\.weight"):
        load_checkpoint(tmp_path / "run" / "model", "GnomonForSequenceClassification", num_labels=2)


def test_rows_with_an_empty_side_are_counted_and_left_out(tmp_path: Path) -> None:
    """Empty sources and targets train nothing and are counted in the ledger; nothing but empty ones is an error."""
    more = [{"text": "", "de": "nichts", "label": "big"}, {"text": "a void", "de": "  ", "label": "small"}]
    recipe = task_recipe("translation", write_rows(tmp_path, more * 3), max_steps=1, warmup_steps=0)
    result = gnomon.train(recipe, tmp_path / "run", progress=False)
    prepared = prepare(load_recipe(recipe)).stages[0]
    assert prepared.train.num_skipped + prepared.validation.num_skipped == 6
    assert result.ledger[0]["skipped_sequences"] == prepared.train.num_skipped > 0
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": "", "de": "a"}\n{"text": "b", "de": ""}\n')
    recipe["data"] |= {"source": str(empty)}
    with pytest.raises(ValueError, match=r"none of the \d+ pairs has a source and a target: see data\.source_column"):
        prepare(load_recipe(recipe))


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("translation", {"data.target_column": None}, r"data\.target_column is missing, and task translation needs it"),
        ("language-modeling", {"data.label_column": "x"}, r"data\.label_column is 'x', which task .* does not read"),
        ("text-classification", {"generation": {"num_beams": 2}}, r"generation is given, but task text-classification"),
        ("masked-language-modeling", {"data.mask_probability": 1.5}, r"data\.mask_probability must be below 1"),
        ("translation", {"task": "dancing"}, r"task must be one of 'language-modeling', .* got the text 'dancing'"),
        ("translation", {"stages.0.training.label_smoothing": 1.0}, r"label_smoothing must be below 1"),
        ("text-classification", {"data.sequence_length": None}, r"data\.sequence_length is missing"),
    ],
)
def test_what_does_not_fit_a_task_gets_one_sentence(
    task: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Keys that a task does not read, keys that it lacks, and values out of range are refused with the remedy."""
    import json

    changes = [f"{key}={json.dumps(value)}" for key, value in change.items()]
    with pytest.raises(ValueError, match=message):
        load_recipe(task_recipe(task, write_rows(tmp_path)), changes)


def test_a_head_that_looks_the_wrong_way_is_refused(tmp_path: Path) -> None:
    """A masked language model of a decoder, and a translation without two stacks, are told what they need."""
    file = write_rows(tmp_path)
    recipe = task_recipe("masked-language-modeling", file)
    recipe["model"] = {**recipe["model"], "is_decoder": True}
    with pytest.raises(ValueError, match="needs is_decoder: false"):
        prepare(load_recipe(recipe))
    recipe = task_recipe("translation", file) | {"model": ENCODER}
    with pytest.raises(ValueError, match="needs encoder_layers and decoder_layers"):
        prepare(load_recipe(recipe))
