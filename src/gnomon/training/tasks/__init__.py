"""The tasks that a recipe can name: one table, light enough to check a recipe without importing a model."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnomon.training.tasks.task import Task


@dataclass(frozen=True)
class TaskEntry:
    """What a recipe has to know of a task.

    Attributes:
        module: Where its `TASK` is.
        head: The public name of the model class that learns it.
        needs: Keys of `data` that it cannot do without.
        reads: Further keys of `data` that it understands, beside those that say where the data are.
        uses_tokenizer: Whether it reads text.
        generates: Whether its models write, so that a recipe may say how.
        compares_rows: Whether the rows of a batch are told from one another: there are two at least, none mixed of two.
    """

    module: str
    head: str
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    uses_tokenizer: bool = True
    generates: bool = False
    compares_rows: bool = False


SOUND_KEYS = ("audio_column", "group_column", "sampling_rate", "longest_seconds", "spec_augment")
"""Keys of `data` that every task of sound reads."""

IMAGE_KEYS = ("image_column", "image_size", "num_channels", "augmentation")
"""Keys of `data` that every task of images reads."""

TASKS: dict[str, TaskEntry] = {
    "language-modeling": TaskEntry(
        module="gnomon.training.tasks.language_modeling",
        head="GnomonForCausalLM",
        needs=("sequence_length",),
        reads=("column",),
        generates=True,
    ),
    "masked-language-modeling": TaskEntry(
        module="gnomon.training.tasks.masked_language_modeling",
        head="GnomonForMaskedLM",
        needs=("sequence_length",),
        reads=("column", "mask_probability"),
    ),
    "text-classification": TaskEntry(
        module="gnomon.training.tasks.text_classification",
        head="GnomonForSequenceClassification",
        needs=("sequence_length",),
        reads=("column", "label_column"),
    ),
    "translation": TaskEntry(
        module="gnomon.training.tasks.translation",
        head="GnomonForSeq2SeqLM",
        needs=("sequence_length", "source_column", "target_column"),
        generates=True,
    ),
    "speech-recognition": TaskEntry(
        module="gnomon.training.tasks.speech_recognition",
        head="GnomonForCTC",
        reads=("text_column", "language", "spliced_digits", *SOUND_KEYS),
        uses_tokenizer=False,
    ),
    "speech-to-text": TaskEntry(
        module="gnomon.training.tasks.speech_to_text",
        head="GnomonForSpeechSeq2Seq",
        reads=("text_column", "language", "spliced_digits", *SOUND_KEYS),
        generates=True,
    ),
    "audio-classification": TaskEntry(
        module="gnomon.training.tasks.audio_classification",
        head="GnomonForAudioClassification",
        reads=("label_column", *SOUND_KEYS),
        uses_tokenizer=False,
    ),
    "image-classification": TaskEntry(
        module="gnomon.training.tasks.image_classification",
        head="GnomonForImageClassification",
        reads=("label_column", *IMAGE_KEYS),
        uses_tokenizer=False,
    ),
    "masked-image-modeling": TaskEntry(
        module="gnomon.training.tasks.image_modeling",
        head="GnomonForMaskedImageModeling",
        reads=("label_column", "mask_probability", *IMAGE_KEYS),
        uses_tokenizer=False,
    ),
    "image-text-contrastive": TaskEntry(
        module="gnomon.training.tasks.image_text",
        head="GnomonForImageTextContrastive",
        reads=("text_column", "artist", "sequence_length", *IMAGE_KEYS),
        compares_rows=True,
    ),
}
"""Every task by its name in a recipe."""

ORIGIN_KEYS = ("name", "source", "validation", "validation_percent", "split", "subset")
"""Keys of `data` that say where the data are, whatever is learned from them."""


def find_task(name: str) -> "Task":
    """What the task of that name does; its module is imported when it is first asked for."""
    task: Task = importlib.import_module(TASKS[name].module).TASK
    return task


def task_of_head(head: str) -> str | None:
    """The task that a model class learns, gnomon's own or another of transformers, or None.

    >>> task_of_head("GnomonForCausalLM"), task_of_head("GPT2LMHeadModel"), task_of_head("GPT2Model")
    ('language-modeling', 'language-modeling', None)
    """
    ending = head.replace("LMHeadModel", "ForCausalLM")
    return next((name for name, entry in TASKS.items() if ending.endswith(entry.head.removeprefix("Gnomon"))), None)


def task_of_fields(fields: Mapping[str, Any]) -> str:
    """The task that a model with these configuration fields is first of all for.

    >>> task_of_fields({"encoder_layers": 3, "decoder_layers": 3})
    'translation'
    """
    if fields.get("encoder_layers") and fields.get("decoder_layers"):
        return "speech-to-text" if fields.get("num_mel_bins") else "translation"
    if fields.get("vision_config"):
        return "image-text-contrastive"
    if fields.get("image_size"):
        return "image-classification"
    if fields.get("num_mel_bins"):
        return "audio-classification" if fields.get("vocab_size") is None else "speech-recognition"
    return "masked-language-modeling" if fields.get("is_decoder") is False else "language-modeling"
