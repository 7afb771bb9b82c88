"""What the tasks of sound share: how a recipe's data are named, and what makes numbers of sounds and transcripts."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoFeatureExtractor, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gnomon.data.augmentation import SpecAugment
from gnomon.data.speech_rows import SpeechCollator, SpeechRows
from gnomon.data.splitting import LeftOut
from gnomon.models.audio_fields import subsampled_length
from gnomon.models.sizes import resolve
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.recipe import model_fields
from gnomon.training.records import read_json
from gnomon.training.tasks import ORIGIN_KEYS, SOUND_KEYS
from gnomon.training.tasks.task import Batch, Collate, EvenRows, drawing

FEATURE_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class AudioProcessor:
    """A feature extractor, and a tokenizer where there are transcripts; saved beside a model as transformers has them.

    Attributes:
        feature_extractor: Sounds to filterbanks.
        tokenizer: Transcripts to ids, or None.
        subsampling_factor: Frames that the model makes one position of.
    """

    feature_extractor: Any
    tokenizer: PreTrainedTokenizerBase | None
    subsampling_factor: int

    def __len__(self) -> int:
        """The tokenizer's ids, none without one."""
        return 0 if self.tokenizer is None else len(self.tokenizer)

    @property
    def bos_token_id(self) -> int | None:
        """What begins a transcript."""
        return self.tokenizer and self.tokenizer.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """What ends a transcript."""
        return self.tokenizer and self.tokenizer.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        """What fills transcripts, and the blank of CTC."""
        return self.tokenizer and self.tokenizer.pad_token_id

    def output_length(self, frames: int) -> int:
        """Frames -> the model's positions."""
        return int(subsampled_length(frames, self.subsampling_factor))

    def save_pretrained(self, folder: str) -> None:
        """Write both."""
        self.feature_extractor.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    @classmethod
    def load(cls, folder: Path, fields: dict[str, Any], *, has_text: bool) -> "AudioProcessor":
        """Read what `save_pretrained` has written.

        Args:
            folder: Of a checkpoint.
            fields: Of its configuration.
            has_text: Whether there is a tokenizer.

        Raises:
            FileNotFoundError: There is no feature extractor in it.
        """
        if not (folder / FEATURE_FILE).is_file():
            raise FileNotFoundError(
                f"the checkpoint {folder} has no feature extractor ({FEATURE_FILE}); name a folder that a run has "
                "written."
            )
        extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True) if has_text else None
        return cls(extractor, tokenizer, resolve(fields)["subsampling_factor"])


def recipe_processor(recipe: Recipe, rows: SpeechRows, tokenizer: PreTrainedTokenizerBase | None) -> AudioProcessor:
    """The checkpoint's own processor, or a new one.

    Args:
        recipe: The recipe.
        rows: What is trained on.
        tokenizer: Of a new one, or None without transcripts.

    Raises:
        ValueError: The model of the recipe is none of sound.
    """
    checkpoint = recipe.model.get("checkpoint")
    fields = read_json(Path(checkpoint) / "config.json") if checkpoint else model_fields(recipe.model)
    if fields.get("num_mel_bins") is None:
        raise ValueError(f"task {recipe.task} needs a model of sound; set model.num_mel_bins, 80 as a rule.")
    if checkpoint and (Path(checkpoint) / FEATURE_FILE).is_file():
        return AudioProcessor.load(Path(checkpoint), fields, has_text=tokenizer is not None)
    if fields["num_mel_bins"] != rows.extractor.feature_size:
        raise ValueError(
            f"model.num_mel_bins is {fields['num_mel_bins']}, and the feature extractor makes "
            f"{rows.extractor.feature_size}; set it to {rows.extractor.feature_size}."
        )
    return AudioProcessor(rows.extractor, tokenizer, resolve(fields)["subsampling_factor"])


def origin(data: DataOptions, *more: str) -> dict[str, Any]:
    """Where the sounds are, as the loaders take it."""
    return data.model_dump(include={*ORIGIN_KEYS, *SOUND_KEYS, *more} - {"spec_augment"})


def augmented(rows: SpeechRows, data: DataOptions) -> "SpeechRows | AugmentedSounds":
    """Training rows, changed at random where the recipe asks for it."""
    if data.spec_augment is None:
        return rows
    return AugmentedSounds(rows, SpecAugment(**data.spec_augment.model_dump()))


def tell(left_out: LeftOut, description: str) -> None:
    """Name the sounds that were left out, once, and go on."""
    if left_out.reasons:
        logging.getLogger("gnomon").warning("%s", description)


def check_rate(rows: SpeechRows, processor: AudioProcessor) -> None:
    """Refuse sounds that were put together at another rate than the checkpoint's.

    Raises:
        ValueError: With both rates.
    """
    made, wanted = rows.extractor.sampling_rate, processor.feature_extractor.sampling_rate
    if made != wanted and any(isinstance(sound, np.ndarray) for sound in rows.clips.sounds):
        raise ValueError(
            f"data.spliced_digits are put together at {made} Hz, and the checkpoint hears {wanted} Hz; set "
            f"data.sampling_rate to {wanted}."
        )


def join_sounds(splits: Any) -> SpeechRows:
    """The sounds of both sides, those to train on first."""
    train, validation = splits.train, splits.validation
    clips = train.clips.take(range(len(train.clips)))
    held = validation.clips
    for row in zip(held.sounds, held.texts, held.names, held.groups, held.headers, strict=True):
        clips.add(*row)
    return SpeechRows(clips, train.extractor, [*train.labels, *validation.labels])


def make_collate(processor: AudioProcessor, model: PreTrainedModel) -> Collate:
    """Sounds are filled on the right."""
    return SpeechCollator()


def count_frames(batch: Batch) -> int:
    """Frames of a batch, 10 ms each, padding not counted."""
    return int(batch["attention_mask"].sum())


def mean_frames(rows: SpeechRows) -> int:
    """Frames of a sound, on average."""
    return max(1, sum(rows.lengths) // len(rows))


class AugmentedSounds(Dataset[dict[str, Tensor]]):
    """Sounds to train on, changed anew every epoch.

    What is drawn depends on seed, stage, epoch and row alone, so that a run goes on as if it had never stopped,
    however many rows were read ahead.

    Args:
        rows: The sounds.
        augmentation: Changes one row's features.
    """

    def __init__(self, rows: SpeechRows, augmentation: SpecAugment) -> None:
        self.rows, self.augmentation, self._epoch = rows, augmentation, (0, 0, 0)
        self.texts, self.lengths, self.labels, self.clips = rows.texts, rows.lengths, rows.labels, rows.clips

    def begin_epoch(self, seed: int, stage: int, epoch: int) -> None:
        """Draw for this epoch from now on."""
        self._epoch = (seed, stage, epoch)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One row, changed."""
        row = self.rows[index]
        with drawing(self._epoch, index):
            return {**row, "input_features": self.augmentation(row["input_features"])}


class SomeSounds(EvenRows):
    """Some sounds, evenly spread, with what the evaluations read of them.

    Args:
        rows: All of them.
        count: How many are taken.
    """

    def __init__(self, rows: SpeechRows, count: int) -> None:
        super().__init__(rows, count)
        places = [self.place(index) for index in range(self.count)]
        self.texts, self.lengths, self.labels = (
            [part[row] for row in places] for part in (rows.texts, rows.lengths, rows.labels)
        )
