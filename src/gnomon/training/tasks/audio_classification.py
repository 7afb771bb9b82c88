"""The class of a sound."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from gnomon.data.audio import read_sound
from gnomon.data.audio_classes import AudioClassSplits, load_audio_classes
from gnomon.data.classification import majority_label
from gnomon.data.speech_rows import SpeechRows, mean_filterbank
from gnomon.evaluation.baselines import nearest
from gnomon.evaluation.classification import ClassificationScore, evaluate_classifier, macro_f1
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


def load(data: DataOptions) -> AudioClassSplits:
    """Sounds with a class each."""
    splits = load_audio_classes(**origin(data, "label_column"))
    tell(splits.left_out, splits.describe())
    return splits


def build_processor(recipe: Recipe, rows: SpeechRows) -> AudioProcessor:
    """A feature extractor at the data's rate."""
    return recipe_processor(recipe, rows, None)


def class_names(rows: SpeechRows) -> list[str]:
    """The classes of the training side, sorted."""
    return sorted(set(rows.texts))


def encode(
    rows: SpeechRows, processor: AudioProcessor, data: DataOptions, labels: Sequence[str], training: bool
) -> SpeechRows | AugmentedSounds:
    """Features and class numbers.

    Raises:
        ValueError: A sound has a class that the model does not know.
    """
    check_rate(rows, processor)
    unknown = sorted(set(rows.texts) - set(labels))
    if unknown:
        raise ValueError(f"the class {unknown[0]!r} is none of the model's ({', '.join(labels[:10])}); leave it out.")
    numbers = [labels.index(text) for text in rows.texts]
    encoded = SpeechRows(rows.clips, processor.feature_extractor, numbers)
    return augmented(encoded, data) if training else encoded


def evaluate(model: PreTrainedModel, rows: Any, processor: AudioProcessor, batch_size: int) -> ClassificationScore:
    """Accuracy and macro F1."""
    return evaluate_classifier(model, rows, collate=make_collate(processor, model), batch_size=batch_size)


def baselines(train: SpeechRows, validation: SpeechRows) -> dict[str, dict[str, float]]:
    """The most frequent class for everything, and the class of the sound whose mean filterbank is nearest."""
    truth = np.array(validation.labels)
    known, labels = mean_filterbanks(train)
    asked, wanted = mean_filterbanks(validation)
    answer = np.full(len(truth), majority_label(np.array(train.labels)))
    neighbor = labels[nearest(known, asked)]
    return {
        name: {"accuracy": float((answers == right).mean()), "macro_f1": macro_f1(answers, right)}
        for name, answers, right in (("majority class", answer, truth), ("nearest neighbor", neighbor, wanted))
    }


def mean_filterbanks(rows: SpeechRows) -> tuple[np.ndarray, np.ndarray]:
    """The mean filterbank (rows, mel bins) and the class (rows,) of every sound that can be read."""
    means, labels = [], []
    for sound, label in zip(rows.clips.sounds, rows.labels, strict=True):
        with suppress(ValueError):
            means.append(mean_filterbank(read_sound(sound, rows.extractor.sampling_rate), rows.extractor).numpy())
            labels.append(label)
    return np.stack(means), np.array(labels)


def load_processor(folder: Any, model: PreTrainedModel) -> AudioProcessor:
    """A checkpoint's own."""
    return AudioProcessor.load(folder, model.config.to_dict(), has_text=False)


TASK = Task(
    measures=("accuracy", "macro_f1"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    labels=class_names,
    baselines=baselines,
    count=count_frames,
    unit="frames",
    classes=lambda config: config.num_labels,
    part=SomeSounds,
    length=mean_frames,
    load_processor=load_processor,
    join=join_sounds,
)
