"""What a recipe may say about its data: their origin, columns, tokenizer, and random changes."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gnomon.training.tasks import ORIGIN_KEYS, TASKS

PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

EXAMPLES = {"sequence_length": 128, "source_column": "en", "target_column": "de"}
"""What an error message offers for a key of `data`."""


class Options(BaseModel):
    """A block of a recipe: unknown keys are refused, and a text never becomes a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False)


class TokenizerOptions(Options):
    """How text becomes ids: a tokenizer that the run trains, or a folder that holds one."""

    kind: Literal["byte", "char", "bpe"] | None = Field(None, description="The kind of tokenizer to train.")
    vocab_size: PositiveInt | None = Field(None, description="Entries of a bpe vocabulary; null: 4096.")
    folder: str | None = Field(None, description="A folder with a tokenizer, instead of training one.")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        """Exactly one of `kind` and `folder`, and a vocabulary size for bpe alone."""
        if (self.kind is None) == (self.folder is None):
            state = "names neither kind nor folder" if self.kind is None else "names both kind and folder"
            raise ValueError(f"{state}; keep exactly one, for example kind: char")
        if self.kind != "bpe" and self.vocab_size is not None:
            raise ValueError(f"has vocab_size {self.vocab_size}, which only kind: bpe can use; remove it")
        return self


class AugmentationOptions(Options):
    """Random changes of a batch of training images."""

    crop_padding: Count = Field(0, description="Pixels of mirrored border before a crop of the image's size.")
    flip: Fraction = Field(0.0, description="How often an image is mirrored left to right.")
    rotation: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="Degrees that it is turned by at most.")
    shear: Annotated[float, Field(ge=0, lt=90)] = Field(0.0, description="Degrees that it is slanted at most.")
    shift: Fraction = Field(0.0, description="The farthest that it is moved, as a share of its size.")
    zoom: Decay = Field(0.0, description="How much larger or smaller it is made at most, as a share of its size.")
    color_jitter: Fraction = Field(
        0.0, description="How far brightness, contrast and saturation change at most, of color images."
    )
    grayscale: Fraction = Field(0.0, description="How often a color image loses its colors.")
    rand_augment_operations: Count = Field(0, description="Operations of RandAugment; 0: none.")
    rand_augment_magnitude: Annotated[int, Field(gt=0, lt=30)] = Field(9, description="Their strength.")
    mixup: Fraction = Field(0.0, description="The largest share of another image that is mixed in.")


class SpecAugmentOptions(Options):
    """What is hidden of a training spectrogram."""

    frequency_masks: Count = Field(2, description="Bands.")
    frequency_width: Count = Field(15, description="The most mel bins of a band.")
    time_masks: Count = Field(2, description="Stretches.")
    time_width: Count = Field(30, description="The most frames of a stretch, 10 ms each.")
    time_share: Fraction = Field(0.1, description="The most of an utterance that one stretch hides.")


class DataOptions(Options):
    """What to train on and what to hold out; a task says which keys it reads beside those that name the origin."""

    name: str | None = Field(None, description="A data set that gnomon knows; `gnomon data list` shows them.")
    source: str | None = Field(None, description="A file, a folder, or a data set's name on the hub.")
    column: str = Field("text", description="The column that holds the text.")
    label_column: str | None = Field(None, description="The column that holds the class; null: label.")
    source_column: str | None = Field(None, description="The column that is translated from.")
    target_column: str | None = Field(None, description="The column that is translated to.")
    validation: str | None = Field(
        None, description="What is held out: a file or folder, or the name of a hub data set's split."
    )
    validation_percent: Annotated[float, Field(gt=0, lt=100)] | None = Field(
        None, description="How much of a source is held out where validation is not given; null: 10."
    )
    split: str | None = Field(None, description="The split of a hub data set to train on; null: train.")
    subset: str | None = Field(None, description="A hub data set's configuration, where it has several.")
    sequence_length: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Tokens in one sequence, or in the longest."
    )
    audio_column: str | None = Field(None, description="The column with the sound; null: one with a usual name.")
    text_column: str | None = Field(None, description="The column with its transcript; null: one with a usual name.")
    group_column: str | None = Field(None, description="The column with the speaker: none stands on both sides.")
    language: str | None = Field(None, description="Of transcripts; en writes figures as words.")
    sampling_rate: PositiveInt | None = Field(
        None, description="Of sounds, in hertz; null: that of the poorest recording, 16,000 at most."
    )
    longest_seconds: PositiveNumber | None = Field(None, description="Longer sounds are left out; null: none.")
    spliced_digits: Count | None = Field(
        None, description="Training clips of connected digits, put together of the English prompts' single ones."
    )
    spec_augment: SpecAugmentOptions | None = Field(
        None, description="Hide bands and stretches of training spectrograms; {}: as its defaults say."
    )
    artist: str | None = Field(None, description="Of the set emoji: whose drawings are held out; null: openmoji.")
    image_column: str | None = Field(None, description="The column with the image; null: one with a usual name.")
    image_size: PositiveInt | list[PositiveInt] | None = Field(
        None, description="Of images, in pixels, or [height, width]; null: their own where all are alike, else 224."
    )
    num_channels: Literal[1, 3] | None = Field(None, description="1: gray, 3: color; null: the images' own, else 3.")
    augmentation: AugmentationOptions | None = Field(None, description="Random changes of training images.")
    mask_probability: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Share of what a masked model is asked for; null: 0.15 of tokens, 0.6 of patches."
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        """Exactly one of `name` and `source`."""
        if (self.name is None) == (self.source is None):
            state = "names neither name nor source" if self.name is None else "names both name and source"
            raise ValueError(f"{state}; keep exactly one, for example name: shakespeare")
        return self

    def check_for(self, task: str) -> None:
        """Refuse keys that a task does not read, and the lack of one that it needs.

        Raises:
            ValueError: With the key and the remedy.
        """
        entry = TASKS[task]
        known = {*ORIGIN_KEYS, *entry.needs, *entry.reads}
        for name, value in self.model_dump(exclude_defaults=True).items():
            if name not in known:
                raise ValueError(
                    f"data.{name} is {value!r}, which task {task} does not read; remove it, or change the task"
                )
        for name in entry.needs:
            if getattr(self, name) is None:
                raise ValueError(
                    f"data.{name} is missing, and task {task} needs it; add it, for example {name}: {EXAMPLES[name]}"
                )
