"""The telephone prompts of five languages: what is copied of their packages, and which are held out."""

import csv
import gzip
import wave
from collections import Counter

import numpy as np
import pytest

from gnomon.data.audio_classes import load_audio_classes
from gnomon.data.prompts import (
    LANGUAGES,
    TRANSCRIPTS,
    count_clips,
    prepare_languages,
    prepare_prompts,
    read_listing,
    split_prompts,
)

SAID = {"en": "say", "es": "di", "fr": "dis", "it": "dica", "ru": "скажите"}


def write_wave(file, seconds=0.25):
    """A noise at 8 kHz, written without any library of sounds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(len(file.name)).normal(0, 3000, round(8000 * seconds)).astype("<i2")
    with wave.open(str(file), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(samples.tobytes())


def write_package(unpacked, code, lines, items):
    """A language's listing and clips, where its packages put them."""
    folder = unpacked / f"usr/share/doc/asterisk-core-sounds-{code}"
    folder.mkdir(parents=True)
    (folder / f"core-sounds-{code}.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode("utf-8-sig")))
    for item in items:
        write_wave(unpacked / f"usr/share/asterisk/sounds/{code}_XX_f_Voice/{item}.wav")


def read_rows(folder):
    """The table of prepared clips."""
    with (folder / TRANSCRIPTS).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture
def unpacked(tmp_path):
    """Packages with a few clips, of which some are noises, not listed, listed twice, or missing."""
    for code, word in SAID.items():
        lines = ["; a comment: with a colon", f"hello: {word}: 1", "hello: another", "digits/1: 1", "gone: nothing", ""]
        lines += ["beep: un suono beep" if code == "it" else "beep: [a tone]", "silent:", "tones:(tones)"]
        write_package(tmp_path / "unpacked", code, lines, ["hello", "digits/1", "beep", "tones", "silent", "unlisted"])
    return tmp_path / "unpacked"


def test_prepared_languages_hold_what_is_spoken_and_listed(unpacked, tmp_path):
    """Noises go by either listing, English or their own; the first of two lines counts; each clip has its language."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    prepare_languages(unpacked, folder)
    rows = read_rows(folder)
    assert [row["file"] for row in rows] == [
        f"{language}/{item}.wav" for language in LANGUAGES.values() for item in ("hello", "digits/1")
    ]
    assert rows[6] == {"file": "Russian/hello.wav", "label": "Russian", "item": "hello", "text": "скажите: 1"}
    assert count_clips(folder) == {"clips": 10, "seconds": round(10 * 0.25)}
    assert len(list(folder.glob("*/**/*.wav"))) == 10


def test_prepared_english_is_one_folder_without_classes(unpacked, tmp_path):
    """The set of speech has the English clips alone, under their own names."""
    prepare_prompts(unpacked, tmp_path)
    assert read_rows(tmp_path) == [{"file": "hello.wav", "text": "say: 1"}, {"file": "digits/1.wav", "text": "1"}]
    assert read_listing(unpacked, "en")["tones"] == "(tones)"


def test_split_keeps_a_prompt_and_its_words_on_one_side():
    """Every language holds the same prompts out; other prompts with a held-out one's words are on neither side."""
    items = [*(f"vm-{number}" for number in range(200)), "digits/1", "digits/2"] * 2
    said = [(row // 202, f"words {row % 202 % 150}") for row in range(404)]
    train, held = split_prompts(items, said)
    assert {row - 202 for row in held if row >= 202} == {row for row in held if row < 202}
    assert 20 < len(held) < 60
    assert not {said[row] for row in train} & {said[row] for row in held}
    assert {items[row] for row in train} >= {"digits/1", "digits/2"}
    assert 0 < 404 - len(train) - len(held) < 50
    one_language, _ = split_prompts(items[:202], said[:202])
    assert one_language == [row for row in train if row < 202]


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """A stand-in for the fetched prompts: forty prompts in five languages, one of them long."""
    pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'gnomon[speech]'")
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path))
    root = tmp_path / "prompts-languages"
    rows = [
        (f"{language}/vm-{number}.wav", language, f"vm-{number}", f"{SAID[code]} {number}")
        for code, language in LANGUAGES.items()
        for number in range(40)
    ]
    for file, *_ in rows:
        write_wave(root / file, 2.0 if file == "Italian/vm-7.wav" else 0.25)
    with (root / TRANSCRIPTS).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("file", "label", "item", "text"), *rows])
    return root


def test_classes_are_the_languages_and_no_prompt_is_on_both_sides(fetched):
    """Five classes; what is held out is so in all of them; long clips are named."""
    splits = load_audio_classes(name="prompts-languages", longest_seconds=1)
    assert splits.classes == ("English", "French", "Italian", "Russian", "Spanish")
    held = Counter(splits.validation.clips.groups)
    assert set(held.values()) == {5}
    assert not set(held) & set(splits.train.clips.groups)
    assert len(splits.train) + len(splits.validation) == 199
    assert splits.left_out.reasons == {"Italian/vm-7.wav": "it lasts 2.0 s, longer than 1 s"}
    assert splits.train.texts[0] == splits.classes[splits.train.labels[0]] == "English"
    assert splits.describe().startswith("prompts-languages: Telephone prompts in five languages")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a name of the catalog or a source, not neither"),
        ({"name": "prompts-languages", "source": "sounds"}, "not both"),
        ({"name": "prompts-en"}, "holds speech, not sounds with classes: use prompts-languages"),
        ({"name": "prompts-languages", "validation_percent": 5}, r"data\.validation_percent has no meaning here"),
        ({"name": "prompts-languages", "label_column": "item"}, r"data\.label_column has no meaning here"),
    ],
)
def test_a_named_set_of_sounds_is_read_as_it_is(options, message):
    """A set of another kind, or an option that would split or read it otherwise, gets a sentence."""
    with pytest.raises(ValueError, match=message):
        load_audio_classes(**options)


def test_unfetched_languages_name_the_command(tmp_path, monkeypatch):
    """Without the data set the sentence says how to fetch it."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="run gnomon data fetch prompts-languages"):
        load_audio_classes(name="prompts-languages")
