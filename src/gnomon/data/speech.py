"""Load speech with transcripts, split into what is trained on and what is held out, as rows of features and labels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.data.audio import (
    AUDIO_COLUMNS,
    HOP_SECONDS,
    SHORTEST_FRAMES,
    Clips,
    build_feature_extractor,
    choose_rate,
    count_frames,
    read_clips,
)
from gnomon.data.augmentation import SpecAugment
from gnomon.data.collecting import collection_folder
from gnomon.data.collections import describe_collection, find_collection
from gnomon.data.hub import is_saved_dataset
from gnomon.data.origins import check_held_out, check_origin, refuse_with_own_split
from gnomon.data.prompts import TRANSCRIPTS, split_prompts
from gnomon.data.rows import MediaRows, find_table, looks_like_a_path, open_rows, open_table
from gnomon.data.speech_rows import SpeechCollator, SpeechRows, build_ctc_tokenizer, required_frames
from gnomon.data.splicing import splice_digits
from gnomon.data.splitting import LeftOut, hold_out_groups
from gnomon.data.tokenizers import build_tokenizer
from gnomon.data.transcripts import normalize_transcript

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT_COLUMNS = ("text", "transcript", "transcription", "sentence")
"""What a table's column with the transcript is usually called."""

DEFAULT_PERCENT = 10.0


@dataclass(frozen=True)
class SpeechSplits:
    """Speech with transcripts on the two sides of a split.

    Attributes:
        train: What is trained on.
        validation: What is held out.
        tokenizer: Makes labels of transcripts; save it with the model.
        processor: The feature extractor; save it with the model.
        output_length: Frames -> what is left of them after the model's subsampling.
        left_out: Clips that could not be read, or are too short or too long.
        source: Where the speech comes from.
    """

    train: SpeechRows
    validation: SpeechRows
    tokenizer: "PreTrainedTokenizerBase"
    processor: Any
    output_length: Callable[[int], int]
    left_out: LeftOut
    source: str

    @property
    def model_fields(self) -> dict[str, Any]:
        """What a model's configuration takes from the data."""
        return {
            "num_mel_bins": self.processor.feature_size,
            "vocab_size": len(self.tokenizer),
            "pad_token_id": self.tokenizer.pad_token_id,
        }

    def collate(self) -> SpeechCollator:
        """What makes batches of rows."""
        return SpeechCollator()

    def describe(self) -> str:
        """One sentence: how much speech there is, and what was left out."""
        minutes = (self.train.clips.seconds / 60, self.validation.clips.seconds / 60)
        bad = self.left_out.describe()
        return (
            f"{self.source}: {len(self.train):,} training and {len(self.validation):,} validation clips "
            f"({minutes[0]:.1f} and {minutes[1]:.1f} minutes) at {self.processor.sampling_rate:,} Hz"
            f"{f'; {bad}' if bad else ''}"
        )


def load_speech(
    *,
    name: str | None = None,
    source: str | Path | None = None,
    audio_column: str | None = None,
    text_column: str | None = None,
    group_column: str | None = None,
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
    language: str | None = None,
    sampling_rate: int | None = None,
    longest_seconds: float | None = None,
    spliced_digits: int = 0,
    augmentation: SpecAugment | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    objective: str = "ctc",
    subsampling: int | Callable[[int], int] = 4,
) -> SpeechSplits:
    """Load speech with transcripts, and hold some out: the same clips every time, and no sentence on both sides.

    Of the telephone prompts a tenth is held out, by the clip's hashed name, but no single digit, letter or spelling
    word; training clips with the words of a held-out one are left out. Of anything else `validation` is held out if
    given, else the groups whose hashed name falls below a percentage: speakers if there is such a column, otherwise
    the sentences themselves. Transcripts are normalized.

    Args:
        name: A data set of the catalog.
        source: A folder with sounds and a table of transcripts, such a table (.csv, .tsv, .jsonl, .json, .parquet),
            a folder that `datasets` saved, or a data set's name on the Hub.
        audio_column: The table's column with the sound or its file; one with a usual name if None.
        text_column: The table's column with the transcript; one with a usual name if None.
        group_column: The table's column with the speaker, or whatever must not stand on both sides.
        validation: What is held out: a folder or table, or of a Hub data set a split.
        validation_percent: How many of a hundred groups are held out otherwise; 10 if None.
        split: The split of a Hub data set that is trained on; `train` if None.
        subset: A Hub data set's configuration.
        language: `en` to write out figures; of the catalog's English prompts it is.
        sampling_rate: In hertz; the lowest rate of the clips if None, and 16,000 at most.
        longest_seconds: Longer clips are left out and listed; none if None.
        spliced_digits: So many training clips of connected digits are put together of the prompts' single ones.
        augmentation: Changes training features.
        tokenizer: Makes labels of transcripts; one token a character of the training transcripts if None.
        objective: `ctc`, or `seq2seq`, whose labels end with the tokenizer's end mark.
        subsampling: By how much the model shortens the frames, or how many it makes of so many; clips that CTC
            cannot align after that are left out and listed.

    Raises:
        ValueError: An option has no meaning here or is out of range, or there is nothing that can be read.
        FileNotFoundError: There is no such file, folder or data set, or it has not been fetched yet.
        MissingPackageError: soundfile is not installed.
    """
    check_origin(name, source)
    if objective not in ("ctc", "seq2seq"):
        raise ValueError(f"the objective of speech recognition must be ctc or seq2seq, not {objective!r}")
    columns = {"audio_column": audio_column, "text_column": text_column, "group_column": group_column}
    options = {"validation": validation, "validation_percent": validation_percent, "split": split, "subset": subset}
    if name is not None:
        refuse_with_own_split(name, {**columns, **options})
        find_collection(name, "speech")
        train, held_out = _read_prompts(collection_folder(name))
        title = describe_collection(name).split(" (")[0]
    else:
        if spliced_digits:
            raise ValueError(
                "data.spliced_digits has no meaning for a source: it needs the single digits of prompts-en"
            )
        train, held_out = _read_source(str(source), columns, options, language)
        title = str(source)
    rate = choose_rate(train, sampling_rate)
    extractor = build_feature_extractor(rate)
    if spliced_digits:
        splice_digits(train, spliced_digits, rate)
    if tokenizer is None:
        tokenizer = (
            build_ctc_tokenizer(train.texts)
            if objective == "ctc"
            else build_tokenizer({"kind": "char"}, dict(zip(train.names, train.texts, strict=True)))
        )
    output_length = subsampling if callable(subsampling) else lambda frames: -(-frames // int(subsampling))
    sides = []
    for clips in (train, held_out):
        sides.append(encode_clips(clips, extractor, tokenizer, objective, output_length, longest_seconds))
    sides[0].augmentation = augmentation
    left_out = LeftOut(train.left_out.reasons | held_out.left_out.reasons)
    return SpeechSplits(*sides, tokenizer, extractor, output_length, left_out, title)


def encode_clips(
    clips: Clips,
    extractor: Any,
    tokenizer: "PreTrainedTokenizerBase",
    objective: str,
    output_length: Callable[[int], int],
    longest_seconds: float | None,
) -> SpeechRows:
    """Rows of the clips that can be used; the others are left out and listed.

    Args:
        clips: The sounds with their normalized transcripts.
        extractor: What `build_feature_extractor` made.
        tokenizer: Makes labels of transcripts.
        objective: `ctc`, or `seq2seq`, whose labels end with the tokenizer's end mark.
        output_length: Frames -> what is left of them after the model's subsampling.
        longest_seconds: Longer clips are left out; none if None.

    Raises:
        ValueError: None can be used.
    """
    kept, labels = [], []
    for row, (text, header) in enumerate(zip(clips.texts, clips.headers, strict=True)):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        samples = header.samples * extractor.sampling_rate // header.rate
        frames = count_frames(samples, extractor)
        available, needed = output_length(frames), required_frames(ids)
        if longest_seconds is not None and header.seconds > longest_seconds:
            reason = f"it lasts {header.seconds:.1f} s, longer than {longest_seconds:g} s"
        elif frames < SHORTEST_FRAMES:
            reason = f"it is shorter than {SHORTEST_FRAMES * HOP_SECONDS:g} s"
        elif not ids:
            reason = "its transcript is empty"
        elif objective == "ctc" and available < needed:
            reason = f"its transcript needs {needed} frames, and {available} are left of it after subsampling"
        else:
            kept.append(row)
            labels.append([*ids, tokenizer.eos_token_id] if objective == "seq2seq" else list(ids))
            continue
        clips.left_out.add(clips.names[row], reason)
    if not kept:
        raise ValueError(f"no clip of one side can be used ({clips.left_out.describe(shown=1)})")
    return SpeechRows(clips.take(kept), extractor, labels)


def _read_prompts(folder: Path) -> tuple[Clips, Clips]:
    """The telephone prompts' two sides."""
    clips = read_clips(open_table(folder / TRANSCRIPTS), "file", "text", None)
    clips = replace(clips, texts=[normalize_transcript(text, "en") for text in clips.texts])
    train, held_out = split_prompts([name.removesuffix(".wav") for name in clips.names], clips.texts)
    return clips.take(train), clips.take(held_out)


def _read_source(
    source: str, columns: Mapping[str, str | None], options: Mapping[str, Any], language: str | None
) -> tuple[Clips, Clips]:
    """The two sides of a source."""
    validation, percent, split = options["validation"], options["validation_percent"], options["split"]
    check_held_out(validation, percent)
    train = _normalized(_read_table(source, split or "train", options["subset"], columns), language)
    if validation is not None:
        other = str(validation) if _is_remote(source) else "train"
        place = source if _is_remote(source) else str(validation)
        return train, _normalized(_read_table(place, other, options["subset"], columns), language)
    held = hold_out_groups(train.groups, DEFAULT_PERCENT if percent is None else percent)
    sides = [[row for row, is_held in enumerate(held) if is_held is side] for side in (False, True)]
    return train.take(sides[0]), train.take(sides[1])


def _normalized(clips: Clips, language: str | None) -> Clips:
    texts = [normalize_transcript(text, language) for text in clips.texts]
    # Where the sentence is the group, it is so however it was written.
    groups = [
        text if group == original else group
        for text, group, original in zip(texts, clips.groups, clips.texts, strict=True)
    ]
    return replace(clips, texts=texts, groups=groups)


def _is_remote(source: str) -> bool:
    path = Path(source).expanduser()
    return is_saved_dataset(path) or not (path.exists() or looks_like_a_path(source))


def _read_table(source: str, split: str, subset: str | None, columns: Mapping[str, str | None]) -> Clips:
    """The clips of a folder, a table, or a data set of `datasets`."""
    rows: MediaRows
    path = Path(source).expanduser()
    if _is_remote(source):
        rows = open_rows(source, split, subset)
    elif path.is_dir():
        table = find_table(path, ("transcripts", "metadata"))
        if table is None:
            raise ValueError(
                f"a folder of speech must hold a table of transcripts, but {path} holds none: add transcripts.csv with "
                "the columns file and text"
            )
        rows = open_table(table)
    else:
        rows = open_table(path)
    audio = rows.find_column(columns["audio_column"], AUDIO_COLUMNS, "data.audio_column")
    text = rows.find_column(columns["text_column"], TEXT_COLUMNS, "data.text_column")
    group = columns["group_column"]
    if group is not None:
        group = rows.find_column(group, (), "data.group_column")
    return read_clips(rows, audio, text, group)
