"""Transcripts of speech by CTC, one token or a blank for every position."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from gnomon.data.speech import SpeechSplits, encode_clips, load_speech
from gnomon.data.speech_rows import SpeechRows, build_ctc_tokenizer
from gnomon.evaluation.speech import SpeechScore, empty_transcript_rates, evaluate_ctc
from gnomon.optional import import_optional
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
    origin,
    recipe_processor,
    tell,
)
from gnomon.training.tasks.task import Task

TEXT_KEYS = ("text_column", "language")


def load(data: DataOptions) -> SpeechSplits:
    """Clips and transcripts; that the score's package is missing is said here, not after training."""
    import_optional("jiwer", "speech")
    splits = load_speech(spliced_digits=data.spliced_digits or 0, subsampling=1, **origin(data, *TEXT_KEYS))
    tell(splits.left_out, splits.describe())
    return splits


def build_processor(recipe: Recipe, rows: SpeechRows) -> AudioProcessor:
    """A feature extractor at the data's rate, and a token a character, with the blank."""
    for stage in recipe.stages:
        if stage.training.label_smoothing:
            raise ValueError(
                f"training.label_smoothing is {stage.training.label_smoothing}, and CTC has no one target to smooth; "
                "remove it."
            )
    return recipe_processor(recipe, rows, build_ctc_tokenizer(rows.texts))


def encode(
    rows: SpeechRows, processor: AudioProcessor, data: DataOptions, labels: Sequence[str], training: bool
) -> SpeechRows | AugmentedSounds:
    """Features and ids; a clip too short for its transcript after the model's subsampling is left out."""
    check_rate(rows, processor)
    encoded = encode_clips(
        rows.clips,
        processor.feature_extractor,
        processor.tokenizer,
        "ctc",
        processor.output_length,
        data.longest_seconds,
    )
    return augmented(encoded, data) if training else encoded


def ctc_step(model: Any, batch: Mapping[str, Tensor], num_targets: Any, label_smoothing: float) -> Tensor:
    """The model's own loss, in nats a label of the step."""
    loss: Tensor = model(**batch, num_items_in_batch=num_targets).loss
    return loss


def evaluate(model: PreTrainedModel, rows: Any, processor: AudioProcessor, batch_size: int) -> SpeechScore:
    """Character and word error rates of greedy transcripts."""
    return evaluate_ctc(
        model,
        rows,
        collate=make_collate(processor, model),
        tokenizer=processor.tokenizer,
        output_length=processor.output_length,
        batch_size=batch_size,
    )


def baselines(train: SpeechRows, validation: SpeechRows) -> dict[str, dict[str, float]]:
    """Hearing nothing."""
    rates = empty_transcript_rates(validation.texts)
    return {
        "empty transcript": {
            "character_error_rate": rates.character_error_rate,
            "word_error_rate": rates.word_error_rate,
        }
    }


def load_processor(folder: Any, model: PreTrainedModel) -> AudioProcessor:
    """A checkpoint's own."""
    return AudioProcessor.load(folder, model.config.to_dict(), has_text=True)


TASK = Task(
    measures=("character_error_rate", "word_error_rate"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    loss=ctc_step,
    baselines=baselines,
    count=count_frames,
    unit="frames",
    part=SomeSounds,
    length=mean_frames,
    load_processor=load_processor,
    join=join_sounds,
    makes_ids=True,
)
