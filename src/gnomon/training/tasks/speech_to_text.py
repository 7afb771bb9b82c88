"""Transcripts of speech, written by a decoder that looks at an encoder's output."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from gnomon.data.speech import encode_clips
from gnomon.data.speech_rows import SpeechRows
from gnomon.evaluation.speech import SpeechScore
from gnomon.evaluation.transcription import evaluate_transcription
from gnomon.training.data_options import DataOptions
from gnomon.training.options import Recipe
from gnomon.training.tasks.audio_processor import (
    AudioProcessor,
    AugmentedSounds,
    SomeSounds,
    augmented,
    check_rate,
    count_frames,
    join_sounds,
    make_collate,
    mean_frames,
    recipe_processor,
)
from gnomon.training.tasks.speech_recognition import baselines, load
from gnomon.training.tasks.task import Task
from gnomon.training.tasks.text import recipe_tokenizer

LONGEST_TRANSCRIPT = 256
"""Tokens after which a decoder stops writing where a recipe does not say."""


def build_processor(recipe: Recipe, rows: SpeechRows) -> AudioProcessor:
    """A feature extractor at the data's rate, and the recipe's tokenizer."""
    transcripts = {str(number): text for number, text in enumerate(rows.texts)}
    return recipe_processor(recipe, rows, recipe_tokenizer(recipe, transcripts))


def encode(
    rows: SpeechRows, processor: AudioProcessor, data: DataOptions, labels: Sequence[str], training: bool
) -> SpeechRows | AugmentedSounds:
    """Features and ids, these with the mark of the end."""
    assert processor.tokenizer is not None
    check_rate(rows, processor)
    encoded = encode_clips(
        rows.clips,
        processor.feature_extractor,
        processor.tokenizer,
        "seq2seq",
        processor.output_length,
        data.longest_seconds,
    )
    return augmented(encoded, data) if training else encoded


def finish_model(model: PreTrainedModel, recipe: Recipe) -> None:
    """A transcript ends somewhere, where the recipe does not say."""
    if recipe.generation is None or recipe.generation.max_new_tokens is None:
        model.generation_config.max_new_tokens = LONGEST_TRANSCRIPT


def writing_loss(model: Any, batch: Mapping[str, Tensor], num_targets: Any, label_smoothing: float) -> Tensor:
    """The model's own loss, which reads the labels one place late."""
    loss: Tensor = model(**batch, num_items_in_batch=num_targets, label_smoothing=label_smoothing).loss
    return loss


def evaluate(model: PreTrainedModel, rows: Any, processor: AudioProcessor, batch_size: int) -> SpeechScore:
    """Character and word error rates of transcripts written as the model's generation settings say."""
    assert processor.tokenizer is not None
    return evaluate_transcription(
        model,
        rows,
        collate=make_collate(processor, model),
        decode=partial(processor.tokenizer.decode, skip_special_tokens=True),
        batch_size=batch_size,
    )


def load_processor(folder: Path, model: PreTrainedModel) -> AudioProcessor:
    """A checkpoint's own."""
    return AudioProcessor.load(folder, model.config.to_dict(), has_text=True)


TASK = Task(
    measures=("character_error_rate", "word_error_rate"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    loss=writing_loss,
    finish_model=finish_model,
    baselines=baselines,
    count=count_frames,
    unit="frames",
    part=SomeSounds,
    length=mean_frames,
    load_processor=load_processor,
    join=join_sounds,
)
