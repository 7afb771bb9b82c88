"""Heads that classify: what is pooled, what padding does, and which loss belongs to which labels."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from contract import DIFFERENT, SAME, gap
from gnomon import (
    GnomonConfig,
    GnomonForAudioClassification,
    GnomonForCTC,
    GnomonForImageClassification,
    GnomonForMaskedImageModeling,
    GnomonForMaskedLM,
    GnomonForSequenceClassification,
    GnomonForTokenClassification,
)
from gnomon.models.classification import pool
from samples import PLACED, VARIANTS, build, random_ids

LABELS = {"num_labels": 5}
IMAGES = {"vocab_size": None, "image_size": 12, "patch_size": 4}
SOUNDS = {"vocab_size": None, "num_mel_bins": 8, "num_conv_pos_embeddings": 4}
KINDS = {
    "texts": (GnomonForSequenceClassification, {}),
    "images": (GnomonForImageClassification, IMAGES),
    "sounds": (GnomonForAudioClassification, SOUNDS),
}


def classifier(variant: str = "linear", **changes):
    return build(GnomonForSequenceClassification, {**VARIANTS[variant], **LABELS, **changes})


@pytest.mark.parametrize("variant", ["l2_norm_gelu", "linear", *PLACED])
@pytest.mark.parametrize("is_decoder", [True, False])
@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@torch.no_grad()
def test_padding_on_either_side_leaves_the_class_scores_alone(variant: str, is_decoder: bool, pooling: str) -> None:
    """A row has the scores that it has by itself; without the mask it does not."""
    model = classifier(variant, is_decoder=is_decoder, classifier_pooling=pooling)
    words, padding = random_ids(3, 7), random_ids(3, 4, seed=9)
    alone = model(input_ids=words).logits
    for side in ("left", "right"):
        both = torch.cat((padding, words) if side == "left" else (words, padding), dim=1)
        mask = torch.tensor([[0] * 4 + [1] * 7] * 3)
        mask = mask if side == "left" else mask.flip(-1)
        assert gap(model(input_ids=both, attention_mask=mask).logits, alone) < SAME
        sees_padding = not is_decoder or side == "left" or pooling != "first"
        assert (gap(model(input_ids=both).logits, alone) > DIFFERENT) == sees_padding


def test_pooling_takes_the_tokens_that_it_names() -> None:
    """First, last and mean of the real tokens, whichever side the padding is on."""
    hidden = torch.arange(12.0).view(2, 6, 1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    assert pool(hidden, mask, "first").flatten().tolist() == [2, 6]
    assert pool(hidden, mask, "last").flatten().tolist() == [4, 11]
    assert pool(hidden, mask, "mean").flatten().tolist() == [3, 8.5]
    assert pool(hidden, None, "mean").flatten().tolist() == [2.5, 8.5]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("num_labels", "problem_type", "labels", "loss"),
    [
        (5, None, torch.tensor([0, 3, 4]), lambda x, y: F.cross_entropy(x, y)),
        (
            5,
            "single_label_classification",
            torch.tensor([0, -100, 4]),
            lambda x, y: F.cross_entropy(x[[0, 2]], y[[0, 2]]),
        ),
        (5, "multi_label_classification", torch.ones(3, 5), F.binary_cross_entropy_with_logits),
        (1, None, torch.tensor([0.5, 1.0, -2.0]), lambda x, y: F.mse_loss(x.squeeze(-1), y)),
        (5, "regression", torch.ones(3, 5), F.mse_loss),
    ],
)
def test_the_loss_follows_the_labels(num_labels: int, problem_type: str | None, labels, loss, kind: str) -> None:
    """One class, several classes or numbers, as the labels or `problem_type` say, of texts, images and sounds."""
    cls, fields = KINDS[kind]
    model = build(cls, {**VARIANTS["linear"], **fields, "num_labels": num_labels, "problem_type": problem_type})
    outputs = model(**model.random_inputs(rows=3, length=7), labels=labels)
    torch.testing.assert_close(outputs.loss, loss(outputs.logits, labels))
    outputs.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (GnomonForImageClassification, {**IMAGES, **LABELS}),
        (GnomonForMaskedImageModeling, IMAGES),
        (GnomonForAudioClassification, {**SOUNDS, **LABELS}),
        (GnomonForCTC, {**SOUNDS, "vocab_size": 20}),
    ],
)
def test_what_embeds_images_and_sounds_can_be_hooked_for_gradients(cls: type, fields: dict) -> None:
    """With every parameter frozen, as under an adapter, gradients flow from the embeddings once that is asked for."""
    model = build(cls, {**VARIANTS["linear"], **fields}).requires_grad_(False)
    inputs = model.random_inputs(rows=2, length=7)
    assert not model(**inputs, output_hidden_states=True).hidden_states[-1].requires_grad
    model.enable_input_require_grads()
    assert model(**inputs, output_hidden_states=True).hidden_states[-1].requires_grad


def test_label_smoothing_spreads_the_target() -> None:
    """A share s of each target goes evenly to all labels."""
    model, labels = classifier(), torch.tensor([0, 3, 4])
    outputs = model(input_ids=random_ids(3, 7), labels=labels, label_smoothing=0.2)
    torch.testing.assert_close(outputs.loss, F.cross_entropy(outputs.logits, labels, label_smoothing=0.2))


@torch.no_grad()
def test_classifiers_come_back_from_disk_through_the_auto_classes(tmp_path) -> None:
    """With their labels' names, and a fresh head where only an encoder was saved."""
    for auto, cls in (
        (AutoModelForSequenceClassification, GnomonForSequenceClassification),
        (AutoModelForTokenClassification, GnomonForTokenClassification),
    ):
        names = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}
        model = build(cls, {**VARIANTS["linear"], "is_decoder": False})
        assert model.num_labels == 2
        model = cls(GnomonConfig(**VARIANTS["linear"], is_decoder=False, **names)).eval()
        model.save_pretrained(tmp_path / cls.__name__)
        loaded = auto.from_pretrained(tmp_path / cls.__name__)
        assert isinstance(loaded, cls)
        assert loaded.config.id2label[2] == "perhaps"
        ids = random_ids(2, 6)
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    encoder = build(GnomonForMaskedLM, VARIANTS["linear"])
    encoder.save_pretrained(tmp_path / "encoder")
    tuned, report = GnomonForSequenceClassification.from_pretrained(
        tmp_path / "encoder", num_labels=4, output_loading_info=True
    )
    assert sorted(report["missing_keys"]) == ["classifier.bias", "classifier.weight"]
    assert torch.equal(tuned.model.layers[0].feed_forward.up.weight, encoder.model.layers[0].feed_forward.up.weight)


def test_a_masked_language_model_refuses_to_be_a_decoder() -> None:
    """It looks both ways."""
    with pytest.raises(ValueError, match="is_decoder: false; got true"):
        GnomonForMaskedLM(GnomonConfig(**VARIANTS["linear"], is_decoder=True))
