"""Recipes of sound: trained, saved, scored, shown, grown, and heard through transformers' pipelines."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'gnomon[speech]'")
pytest.importorskip("jiwer", reason="jiwer is not installed: pip install 'gnomon[speech]'")

from transformers import pipeline  # noqa: E402

from gnomon.cli.main import app  # noqa: E402
from gnomon.data.audio import read_sound  # noqa: E402
from gnomon.training.recipe import load_recipe  # noqa: E402
from gnomon.training.stages import run  # noqa: E402
from gnomon.training.tasks import find_task, task_of_fields  # noqa: E402
from tiny_runs import read_lines  # noqa: E402
from tiny_sounds import write_classes, write_speech, write_table  # noqa: E402

SOUND = {
    "num_mel_bins": 80,
    "subsampling_conv_channels": 16,
    "num_conv_pos_embeddings": 4,
    "projection": "linear",
    "norm_placement": "sub",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
PAIR = {name: value for name, value in SOUND.items() if name != "num_hidden_layers"} | {
    "encoder_layers": 1,
    "decoder_layers": 1,
}


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Twenty-seven clips of three words, one of 44.1 kHz in stereo, and three that cannot be used."""
    folder = tmp_path_factory.mktemp("speech")
    rows = write_speech(folder)
    soundfile.write(folder / "empty.wav", np.zeros(0, dtype=np.float32), 8000)
    (folder / "damaged.wav").write_bytes(b"RIFF no sound")
    rows += [("empty.wav", "low"), ("damaged.wav", "low"), ("missing.wav", "low")]
    write_table(folder, rows)
    return folder


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Ten clips of each of two classes, one longer than the other."""
    folder = tmp_path_factory.mktemp("classes")
    write_classes(folder)
    return folder


def recipe(task, source, model=None, **training):
    """A recipe of a task over a folder; `training` changes its only stage."""
    stage = {"max_steps": 6, "learning_rate": 0.01, "batch_size": 4, "warmup_steps": 2, "log_every": 1, **training}
    return {
        "task": task,
        "model": model or (PAIR if task == "speech-to-text" else SOUND),
        "data": {"source": str(source), "validation_percent": 20, "spec_augment": {"frequency_width": 4}},
        **({"tokenizer": {"kind": "char"}, "generation": {"max_new_tokens": 9}} if task == "speech-to-text" else {}),
        "stages": [{"training": stage}],
    }


def train(task, source, output, **options):
    """A finished run."""
    return run(load_recipe(recipe(task, source, **options)), output, progress=False)


@pytest.fixture(scope="module")
def recognizer(speech, tmp_path_factory):
    """A CTC model trained for a few seconds."""
    output = tmp_path_factory.mktemp("runs") / "ctc"
    train("speech-recognition", speech, output, max_steps=30)
    return output


def test_a_run_names_what_it_left_out_and_writes_its_measures(speech, recognizer, tmp_path, caplog) -> None:
    """Empty, damaged and missing files are named, and never stop a run; the ledger has both error rates."""
    row = read_lines(recognizer / "ledger.jsonl")[0]
    assert row["status"] == "finished"
    assert {"character_error_rate", "word_error_rate", "validation_loss"} <= set(row)
    assert row["train_loss"] < read_lines(recognizer / "metrics.jsonl")[0]["loss"]
    assert row["flops"] > 0
    find_task("speech-recognition").load(load_recipe(recipe("speech-recognition", speech)).data)
    message = caplog.records[-1].getMessage()
    assert "3 left out" in message
    for name in ("empty.wav", "damaged.wav", "missing.wav"):
        assert name in message


def test_the_pipeline_hears_what_the_evaluation_heard(speech, recognizer) -> None:
    """`pipeline` on a trained folder transcribes as the greedy decoding of the evaluation, a batch or one at a time."""
    hears = pipeline("automatic-speech-recognition", model=str(recognizer / "model"))
    assert hears.type == "ctc"
    task = find_task("speech-recognition")
    splits = task.load(load_recipe(recipe("speech-recognition", speech)).data)
    processor = task.load_processor(recognizer / "model", hears.model)
    rows = task.encode(splits.validation, processor, load_recipe(recipe("speech-recognition", speech)).data, [], False)
    expected = task.evaluate(hears.model, rows, processor, 4).transcripts
    sounds = [{"raw": read_sound(sound, 8000), "sampling_rate": 8000} for sound in rows.clips.sounds]
    assert tuple(heard["text"].strip() for heard in hears(sounds)) == expected
    assert any(expected)


def test_evaluate_prints_error_rates_and_writes_a_sheet(speech, recognizer, tmp_path) -> None:
    """The same numbers as the ledger's, the empty transcript's beside them, and a page with spectrograms."""
    sheet = tmp_path / "sheet.html"
    more = ["--source", str(speech), "--json", "--baselines", "--samples", str(sheet)]
    result = CliRunner().invoke(app, ["evaluate", str(recognizer / "model"), *more, "--split", "all"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout[result.stdout.index("{") :])
    assert found["clips"] == 27
    assert found["baselines"]["empty transcript"]["character_error_rate"] == 1.0
    page = sheet.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64") == 24
    assert "low mid" in page


def test_a_recognizer_grows_and_goes_on(speech, recognizer, tmp_path) -> None:
    """From its checkpoint, its own feature extractor and characters with it, exactly, at a higher width."""
    written = recipe("speech-recognition", speech, model={"checkpoint": str(recognizer / "model")})
    written["stages"][0]["growth"] = {"intermediate_size": 48}
    run(load_recipe(written), tmp_path / "grown", progress=False)
    growth = json.loads((tmp_path / "grown/growth-0.json").read_text(encoding="utf-8"))
    assert growth["exact"]
    for name in ("preprocessor_config.json", "tokenizer.json"):
        assert (tmp_path / "grown/model" / name).is_file()
    before, after = (read_lines(folder / "ledger.jsonl")[0] for folder in (recognizer, tmp_path / "grown"))
    assert after["parameters"] > before["parameters"]
    assert after["train_loss"] < read_lines(recognizer / "metrics.jsonl")[0]["loss"]


def test_sounds_are_classified_and_heard_by_the_pipeline(classes, tmp_path) -> None:
    """Trained, saved, and asked through `pipeline`, which names the classes; the majority class stands beside it."""
    train("audio-classification", classes, tmp_path / "run", max_steps=40)
    row = read_lines(tmp_path / "run/ledger.jsonl")[0]
    assert row["accuracy"] == 1.0
    asks = pipeline("audio-classification", model=str(tmp_path / "run/model"))
    for name in ("short", "long"):
        answer = asks(read_sound(classes / f"{name}/3.wav", 8000))
        assert answer[0]["label"] == name
    task = find_task("audio-classification")
    data = load_recipe(recipe("audio-classification", classes)).data
    splits = task.load(data)
    processor = task.load_processor(tmp_path / "run/model", asks.model)
    sides = [task.encode(side, processor, data, ["long", "short"], False) for side in (splits.train, splits.validation)]
    assert 0.0 < task.baselines(*sides)["majority class"]["accuracy"] < 1.0
    assert task.baselines(sides[0], sides[0])["nearest neighbor"] == {"accuracy": 1.0, "macro_f1": 1.0}


def test_a_decoder_learns_to_write_and_the_pipeline_knows_it(speech, tmp_path) -> None:
    """The encoder-decoder trains, is scored by its own writing, and is no CTC model to `pipeline`."""
    train("speech-to-text", speech, tmp_path / "run")
    row = read_lines(tmp_path / "run/ledger.jsonl")[0]
    assert np.isfinite(row["validation_loss"])
    assert row["character_error_rate"] > 0
    writes = pipeline("automatic-speech-recognition", model=str(tmp_path / "run/model"))
    assert writes.type == "seq2seq"
    assert type(writes.model).__name__ == "GnomonForSpeechSeq2Seq"
    text = writes({"raw": read_sound(speech / "0.wav", 8000), "sampling_rate": 8000}, max_new_tokens=9)["text"]
    assert isinstance(text, str)


def test_a_resumed_run_of_sounds_ends_as_one_that_never_stopped(speech, tmp_path) -> None:
    """SpecAugment's draws included: the same weights, bit by bit."""
    from safetensors.torch import load_file

    whole = recipe("speech-recognition", speech, max_steps=6, save_every=3)
    run(load_recipe(whole), tmp_path / "whole", progress=False)
    run(load_recipe(whole), tmp_path / "again", progress=False)
    for name in ("model", "ledger.jsonl"):
        target = tmp_path / "again" / name
        if target.is_dir():
            for file in target.iterdir():
                file.unlink()
            target.rmdir()
        else:
            target.unlink()
    newest = tmp_path / "again/stage-0/checkpoint-6"
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    run(load_recipe(whole), tmp_path / "again", resume=True, progress=False)
    first, second = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"hidden_size": 96, "is_decoder": False}}, "set model.num_mel_bins"),
        ({"model": {**SOUND, "num_mel_bins": 40}}, "the feature extractor makes 80"),
        ({"stages": [{"training": {"max_steps": 2, "label_smoothing": 0.1}}]}, "CTC has no one target to smooth"),
        ({"data": {"name": "prompts-en"}}, "gnomon data fetch prompts-en"),
        ({"tokenizer": {"kind": "byte"}}, "reads no text; remove it"),
    ],
)
def test_a_recipe_of_sound_that_does_not_fit_gets_one_sentence(speech, tmp_path, change, message) -> None:
    """Before anything is written."""
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(load_recipe({**recipe("speech-recognition", speech), **change}), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_fields_of_sound_name_their_task() -> None:
    """A vocabulary tells a recognizer from a classifier, two sides one that writes."""
    assert task_of_fields({"num_mel_bins": 80, "vocab_size": 30}) == "speech-recognition"
    assert task_of_fields({"num_mel_bins": 80}) == "audio-classification"
    assert task_of_fields({"num_mel_bins": 80, "encoder_layers": 1, "decoder_layers": 1}) == "speech-to-text"
