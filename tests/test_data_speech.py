"""Speech: what is read, converted, held out, left out and refused, and the rows and batches made of it."""

import csv

import numpy as np
import pytest
import torch

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'gnomon[speech]'")

from gnomon.data.audio import build_feature_extractor, read_header, read_sound  # noqa: E402
from gnomon.data.audio_classes import load_audio_classes  # noqa: E402
from gnomon.data.augmentation import SpecAugment  # noqa: E402
from gnomon.data.speech import load_speech  # noqa: E402
from gnomon.data.speech_rows import build_ctc_tokenizer, extract_features, mean_filterbank, required_frames  # noqa: E402
from gnomon.data.splitting import hold_out_groups  # noqa: E402
from gnomon.data.transcripts import normalize_transcript, spell_number  # noqa: E402


def tone(seconds=0.5, rate=8000, pitch=440.0, channels=1):
    """A sine, of several equal channels if asked."""
    wave = 0.5 * np.sin(2 * np.pi * pitch * np.arange(round(seconds * rate)) / rate)
    return np.repeat(wave[:, None], channels, axis=1).astype(np.float32)


def save(file, samples=None, rate=8000):
    """A sound file of any kind."""
    file.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(file, tone() if samples is None else samples, rate)
    return file


def write_table(folder, rows, name="transcripts.csv", columns=("file", "text")):
    """A table of transcripts."""
    with (folder / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if name.endswith("tsv") else ",").writerows([columns, *rows])


WORDS = ["one two", "Two, three!", "four", "five six", "seven", "eight", "nine", "ten", "a b", "yes"]


@pytest.fixture
def folder(tmp_path):
    """Ten clips with their transcripts."""
    for number in range(10):
        save(tmp_path / f"talk/{number}.wav", tone(pitch=200 + 40 * number))
    write_table(tmp_path / "talk", [(f"{number}.wav", text) for number, text in enumerate(WORDS)])
    return tmp_path / "talk"


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Press 1 to mute, 2 to exit.", "press one to mute two to exit"),
        ("... Letters of your party's first or last name.", "letters of your party's first or last name"),
        ("dial 500", "dial five hundred"),
        (
            "1,234,567 and 1009",
            "one million two hundred thirty four thousand five hundred sixty seven and one thousand nine",
        ),
        ("H.323, 3D, iax2", "h three two three three d iax two"),
        ("007 after 10", "zero zero seven after ten"),
        ("press * or # & wait (tone) <beep>", "press star or pound and wait"),
        ("dash [-]", "dash"),
        ("It\u2019s o'clock, 'quoted'", "it's o'clock quoted"),
        ("Über naïve", "über naïve"),
        ("", ""),
    ],
)
def test_transcripts_are_written_as_they_are_spoken(text, spoken):
    """Lower case, figures as words, remarks and punctuation left out, apostrophes inside words kept."""
    assert normalize_transcript(text, "en") == spoken
    assert normalize_transcript(spoken, "en") == spoken


def test_figures_stay_where_their_words_are_unknown():
    """Without a language figures are kept; a language without number words is refused."""
    assert normalize_transcript("Drücken Sie 1!") == "drücken sie 1"
    with pytest.raises(ValueError, match=r"English \(en\) only, not in 'de'"):
        normalize_transcript("1", "de")


def test_numbers_are_spelled_once_each():
    """Every number below 2,000 has a spelling of its own."""
    assert len({spell_number(number) for number in range(2000)}) == 2000
    assert spell_number(1999) == "one thousand nine hundred ninety nine"


def test_stereo_and_other_rates_become_one_channel_at_the_rate_asked_for(tmp_path):
    """44.1 kHz stereo is averaged and resampled: as long, the same pitch, half as loud with one side mute."""
    both = tone(1.0, 44_100, 440.0, channels=2)
    both[:, 1] = 0
    sound = read_sound(save(tmp_path / "a.wav", both, 44_100), 16_000)
    assert sound.shape == (16_000,)
    assert sound.dtype == np.float32
    spectrum = np.abs(np.fft.rfft(sound))
    assert spectrum.argmax() == 440
    assert abs(np.abs(sound[1000:-1000]).max() - 0.25) < 0.01


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg"])
def test_kinds_of_files_and_their_contents_are_read(tmp_path, ending):
    """A file and its contents give the same samples, whatever the kind."""
    file = save(tmp_path / f"a.{ending}")
    assert read_header(file).seconds == pytest.approx(0.5, abs=0.01)
    assert np.array_equal(read_sound(file, 8000), read_sound(file.read_bytes(), 8000))


def test_features_are_eighty_bins_every_ten_milliseconds_and_normalized():
    """One second gives 100 frames of 80 bins, each bin of mean 0 and deviation 1; silence is finite."""
    for rate in (8_000, 16_000):
        extractor = build_feature_extractor(rate)
        features = extract_features(np.random.default_rng(0).normal(size=rate).astype(np.float32), extractor)
        assert features.shape == (100, 80)
        assert features.mean(0).abs().max() < 1e-4
        assert (features.std(0) - 1).abs().max() < 1e-3
        assert extract_features(np.zeros(rate, dtype=np.float32), extractor).isfinite().all()
    with pytest.raises(ValueError, match="at least 4,000 samples a second, not 2000"):
        build_feature_extractor(2000)


def test_a_pure_tone_stands_out_in_the_bin_of_its_pitch():
    """The bin that is loudest rises with the pitch."""
    extractor = build_feature_extractor(8000)
    quiet = 1e-3 * np.random.default_rng(0).normal(size=8000)
    loudest = []
    for pitch in (300, 1000, 3000):
        sound = np.concatenate([quiet, quiet + tone(1.0, pitch=pitch)[:, 0]]).astype(np.float32)
        loudest.append(int(extract_features(sound, extractor)[120:180].mean(0).argmax()))
    assert loudest == sorted(set(loudest))


def test_padding_of_a_batch_is_zero_and_masked(folder):
    """Shorter rows are filled up with zeros that the mask leaves out, and labels with -100."""
    save(folder / "0.wav", tone(0.7))
    splits = load_speech(source=folder, validation_percent=20, subsampling=2)
    rows = [splits.train[row] for row in range(len(splits.train))]
    batch = splits.collate()(rows)
    assert batch["input_features"].shape == (len(rows), 70, 80)
    for row, mask, features, labels in zip(
        rows, batch["attention_mask"], batch["input_features"], batch["labels"], strict=True
    ):
        frames = len(row["input_features"])
        assert mask.tolist() == [1] * frames + [0] * (70 - frames)
        assert torch.equal(features[:frames], row["input_features"])
        assert not features[frames:].any()
        assert (labels[len(row["labels"]) :] == -100).all()


def test_transcripts_become_characters_and_come_back(folder):
    """Labels are one id a character, the blank is the padding, and decoding joins repeats across no blank."""
    splits = load_speech(source=folder)
    tokenizer = splits.tokenizer
    for ids, text in zip(splits.train.labels, splits.train.texts, strict=True):
        assert len(ids) == len(text)
        assert tokenizer.decode(ids, group_tokens=False) == text
    e, blank = tokenizer.convert_tokens_to_ids("e"), tokenizer.pad_token_id
    assert tokenizer.decode([e, e, blank, e, blank]) == "ee"
    assert splits.model_fields == {"num_mel_bins": 80, "vocab_size": len(tokenizer), "pad_token_id": blank}


def test_tokenizer_and_extractor_are_saved_and_loaded(tmp_path):
    """transformers' Auto classes read both back, and they say the same."""
    from transformers import AutoFeatureExtractor, AutoTokenizer

    tokenizer, extractor = build_ctc_tokenizer(["abc de"]), build_feature_extractor(8000)
    tokenizer.save_pretrained(tmp_path)
    extractor.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded("bad ace")["input_ids"]
    assert ids == tokenizer("bad ace")["input_ids"]
    assert loaded.pad_token_id == tokenizer.pad_token_id
    assert loaded.decode([ids[0], ids[0], loaded.pad_token_id, ids[1]]) == "ba"
    sound = tone()[:, 0]
    again = AutoFeatureExtractor.from_pretrained(tmp_path)
    assert torch.equal(extract_features(sound, again), extract_features(sound, extractor))


def test_repeats_need_a_frame_more():
    """CTC writes equal neighbors with a blank between them, so `abcab` needs 5 frames and `aab` 4."""
    assert required_frames([0, 1, 2, 0, 1]) == 5
    assert required_frames([0, 0, 1]) == 4
    assert required_frames([]) == 0


def test_clips_too_short_for_their_transcript_are_left_out_and_listed(folder):
    """50 frames subsampled to 7 carry the 7 characters of `one two`, not the 8 of `five six`; the reason says so."""
    splits = load_speech(source=folder, subsampling=8, validation_percent=20)
    used = set(splits.train.texts) | set(splits.validation.texts)
    assert used == set(WORDS) - {"Two, three!", "five six"}
    needs = "its transcript needs {} frames, and 7 are left of it after subsampling"
    assert splits.left_out.reasons == {"1.wav": needs.format(10), "3.wav": needs.format(8)}


def test_a_bad_file_is_counted_and_listed_and_nothing_else_changes(folder):
    """No sound, an empty one, no numbers, a missing file, transcript or file's name are left out by name."""
    (folder / "0.wav").write_text("no sound")
    save(folder / "1.wav", np.zeros((0, 1), dtype=np.float32))
    (folder / "2.wav").unlink()
    soundfile.write(folder / "4.wav", np.full(4000, np.nan, dtype=np.float32), 8000, subtype="FLOAT")
    rows = [(f"{n}.wav", "" if n == 3 else text) for n, text in enumerate(WORDS)]
    write_table(folder, [*rows, ("", "a word")])
    splits, nameless = load_speech(source=folder), f"row {len(rows) + 1} of transcripts.csv"
    assert set(splits.left_out.reasons) == {"0.wav", "1.wav", "2.wav", "3.wav", "4.wav", nameless}
    assert splits.left_out.reasons["1.wav"] == "it is empty"
    assert splits.left_out.reasons["2.wav"] == "there is no such file"
    assert len(splits.train) + len(splits.validation) == 5
    assert "6 left out: 0.wav" in splits.describe()


def test_a_clip_damaged_later_is_replaced_and_listed(folder, caplog):
    """A file that goes bad after loading does not end the run: the next good clip takes its place."""
    splits = load_speech(source=folder)
    name = splits.train.clips.names[0]
    (folder / name).write_text("gone bad")
    assert torch.equal(splits.train[0]["input_features"], splits.train[1]["input_features"])
    assert name in splits.train.clips.left_out.reasons
    assert f"{name} is left out from here on" in caplog.text


def test_no_sentence_and_no_speaker_stands_on_both_sides(folder):
    """Without speakers equal sentences stay together, however written; with a column of speakers, these do."""
    rows = [(f"{n}.wav", ["Yes.", "yes", "no", "No!", "maybe"][n % 5], f"speaker {n % 3}") for n in range(10)]
    write_table(folder, rows, columns=("file", "text", "speaker"))
    splits = load_speech(source=folder, validation_percent=30)
    assert not set(splits.train.texts) & set(splits.validation.texts)
    splits = load_speech(source=folder, validation_percent=30, group_column="speaker")
    assert not set(splits.train.clips.groups) & set(splits.validation.clips.groups)
    assert len(splits.train) + len(splits.validation) == 10


def test_spec_augment_hides_bands_and_stretches_of_training_rows_only(folder):
    """Whole bins or whole frames become zero, within the widths asked for; validation rows stay as they are."""
    masks = SpecAugment(frequency_masks=1, frequency_width=10, time_masks=1, time_width=8, time_share=0.5)
    splits = load_speech(source=folder, augmentation=masks)
    torch.manual_seed(0)
    changed, plain = splits.train[0]["input_features"], splits.train.features(0)
    hidden = changed != plain
    assert hidden.any()
    assert (changed[hidden] == 0).all()
    bins, frames = hidden.all(0).sum(), hidden.all(1).sum()
    assert bins <= 10
    assert frames <= 8
    assert torch.equal(splits.validation[0]["input_features"], splits.validation.features(0))
    with pytest.raises(ValueError, match="time_share must be from 0 to 1"):
        SpecAugment(time_share=2)


def test_labels_for_a_decoder_end_with_the_end_mark(folder):
    """For seq2seq the labels are characters and the end of the text, and no clip is too short for them."""
    splits = load_speech(source=folder, objective="seq2seq", subsampling=50)
    assert all(labels[-1] == splits.tokenizer.eos_token_id for labels in splits.train.labels)
    assert len(splits.train) + len(splits.validation) == 10


def test_rate_is_the_lowest_of_the_clips_and_bounded(folder):
    """One recording at 8 kHz among others at 48 kHz brings all to 8 kHz, as nobody must hear where a clip is from."""
    save(folder / "3.wav", tone(rate=48_000), 48_000)
    assert load_speech(source=folder).processor.sampling_rate == 8000
    for number in range(10):
        save(folder / f"{number}.wav", tone(rate=48_000), 48_000)
    assert load_speech(source=folder).processor.sampling_rate == 16_000
    assert load_speech(source=folder, sampling_rate=24_000).train[0]["input_features"].shape == (50, 80)


def test_long_clips_are_left_out_if_asked(folder):
    """A limit in seconds leaves longer clips out, by name and length."""
    save(folder / "5.wav", tone(3.0))
    splits = load_speech(source=folder, longest_seconds=2)
    assert splits.left_out.reasons == {"5.wav": "it lasts 3.0 s, longer than 2 s"}


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    """A stand-in for the fetched telephone prompts: digits, and 40 sentences, some said twice."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path))
    root = tmp_path / "prompts-en"
    names = "zero one two three four five six seven eight nine".split()  # noqa: SIM905
    rows = [(f"digits/{number}.wav", word) for number, word in enumerate(names)]
    rows += [(f"vm-{number}.wav", f"say {number % 20} now") for number in range(40)]
    for number, (file, _) in enumerate(rows):
        save(root / file, tone(0.5 if file.startswith("digits") else 1.0, pitch=200 + 20 * number))
    write_table(root, rows, "transcripts.tsv")
    return root


def test_prompts_keep_digits_for_training_and_no_held_out_sentence(prompts):
    """A tenth of the clips is held out, none of them a digit, and what they say is not trained on."""
    splits = load_speech(name="prompts-en")
    assert {"zero", "nine"} <= set(splits.train.texts)
    assert not any(name.startswith("digits/") for name in splits.validation.clips.names)
    assert not set(splits.train.texts) & set(splits.validation.texts)
    assert 0 < len(splits.validation) < 15
    assert "say nineteen now" in splits.train.texts + splits.validation.texts


def test_spliced_digits_are_the_single_ones_in_a_row(prompts):
    """A spliced clip is as long as its digits and pauses, says them, and is trained on only."""
    plain = load_speech(name="prompts-en")
    splits = load_speech(name="prompts-en", spliced_digits=5)
    assert len(splits.train) == len(plain.train) + 5
    assert len(splits.validation) == len(plain.validation)
    row = len(splits.train) - 1
    digits = splits.train.texts[row].split()
    assert 2 <= len(digits) <= 6
    seconds = splits.train.clips.headers[row].seconds
    assert 0.5 * len(digits) + 0.02 * (len(digits) - 1) <= seconds <= 0.5 * len(digits) + 0.15 * (len(digits) - 1)
    assert splits.train[row]["input_features"].isfinite().all()
    assert load_speech(name="prompts-en", spliced_digits=5).train.texts == splits.train.texts


def test_unfetched_prompts_name_the_command(tmp_path, monkeypatch):
    """Without the data set the sentence says how to fetch it."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="run gnomon data fetch prompts-en"):
        load_speech(name="prompts-en")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a name of the catalog or a source, not neither"),
        ({"name": "digits"}, "holds images, not speech"),
        ({"name": "prompts-en", "validation_percent": 5}, r"data\.validation_percent has no meaning here"),
        ({"name": "prompts-en", "objective": "rnnt"}, "must be ctc or seq2seq, not 'rnnt'"),
        ({"source": "x.csv", "spliced_digits": 3}, r"data\.spliced_digits has no meaning for a source"),
        ({"source": "x.csv", "validation": "y.csv", "validation_percent": 3}, "exclude each other"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    """What has no meaning, or contradicts, is refused with the rule."""
    with pytest.raises(ValueError, match=message):
        load_speech(**options)


def test_folders_without_table_or_column_are_refused(folder, tmp_path):
    """A folder of sounds without transcripts, and a table without the column, each get a sentence."""
    save(tmp_path / "bare/a.wav")
    with pytest.raises(ValueError, match=r"must hold a table of transcripts, but .*bare holds none"):
        load_speech(source=tmp_path / "bare")
    with pytest.raises(ValueError, match=r"a column 'words', but it has file, text: name one as data\.text_column"):
        load_speech(source=folder, text_column="words")
    with pytest.raises(ValueError, match="cannot be split into two sides"):
        hold_out_groups(["a", "a"], 10)


def test_sounds_of_classes_are_rows_of_one_label(tmp_path):
    """Class folders give classes in order, one label a row, and batches of them; an unknown class is refused."""
    for label in ("bark", "meow"):
        for number in range(4):
            save(tmp_path / f"train/{label}/{number}.wav", tone(0.2 + 0.1 * number))
    save(tmp_path / "test/meow/a.flac")
    (tmp_path / "train/meow/bad.wav").write_text("no sound")
    splits = load_audio_classes(source=tmp_path)
    assert splits.classes == ("bark", "meow")
    assert (len(splits.train), len(splits.validation)) == (8, 1)
    batch = splits.collate()([splits.train[row] for row in range(8)])
    assert batch["labels"].tolist() == [0] * 4 + [1] * 4
    assert batch["input_features"].shape == (8, 50, 80)
    assert set(splits.left_out.reasons) == {"meow/bad.wav"}
    assert "of 2 classes at 8,000 Hz; 1 left out" in splits.describe()
    save(tmp_path / "test/moo/a.wav")
    with pytest.raises(ValueError, match=r"has the class 'moo', which is not among the 2 trained on \(bark, meow\)"):
        load_audio_classes(source=tmp_path)
    with pytest.raises(ValueError, match="one folder a class with sounds, or a table"):
        load_audio_classes(source=tmp_path / "train/bark")


def test_mean_filterbank_is_what_a_microphone_adds_to_every_frame():
    """It equals a mean over frames worked out one by one, and loudness alone does not change it."""
    extractor = build_feature_extractor(8000)
    noise = np.random.default_rng(0).normal(0, 0.1, 4003).astype(np.float32)
    padded = np.pad(noise, 256)
    window = np.pad(np.hanning(200), 156)
    bins = []
    for start in range(0, len(noise) + 1, 80):
        power = np.abs(np.fft.rfft(padded[start : start + 512] * window)) ** 2
        bins.append(np.log(extractor.mel_filters.numpy() @ power + 2**-24))
    expected = np.mean(bins, axis=0)
    found = mean_filterbank(noise, extractor)
    assert torch.allclose(found, torch.tensor(expected - expected.mean(), dtype=torch.float32), atol=1e-4)
    assert torch.allclose(found, mean_filterbank(0.5 * noise, extractor), atol=1e-2)
    colored = np.convolve(noise, [1, -0.9], "same").astype(np.float32)
    assert (mean_filterbank(colored, extractor) - found).abs().max() > 1
