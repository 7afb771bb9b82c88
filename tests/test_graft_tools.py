"""Grafted models under transformers' tools and on the command line."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import gnomon
from gnomon.cli.main import main
from gnomon.data.tokenizers import build_tokenizer
from gnomon.growth.graft_layers import grafted_layers
from gnomon.growth.graft_targets import probe_for
from gnomon.growth.report import gap, probe_outputs
from test_graft import batch_for, build, moved


@dataclass
class Ended:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: Any, folder: Path) -> Iterator[Callable[..., Ended]]:
    """Runs `gnomon` as its entry point does, in this process, since importing transformers takes most of the time."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(folder)

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["gnomon", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of text and a tiny Llama with a byte tokenizer."""
    folder = tmp_path_factory.mktemp("graft")
    (folder / "page.txt").write_text("to be or not to be, that is the question\n" * 60)
    tokenizer = build_tokenizer({"kind": "byte"}, {})
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    hf.LlamaForCausalLM(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder


@pytest.mark.parametrize("sizes", [{"num_tokens": 4}, {"num_neurons": 4}], ids=["tokens", "neurons"])
def test_generation_with_a_cache_equals_generation_without(sizes: dict[str, int]) -> None:
    """A grafted decoder continues a prompt alike with a cache, without one, and with a static one."""
    model = build("LlamaForCausalLM")
    gnomon.graft(model, **sizes)
    moved(model)
    ids = torch.arange(6)[None]
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(ids, use_cache=False, **options)
    assert torch.equal(plain, model.generate(ids, **options))
    assert torch.equal(plain, model.generate(ids, cache_implementation="static", disable_compile=True, **options))
    assert not torch.equal(plain, build("LlamaForCausalLM").generate(ids, **options))


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    """Activations computed twice change no gradient of a graft, though all that comes before it is frozen."""
    found = []
    for checkpointing in (False, True):
        model = build("LlamaForCausalLM")
        gnomon.graft(model, num_tokens=4, num_neurons=4, seed=0)
        moved(model).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**batch_for(model), use_cache=False).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    assert all(grad.abs().max() > 0 for grad in found[0].values())
    assert all(torch.equal(grad, found[1][name]) for name, grad in found[0].items())


def test_a_half_precision_graft_keeps_tau_in_float32(tmp_path: Path) -> None:
    """On a bfloat16 base the tokens are bfloat16 and tau float32, in memory, through a file and after a cast."""
    model = build("BertForMaskedLM").bfloat16()
    assert gnomon.graft(model, num_tokens=7).exact
    moved(model)
    gnomon.save_graft(model, tmp_path / "graft")
    fresh = build("BertForMaskedLM").bfloat16()
    gnomon.load_graft(fresh, tmp_path / "graft")
    for _, layer in grafted_layers(fresh):
        assert layer.graft.key_tokens.dtype == torch.bfloat16
        assert layer.graft.score_scale.dtype == torch.float32
        assert float(layer.graft.score_scale) == pytest.approx(7**0.5, rel=1e-7)
    batch = probe_for(model)
    assert torch.equal(probe_outputs(model, batch), probe_outputs(fresh, batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(probe_outputs(fresh.float(), batch)).all()


def test_the_trainer_trains_saves_and_resumes_a_graft(tmp_path: Path) -> None:
    """Trainer's optimizer holds the graft alone, and a resumed run ends with the very weights of an unbroken one."""

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = (torch.arange(12) * (index + 1)) % 50
            return {"input_ids": ids, "labels": ids}

    def trainer(name: str, **options: Any) -> hf.Trainer:
        model = build("LlamaForCausalLM")
        gnomon.graft(model, num_tokens=4, num_neurons=4, seed=0)
        arguments = hf.TrainingArguments(
            output_dir=tmp_path / name,
            max_steps=4,
            save_steps=2,
            learning_rate=1e-2,
            per_device_train_batch_size=2,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            **options,
        )
        return hf.Trainer(model=model, args=arguments, train_dataset=Rows())

    whole = trainer("whole")
    whole.train()
    held = [p for group in whole.optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in whole.model.parameters() if p.requires_grad}
    resumed = trainer("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    first, second = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    base = build("LlamaForCausalLM").state_dict()
    assert all(torch.equal(value, first[name]) for name, value in base.items())


@pytest.mark.compile
def test_a_grafted_model_compiles_whole() -> None:
    """torch.compile traces a grafted model in one graph and gives the eager outputs."""
    model = build("LlamaForCausalLM")
    gnomon.graft(model, num_tokens=4, num_neurons=4)
    moved(model)
    ids = probe_for(model)["input_ids"]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert gap(model(ids).logits, compiled(ids).logits)[0] <= 5e-6


def test_the_command_trains_a_graft_that_evaluates_better(folder: Path, command: Any) -> None:
    """`gnomon graft --source` lowers the held-out loss, leaves the base alone, and writes what loads onto it."""
    before = (folder / "base" / "model.safetensors").read_bytes()
    result = command(
        *("graft", "base", "trained", "--tokens", 8, "--source", "page.txt", "--steps", 30, "--learning-rate", 0.02),
        *("--sequence-length", 32, "--elsewhere", "shakespeare", "--evaluation-sequences", 4, "--json"),
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["exact"]
    held_out = report["training"]["held_out"]
    assert set(held_out) == {"page.txt", "shakespeare"}
    assert held_out["page.txt"]["after"]["loss"] < held_out["page.txt"]["before"]["loss"] - 0.2
    assert (folder / "base" / "model.safetensors").read_bytes() == before
    model = hf.AutoModelForCausalLM.from_pretrained(folder / "base")
    loading = gnomon.load_graft(model, folder / "trained")
    assert len(loading.matched) == 21
    assert hf.AutoTokenizer.from_pretrained(folder / "trained")("be")["input_ids"] == [98, 101]
    told = command("evaluate", "trained", "--source", "page.txt", "--sequence-length", 32, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["loss"] < held_out["page.txt"]["before"]["loss"] - 0.2


def test_the_command_merges_a_graft_into_a_plain_checkpoint(folder: Path, command: Any) -> None:
    """`--merge` writes a wider checkpoint that transformers loads with no name missing or left over."""
    result = command("graft", "base", "wide", "--neurons", 8)
    assert result.returncode == 0, result.stderr
    result = command("graft", "base", "merged", "--merge", "wide", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["exact"]
    model, report = hf.AutoModelForCausalLM.from_pretrained(folder / "merged", output_loading_info=True)
    assert not any(report.values())
    assert model.config.intermediate_size == 56


def test_a_merged_checkpoint_is_scored_on_texts_and_tasks_as_the_base_is(folder: Path, command: Any) -> None:
    """`gnomon evaluate` reads the plain folder: new neurons that have not learned yet change no score."""
    pytest.importorskip("lm_eval", exc_type=ImportError)
    assert command("graft", "base", "fresh", "--neurons", 8).returncode == 0
    assert command("graft", "base", "whole", "--merge", "fresh").returncode == 0
    rows = [{"question": "to be or", "choices": [" not", " be", " the"], "answer": row % 3} for row in range(6)]
    (folder / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "words",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "words.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (folder / "words.yaml").write_text(json.dumps(task))
    told: dict[str, list[Any]] = {"base": [], "whole": []}
    for name, scores in told.items():
        for options in (("--tasks", "words", "--include-path", folder), ("--source", "page.txt")):
            result = command("evaluate", name, *options, "--json")
            assert result.returncode == 0, result.stderr
            scores.append(json.loads(result.stdout))
    (asked, read), (asked_base, read_base) = told["whole"], told["base"]
    assert asked["scores"] == asked_base["scores"]
    assert asked["scores"][0]["value"] == pytest.approx(1 / 3)
    assert read["loss"] == pytest.approx(read_base["loss"], rel=1e-5)


def test_the_example_of_the_readme_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What the README says about grafts is executed: exact, larger by 16 tokens a layer, and every name matched."""
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(folder)
    exec(compile(example, "README.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.split()[0] == "True"
    assert int(first.split()[2]) - int(first.split()[1]) == 16 * (4 * (32 + 32) + 3 * (32 + 48))
    assert second == "matched 21, missing 0, unexpected 0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("base", "out"), "name --tokens"),
        (("base", "out", "--tokens", 4, "--elsewhere", "austen"), "--data, too"),
        (("base", "base", "--tokens", 4), "exists"),
        (("base", "out", "--tokens", 4, "--target", "up_projection"), "matches none"),
        (("base", "out", "--tokens", 4, "--key-std", 0), "no gradient, ever"),
        (("nowhere", "out", "--tokens", 4), "no checkpoint"),
        (("base", "out", "--tokens", 4, "--data", "shakespeare", "--source", "page.txt"), "not by both"),
        (("base", "out", "--tokens", 4, "--merge", "base"), "leave --tokens"),
        (("base", "out", "--tokens", 4, "--data", "shakespeare", "--sequence-length", 9999), "at most"),
        (("base", "out", "--merge", "base"), "graft.json"),
    ],
)
def test_bad_input_gets_one_sentence_and_leaves_nothing(
    folder: Path, command: Any, arguments: tuple, said: str
) -> None:
    """Exit code 2, one line on stderr, no output folder."""
    result = command("graft", *arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not (folder / "out").exists()


class _Trap:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_base_with_code_in_its_weights_is_refused_and_nothing_runs(folder: Path, command: Any) -> None:
    """A `.bin` of weights and one object more: an error, no folder made by it, and no graft."""
    weights = hf.AutoModelForCausalLM.from_pretrained(folder / "base").state_dict()
    (folder / "trap").mkdir()
    (folder / "trap" / "config.json").write_bytes((folder / "base" / "config.json").read_bytes())
    torch.save({**weights, "trap": _Trap(folder / "sprung")}, folder / "trap" / "pytorch_model.bin")
    result = command("graft", "trap", "out", "--tokens", 4)
    assert result.returncode == 2, result.stderr
    assert "trap hold more than tensors" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (folder / "sprung").exists()
    assert not (folder / "out").exists()
    torch.load(folder / "trap" / "pytorch_model.bin", weights_only=False)
    assert (folder / "sprung").exists(), "the trap is none"


def test_a_base_of_other_shapes_than_its_config_says_is_refused(folder: Path, command: Any) -> None:
    """A config.json of another width: one sentence, and no graft."""
    shutil.copytree(folder / "base", folder / "unfit")
    config = folder / "unfit" / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "vocab_size": fields["vocab_size"] + 1}))
    result = command("graft", "unfit", "out", "--tokens", 4)
    assert result.returncode == 2, result.stderr
    assert "unfit have other shapes than its config.json says" in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not (folder / "out").exists()


def test_a_gnomon_checkpoint_is_sent_to_grow(folder: Path, command: Any) -> None:
    """The command line does not graft what grows by itself."""
    config = gnomon.preset("tokenformer-tiny")
    gnomon.GnomonForCausalLM(config).save_pretrained(folder / "own")
    result = command("graft", "own", "out", "--tokens", 4)
    assert result.returncode == 2
    assert "use gnomon grow" in result.stderr
