"""lm-evaluation-harness on our models: its own wrapper gives the numbers that a hand sum gives."""

import functools
import json
import math
from pathlib import Path

import pytest
import torch
import yaml

from gnomon.cli.errors import USER_ERROR, describe
from gnomon.data.packing import pack
from gnomon.data.tokenizers import build_tokenizer
from gnomon.evaluation.language_model import evaluate_language_model
from samples import language_model

pytest.importorskip("lm_eval", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

QUOTES = [
    ("To be, or", [" not to be", " nothing"], 0),
    ("What a piece of work is a", [" woman", " man"], 1),
    ("The rest is", [" noise", " silence"], 1),
    ("Brevity is the soul of", [" wit", " a long speech"], 0),
    ("Though this be madness, yet there is method in", ["'t", " all"], 0),
]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer({"kind": "byte"})


@pytest.fixture(scope="module")
def model(tokenizer):
    return language_model(vocab_size=len(tokenizer), max_position_embeddings=128, pad_token_id=tokenizer.pad_token_id)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """A folder with one task of multiple choice over a local file."""
    folder = tmp_path_factory.mktemp("tasks")
    lines = [json.dumps({"question": q, "choices": c, "answer": a}) for q, c, a in QUOTES]
    (folder / "quotes.jsonl").write_text("\n".join(lines))
    task = {
        "task": "quotes",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "quotes.jsonl")}},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
        "metadata": {"version": 1.0},
    }
    (folder / "quotes.yaml").write_text(yaml.safe_dump(task))
    return folder


@torch.no_grad()
def hand_sum(model, tokenizer, context: str, continuation: str) -> tuple[float, bool]:
    """The log probability of a continuation, from one forward pass of the row alone, and whether greedy finds it."""
    given, wanted = tokenizer(context)["input_ids"], tokenizer(continuation)["input_ids"]
    logs = model(input_ids=torch.tensor([given + wanted])).logits[0].log_softmax(-1)[len(given) - 1 : -1]
    targets = torch.tensor(wanted)
    return logs.gather(-1, targets[:, None]).sum().item(), bool((logs.argmax(-1) == targets).all())


def ask(harness, kind: str, arguments: list[tuple]) -> list:
    """What the harness answers to requests of a kind."""
    from lm_eval.api.instance import Instance

    requests = [Instance(kind, {}, argument, index) for index, argument in enumerate(arguments)]
    return getattr(harness, kind)(requests, disable_tqdm=True)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_loglikelihood_is_the_hand_sum_at_every_batch_size(model, tokenizer, batch_size: int) -> None:
    """Ten pairs of unequal lengths: one by one or four at a time, each is the sum over the row alone."""
    from gnomon.evaluation.harness import wrap

    pairs = [(question, choice) for question, choices, _ in QUOTES for choice in choices]
    found = ask(wrap(model, tokenizer, batch_size=batch_size), "loglikelihood", pairs)
    for (score, is_greedy), pair in zip(found, pairs, strict=True):
        expected, would_be_greedy = hand_sum(model, tokenizer, *pair)
        assert score == pytest.approx(expected, rel=1e-5)
        assert is_greedy == would_be_greedy


def test_left_padding_does_not_change_what_is_generated(model, tokenizer) -> None:
    """Four prompts of unequal lengths in one batch continue as each does alone."""
    from gnomon.evaluation.harness import wrap

    requests = [(question, {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}) for question, *_ in QUOTES[:4]]
    together, alone = (
        ask(wrap(model, tokenizer, batch_size=batch_size), "generate_until", requests) for batch_size in (4, 1)
    )
    assert together == alone
    assert len(set(together)) > 1


def test_rolling_counts_every_token_once(model, tokenizer) -> None:
    """Over a text of three windows the harness's sum is that of our own evaluation, less the end mark's share."""
    from gnomon.evaluation.harness import wrap

    text = " ".join(question for question, *_ in QUOTES)[:100]
    (score,) = ask(wrap(model, tokenizer), "loglikelihood_rolling", [(text,)])
    windows = pack({"text": text}, tokenizer, 128, allow_short=True)
    own = evaluate_language_model(model, windows)
    start = tokenizer.decode([tokenizer.bos_token_id])
    end, _ = hand_sum(model, _Plain(tokenizer), start + text, start)
    assert own.tokens == len(text) + 1
    assert -score == pytest.approx(own.loss * own.tokens + end, rel=1e-5)


class _Plain:
    """A tokenizer that reads the names of its special tokens as these tokens."""

    def __init__(self, tokenizer) -> None:
        self.encode = functools.partial(tokenizer.encode, split_special_tokens=False)

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}


def test_a_local_task_has_the_accuracy_of_the_likelier_choice(model, tokenizer, tasks: Path) -> None:
    """The questions come from a file, none from the network; the share of right answers is the hand sums' own."""
    from gnomon.evaluation.harness import evaluate_tasks

    (score,) = evaluate_tasks(model, tokenizer, ["quotes"], include_path=tasks)
    right = [
        max(range(len(choices)), key=lambda index: hand_sum(model, tokenizer, question, choices[index])[0]) == answer
        for question, choices, answer in QUOTES
    ]
    share = sum(right) / len(right)
    assert (score.task, score.metric, score.num_fewshot, score.examples) == ("quotes", "acc", 0, 5)
    assert score.value == pytest.approx(share)
    assert score.standard_error == pytest.approx(math.sqrt(share * (1 - share) / (len(right) - 1)))


def test_solved_examples_stand_before_the_question(model, tokenizer, tasks: Path, monkeypatch) -> None:
    """With two of them every context is three questions, the last unanswered, and the batch size changes nothing."""
    from lm_eval.models.huggingface import HFLM

    from gnomon.evaluation.harness import evaluate_tasks

    contexts, original = [], HFLM.loglikelihood
    monkeypatch.setattr(
        HFLM,
        "loglikelihood",
        lambda self, requests, **more: contexts.extend(r.args[0] for r in requests) or original(self, requests, **more),
    )
    scores = [
        evaluate_tasks(model, tokenizer, ["quotes"], num_fewshot=2, batch_size=size, include_path=tasks)
        for size in (1, 4)
    ]
    assert scores[0] == scores[1]
    assert scores[0][0].num_fewshot == 2
    questions = [question for question, *_ in QUOTES]
    assert len(contexts) == 2 * 10
    assert all(context.count("\n\n") == 2 and context.endswith(tuple(questions)) for context in contexts)


def test_an_unknown_task_is_one_sentence_with_the_nearest_name(model, tokenizer, tasks: Path, monkeypatch) -> None:
    """A misspelt task is the user's error, which ends a command with exit code 2; so is a folder that is not there."""
    from lm_eval import tasks as harness_tasks

    from gnomon.evaluation.harness import evaluate_tasks

    # The index of thousands of built-in tasks takes many seconds to make.
    local_only = functools.partial(harness_tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(harness_tasks, "TaskManager", local_only)
    with pytest.raises(ValueError, match="has no task 'quotse'; did you mean 'quotes'\\?") as caught:
        evaluate_tasks(model, tokenizer, ["quotse"], include_path=tasks)
    assert describe(caught.value) == (str(caught.value), USER_ERROR)
    with pytest.raises(FileNotFoundError, match="there is no folder nowhere"):
        evaluate_tasks(model, tokenizer, ["quotes"], include_path=Path("nowhere"))
    with pytest.raises(ValueError, match="num_fewshot must be at least 0; got -1"):
        evaluate_tasks(model, tokenizer, ["quotes"], num_fewshot=-1, include_path=tasks)


def test_the_command_prints_the_tasks_scores(model, tokenizer, tasks: Path, tmp_path: Path, capsys) -> None:
    """As JSON nothing but the document is on standard output, and it says what evaluate_tasks says."""
    from gnomon.cli.evaluate import evaluate
    from gnomon.evaluation.harness import evaluate_tasks

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    evaluate(tmp_path, tasks="quotes", include_path=tasks, num_fewshot=1, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    expected = evaluate_tasks(model, tokenizer, ["quotes"], num_fewshot=1, include_path=tasks)
    assert printed == {"checkpoint": str(tmp_path), "scores": [score.to_dict() for score in expected]}
    evaluate(tmp_path, tasks="quotes", include_path=tasks)
    assert "standard error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": "quotes", "data": "shakespeare"}, "one of --data NAME, --source FILE and --tasks"),
        ({}, "one of --data NAME, --source FILE and --tasks"),
        ({"data": "shakespeare", "num_fewshot": 2}, "--num-fewshot and --include-path belong to --tasks"),
    ],
)
def test_tasks_and_texts_exclude_each_other(options: dict, words: str) -> None:
    """Two things to score on, none, or an option of the other kind: one sentence says which may stand."""
    from gnomon.cli.evaluate import evaluate

    with pytest.raises(ValueError, match=words) as caught:
        evaluate(Path("nowhere"), **options)
    assert describe(caught.value)[1] == USER_ERROR
