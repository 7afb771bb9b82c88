"""The class of an image."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from gnomon.data.vision import ImageCollator, ImageRows
from gnomon.evaluation.baselines import majority_accuracy, nearest_centroid_accuracy, nearest_neighbor_accuracy
from gnomon.evaluation.classification import ClassificationScore, evaluate_classifier
from gnomon.training.data_options import DataOptions
from gnomon.training.tasks.image_rows import (
    ImageSet,
    augmentation_of,
    build_processor,
    count_images,
    join,
    load,
    load_processor,
    settled,
    with_labels,
)
from gnomon.training.tasks.task import Collate, Task


def class_names(rows: ImageRows) -> list[str]:
    """The classes of the training side."""
    return list(rows.images.classes)


def encode(rows: ImageRows, processor: Any, data: DataOptions, labels: Sequence[str], training: bool) -> ImageSet:
    """Pixel values and class numbers, with augmentation for training."""
    return ImageSet(with_labels(rows, labels), augmentation_of(data) if training else None)


def make_collate(processor: Any, model: PreTrainedModel) -> Collate:
    """Images of one size are stacked."""
    return ImageCollator(model.config.num_labels)


def loss(model: Any, batch: Mapping[str, Tensor], num_targets: Any, label_smoothing: float) -> Tensor:
    """The model's own loss; shares of classes, which mixup makes, are one target an image."""
    labels = batch["labels"]
    if labels.dim() == 2 and num_targets is not None:
        num_targets = num_targets / labels.shape[1]
    found: Tensor = model(**batch, label_smoothing=label_smoothing, num_items_in_batch=num_targets).loss
    return found


def evaluate(model: PreTrainedModel, rows: Any, processor: Any, batch_size: int) -> ClassificationScore:
    """Accuracy and macro F1."""
    return evaluate_classifier(model, rows, collate=make_collate(processor, model), batch_size=batch_size)


def baselines(train: ImageSet, validation: ImageSet) -> dict[str, dict[str, float]]:
    """The commonest class, the class whose mean image is nearest, and that of the nearest image."""
    known, asked = train.pixels(), validation.pixels()
    sides = (known, train.labels, asked, validation.labels)
    return {
        "majority class": {"accuracy": majority_accuracy(train.labels, validation.labels)},
        "nearest centroid": {"accuracy": nearest_centroid_accuracy(*sides)},
        "nearest neighbor": {"accuracy": nearest_neighbor_accuracy(*sides)},
    }


TASK = Task(
    measures=("accuracy", "macro_f1"),
    load=load,
    build_processor=build_processor,
    encode=encode,
    collate=make_collate,
    evaluate=evaluate,
    labels=class_names,
    loss=loss,
    baselines=baselines,
    count=count_images,
    unit="images",
    classes=lambda config: config.num_labels,
    part=ImageSet.part,
    length=lambda rows: 1,
    load_processor=load_processor,
    join=join,
    settled=settled,
)
