"""Load sounds with a class each, split into what is trained on and what is held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnomon.data.audio import (
    AUDIO_COLUMNS,
    AUDIO_ENDINGS,
    HOP_SECONDS,
    SHORTEST_FRAMES,
    Clips,
    build_feature_extractor,
    choose_rate,
    read_clips,
)
from gnomon.data.augmentation import SpecAugment
from gnomon.data.collecting import collection_folder
from gnomon.data.collections import describe_collection, find_collection
from gnomon.data.hub import is_saved_dataset
from gnomon.data.images import LABEL_COLUMNS
from gnomon.data.origins import check_held_out, check_origin, refuse_with_own_split
from gnomon.data.prompts import TRANSCRIPTS, split_prompts
from gnomon.data.rows import MediaRows, find_table, looks_like_a_path, open_rows, open_table, side_folders
from gnomon.data.speech_rows import SpeechCollator, SpeechRows
from gnomon.data.splitting import LeftOut, hold_out_groups
from gnomon.data.transcripts import normalize_transcript

DEFAULT_PERCENT = 10.0


@dataclass(frozen=True)
class AudioClassSplits:
    """Sounds with classes on the two sides of a split.

    Attributes:
        train: What is trained on.
        validation: What is held out.
        classes: The names of the classes, by number.
        processor: The feature extractor; save it with the model.
        left_out: Sounds that could not be read, or are too short or too long.
        source: Where the sounds come from.
    """

    train: SpeechRows
    validation: SpeechRows
    classes: tuple[str, ...]
    processor: Any
    left_out: LeftOut
    source: str

    @property
    def model_fields(self) -> dict[str, Any]:
        """What a model's configuration takes from the data."""
        return {"num_mel_bins": self.processor.feature_size, "num_labels": len(self.classes)}

    def collate(self) -> SpeechCollator:
        """What makes batches of rows."""
        return SpeechCollator()

    def describe(self) -> str:
        """One sentence: how many sounds of how many classes, and what was left out."""
        bad = self.left_out.describe()
        return (
            f"{self.source}: {len(self.train):,} training and {len(self.validation):,} validation sounds of "
            f"{len(self.classes)} classes at {self.processor.sampling_rate:,} Hz{f'; {bad}' if bad else ''}"
        )


def load_audio_classes(
    *,
    name: str | None = None,
    source: str | Path | None = None,
    audio_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
    sampling_rate: int | None = None,
    longest_seconds: float | None = None,
    augmentation: SpecAugment | None = None,
) -> AudioClassSplits:
    """Load sounds with a class each, and hold some out: the same ones every time.

    Of the telephone prompts, whose class is the language, a tenth is held out by the prompt's hashed name, each in
    every language; training clips in which the same is said are left out. Of anything else `validation` is held out if
    given; else the folder `validation` or `test` beside a folder `train`; else the groups whose hashed name falls below
    a percentage: speakers if there is such a column, otherwise single files.

    Args:
        name: A data set of the catalog.
        source: A folder of class folders, a table (.csv, .tsv, .jsonl, .json, .parquet) or a folder with one, a
            folder that `datasets` saved, or a data set's name on the Hub.
        audio_column: The table's column with the sound or its file; one with a usual name if None.
        label_column: The table's column with the class; one with a usual name if None.
        group_column: The table's column with the speaker, or whatever must not stand on both sides.
        validation: What is held out: a folder or table, or of a Hub data set a split.
        validation_percent: How many of a hundred groups are held out otherwise; 10 if None.
        split: The split of a Hub data set that is trained on; `train` if None.
        subset: A Hub data set's configuration.
        sampling_rate: In hertz; the lowest rate of the sounds if None, and 16,000 at most.
        longest_seconds: Longer sounds are left out and listed; none if None.
        augmentation: Changes training features.

    Raises:
        ValueError: An option has no meaning here, a class is unknown, or there is nothing that can be read.
        FileNotFoundError: There is no such file, folder or data set, or it has not been fetched yet.
        MissingPackageError: soundfile is not installed.
    """
    check_origin(name, source)
    columns = {"audio_column": audio_column, "label_column": label_column, "group_column": group_column}
    options = {"validation": validation, "validation_percent": validation_percent, "split": split, "subset": subset}
    if name is not None:
        refuse_with_own_split(name, {**columns, **options})
        find_collection(name, "sounds with classes")
        train, held_out = _read_prompts(collection_folder(name))
        title = describe_collection(name).split(" (")[0]
    else:
        train, held_out = _read_source(str(source), columns, options)
        title = str(source)
    classes = tuple(sorted(set(train.texts)))
    extractor = build_feature_extractor(choose_rate(train, sampling_rate))
    made = [_make_rows(clips, classes, extractor, longest_seconds) for clips in (train, held_out)]
    made[0].augmentation = augmentation
    left_out = LeftOut(train.left_out.reasons | held_out.left_out.reasons)
    return AudioClassSplits(made[0], made[1], classes, extractor, left_out, title)


def _read_prompts(folder: Path) -> tuple[Clips, Clips]:
    """The two sides of the telephone prompts, whose class is the language."""
    clips = read_clips(open_table(folder / TRANSCRIPTS), "file", "text", "item")
    languages = [file.split("/")[0] for file in clips.names]
    said = [(language, normalize_transcript(text)) for language, text in zip(languages, clips.texts, strict=True)]
    train, held_out = split_prompts(clips.groups, said)
    clips = replace(clips, texts=languages)
    return clips.take(train), clips.take(held_out)


def _read_source(source: str, columns: Mapping[str, str | None], options: Mapping[str, Any]) -> tuple[Clips, Clips]:
    """The two sides of a source."""
    validation, percent, subset = options["validation"], options["validation_percent"], options["subset"]
    check_held_out(validation, percent)
    path = Path(source).expanduser()
    is_remote = is_saved_dataset(path) or not (path.exists() or looks_like_a_path(source))
    sides = side_folders(path) if validation is None and not is_remote and path.is_dir() else None
    if is_remote:
        train = _read_table(open_rows(source, options["split"] or "train", subset), columns)
        held_out = validation and _read_table(open_rows(source, str(validation), subset), columns)
    else:
        train = _read_place(sides[0] if sides else path, columns)
        other = sides[1] if sides else validation
        held_out = other and _read_place(Path(other).expanduser(), columns)
    if held_out:
        return train, held_out
    held = hold_out_groups(train.groups, DEFAULT_PERCENT if percent is None else percent)
    rows = [[row for row, is_held in enumerate(held) if is_held is side] for side in (False, True)]
    return train.take(rows[0]), train.take(rows[1])


def _make_rows(clips: Clips, classes: Sequence[str], extractor: Any, longest_seconds: float | None) -> SpeechRows:
    """The sounds of a fitting length with their classes; the others are listed.

    Raises:
        ValueError: A class is unknown, or no sound is left.
    """
    kept = []
    for row, (text, header) in enumerate(zip(clips.texts, clips.headers, strict=True)):
        if text not in classes:
            raise ValueError(
                f"{clips.names[row]} has the class {text!r}, which is not among the {len(classes)} trained on "
                f"({', '.join(classes[:10])}): mend it or leave the sound out"
            )
        if longest_seconds is not None and header.seconds > longest_seconds:
            reason = f"it lasts {header.seconds:.1f} s, longer than {longest_seconds:g} s"
        elif header.seconds < SHORTEST_FRAMES * HOP_SECONDS:
            reason = f"it is shorter than {SHORTEST_FRAMES * HOP_SECONDS:g} s"
        else:
            kept.append(row)
            continue
        clips.left_out.add(clips.names[row], reason)
    if not kept:
        raise ValueError(f"no sound of one side can be used ({clips.left_out.describe(shown=1)})")
    chosen = clips.take(kept)
    return SpeechRows(chosen, extractor, [classes.index(text) for text in chosen.texts])


def _read_place(place: Path, columns: Mapping[str, str | None]) -> Clips:
    """The sounds of a table, of a folder with one, or of class folders."""
    if not place.exists():
        raise FileNotFoundError(f"there is no file or folder {place}: check data.source and data.validation")
    table = place if place.is_file() else find_table(place, ("metadata", "labels"))
    if table is not None:
        return _read_table(open_table(table), columns)
    files = sorted(file for file in place.glob("*/**/*") if file.suffix.lower() in AUDIO_ENDINGS and file.is_file())
    if not files:
        raise ValueError(
            f"a folder of sounds must hold one folder a class with sounds, or a table, but {place} holds neither: move "
            "the sounds of each class into a folder with the class's name"
        )
    names = [file.relative_to(place) for file in files]
    rows = [{"file": str(name), "label": name.parts[0]} for name in names]
    return read_clips(MediaRows(rows, str(place), place), "file", "label", "file")


def _read_table(rows: MediaRows, columns: Mapping[str, str | None]) -> Clips:
    """The sounds of a table, with the names of their classes."""
    audio = rows.find_column(columns["audio_column"], AUDIO_COLUMNS, "data.audio_column")
    label = rows.find_column(columns["label_column"], LABEL_COLUMNS, "data.label_column")
    group = columns["group_column"]
    if group is not None:
        group = rows.find_column(group, (), "data.group_column")
    clips = read_clips(rows, audio, label, group)
    titles = rows.class_names(label)
    if titles:
        clips.texts = [titles[int(text)] for text in clips.texts]
    if group is None:
        clips.groups = list(clips.names)
    return clips
