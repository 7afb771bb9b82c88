"""Training on images: classes, hidden patches and fine-tuning, from recipe to sheet of predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import pipeline

import gnomon
from gnomon import GnomonConfig, GnomonForImageClassification
from gnomon.training.data_options import DataOptions
from gnomon.training.optimization import layer_rates, spread_rates
from gnomon.training.recipe import load_recipe
from gnomon.training.tasks import find_task, task_of_fields
from tiny_runs import resumed_weights

MODEL = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_attention_tokens": 8,
    "num_output_tokens": 8,
    "num_feed_forward_tokens": 24,
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of bars, upright or lying, and one file that is damaged."""
    root, random = tmp_path_factory.mktemp("bars"), np.random.default_rng(0)
    for name in ("lying", "upright"):
        (root / name).mkdir()
        for number in range(20):
            levels = random.integers(0, 60, (8, 8), dtype=np.uint8)
            place = (number % 8, slice(None)) if name == "lying" else (slice(None), number % 8)
            levels[place] = 255
            Image.fromarray(levels).save(root / name / f"{number}.png")
    (root / "lying" / "damaged.png").write_bytes(b"\x89PNG\r\n")
    return root


def recipe(pictures: Path, task: str = "image-classification", **training: Any) -> dict[str, Any]:
    stage = {"max_steps": 4, "learning_rate": 0.01, "batch_size": 8, "warmup_steps": 1, "log_every": 1}
    return {
        "task": task,
        "model": MODEL,
        "data": {"source": str(pictures), "image_size": 8, "num_channels": 1, "validation_percent": 25},
        "stages": [{"training": {**stage, **training}}],
    }


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with every habit of training: changed images, mixup, smoothing, micro-batches, growth."""
    output = tmp_path_factory.mktemp("runs") / "classes"
    written = recipe(pictures, max_steps=120, label_smoothing=0.1, gradient_accumulation_steps=2, batch_size=10)
    written["data"]["augmentation"] = {"crop_padding": 1, "flip": 0.5, "mixup": 0.3, "rand_augment_operations": 1}
    growth = {"num_attention_tokens": 12, "num_feed_forward_tokens": 32, "num_output_tokens": 12}
    written["stages"].append({"growth": growth, "training": {"max_steps": 4}})
    gnomon.train(written, output, progress=False)
    return output


def test_a_classifier_of_images_trains_grows_exactly_and_keeps_its_books(trained: Path) -> None:
    """The ledger counts images, the growth changed nothing, and the answers are better than the commonest class."""
    first, second = (json.loads(line) for line in (trained / "ledger.jsonl").read_text().splitlines())
    assert (first["status"], second["status"]) == ("finished", "finished")
    # micro-batches of 10 two by two, of which the last of an epoch may be alone
    assert first["tokens"] > 120 * 10
    assert first["flops"] % first["tokens"] == 0
    assert second["parameters"] > first["parameters"]
    growth = json.loads((trained / "growth-1.json").read_text())
    assert growth["exact"]
    assert second["accuracy"] > 0.6


def test_a_trained_folder_answers_through_the_pipeline(trained: Path, pictures: Path) -> None:
    """With the names of the class folders, for a picture of another size and in color."""
    classify = pipeline("image-classification", model=str(trained / "model"), device="cpu")
    bar = Image.open(pictures / "upright" / "3.png").convert("RGB").resize((32, 24), Image.Resampling.NEAREST)
    answers = classify(bar)
    assert {answer["label"] for answer in answers} == {"lying", "upright"}
    assert sum(answer["score"] for answer in answers) == pytest.approx(1, abs=1e-4)


def test_evaluation_compares_with_baselines_and_writes_a_sheet(trained: Path, pictures: Path, tmp_path: Path) -> None:
    """`gnomon evaluate` takes the model's own image size, and the sheet is a picture."""
    from typer.testing import CliRunner

    from gnomon.cli.main import app

    sheet = tmp_path / "sheet.png"
    arguments = ["evaluate", str(trained / "model"), "--source", str(pictures), "--split", "all", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--baselines", "--samples", str(sheet)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sequences"] == 40
    assert set(found["baselines"]) == {"majority class", "nearest centroid", "nearest neighbor"}
    with Image.open(sheet) as image:
        assert image.width > 500
    (tmp_path / "folder.png").mkdir()
    for place, said in (
        ("folder.png", "is a folder: name a file"),
        ("sheet.png/a.png", "which is a file: name another"),
    ):
        refused = CliRunner().invoke(app, [*arguments, "--samples", str(tmp_path / place)])
        assert isinstance(refused.exception, FileExistsError)
        assert said in str(refused.exception)


def test_hidden_patches_train_an_encoder_that_is_then_fine_tuned(
    pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same hidden patches every evaluation; the classifier starts from its backbone, at smaller rates below."""
    first = gnomon.train(
        recipe(pictures, "masked-image-modeling", gradient_accumulation_steps=2), tmp_path / "hidden", progress=False
    )
    assert first.ledger[0]["level_error"] == pytest.approx(first.ledger[0]["validation_loss"] * 127.5)
    written = recipe(pictures, layer_learning_rate_decay=0.5)
    written["model"] = {"checkpoint": str(tmp_path / "hidden" / "model")}
    capfd.readouterr()
    second = gnomon.train(written, tmp_path / "tuned", progress=True)
    assert " images/s" in capfd.readouterr().err
    assert second.ledger[0]["status"] == "finished"
    rates = [
        json.loads(line).get("learning_rate") for line in (tmp_path / "tuned/metrics.jsonl").read_text().splitlines()
    ]
    assert rates[0] == pytest.approx(0.01)


def test_a_row_hides_the_same_patches_whenever_it_is_scored(pictures: Path) -> None:
    """Alone or in a part of the rows; training rows hide others every time, and count them as targets."""
    task = find_task("masked-image-modeling")
    options = DataOptions(source=str(pictures), image_size=8, num_channels=1, mask_probability=0.5)
    splits = task.load(options)
    rows = task.encode(splits.train, splits.processor, options, [], False)
    assert torch.equal(rows.masks([5], 16), rows.masks([4, 5], 16)[1:])
    part = task.part(rows, 3)
    assert torch.equal(part.masks([1], 16), rows.masks([part.place(1)], 16))
    model = gnomon.GnomonForMaskedImageModeling(GnomonConfig(**MODEL, num_labels=2))
    collate = task.encode(splits.train, splits.processor, options, [], True).collator(model)
    batch = collate([rows[0], rows[1]])
    assert batch["bool_masked_pos"].sum(1).tolist() == [2, 2]
    assert ((batch["labels"] != -100) == batch["bool_masked_pos"]).all()


def test_micro_batches_weigh_by_their_images() -> None:
    """Accumulated losses of shares or numbers, and of hidden patches, are those of one large batch."""
    torch.manual_seed(0)
    config = GnomonConfig(**MODEL, num_labels=3)
    images, labels = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    classifier, task = GnomonForImageClassification(config).eval(), find_task("image-classification")
    shares = torch.nn.functional.one_hot(labels, 3).float()
    for targets, counted in ((labels, 6), (shares, 18)):  # Trainer counts the entries of labels
        whole = task.loss(classifier, {"pixel_values": images, "labels": targets}, counted, 0.1)
        parts = [
            task.loss(classifier, {"pixel_values": images[piece], "labels": targets[piece]}, counted, 0.1)
            for piece in (slice(0, 2), slice(2, 6))
        ]
        torch.testing.assert_close(sum(parts), whole)
    painter, task = gnomon.GnomonForMaskedImageModeling(config).eval(), find_task("masked-image-modeling")
    hidden = torch.tensor([[1, 0, 1, 0]] * 6).bool()
    whole = painter(pixel_values=images, bool_masked_pos=hidden).loss
    parts = [
        task.loss(painter, {"pixel_values": images[piece], "bool_masked_pos": hidden[piece], "labels": hidden}, 12, 0.0)
        for piece in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_earlier_layers_learn_at_smaller_rates() -> None:
    """Each block half as fast as the next, embeddings slowest, what follows the blocks at the full rate."""
    model = GnomonForImageClassification(GnomonConfig(**MODEL, use_bias=False))
    rates = layer_rates(model, 0.5)
    named = {name: rates[parameter] for name, parameter in model.named_parameters()}
    assert named["classifier.weight"] == named["model.norm.weight"] == 1.0
    assert named["model.layers.1.attention.query.key_tokens"] == 0.5
    assert named["model.layers.0.feed_forward.value_tokens"] == 0.25
    assert named["model.embed_patches.positions.weight"] == named["model.embed_patches.projection.weight"] == 0.125
    optimizer = torch.optim.AdamW(
        [{"params": list(model.parameters())[:9], "weight_decay": 0.3}, {"params": list(model.parameters())[9:]}],
        lr=2.0,
    )
    spread_rates(optimizer, rates)
    assert optimizer.param_groups[0]["lr"] == 2.0
    found = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert found == {parameter: 2.0 * rate for parameter, rate in rates.items()}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(rates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: r["data"].update(image_size=12),
            r"the model reads 1 channels of 8 x 8 pixels, and the data give 1 of 12",
        ),
        (lambda r: r["model"].pop("image_size"), "patch_size needs image_size"),
        (lambda r: r["data"].update(image_size=0), "^data.image_size must be above 0, got 0"),
        (lambda r: r["data"].update(sequence_length=9), "data.sequence_length is 9, which task image-classification"),
        (lambda r: r["data"].update(augmentation={"flop": 1}), "flop"),
        (lambda r: r.update(tokenizer={"kind": "byte"}), "task image-classification reads no text"),
        (
            lambda r: r["stages"].append(
                {"growth": {"num_output_tokens": 9}, "training": {"max_steps": 2, "layer_learning_rate_decay": 0.5}}
            ),
            "layer_learning_rate_decay 0.5 and a growth that carries the optimizer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    pictures: Path, tmp_path: Path, change, message
) -> None:
    """In one sentence; there is no folder afterwards."""
    written = recipe(pictures)
    written["model"] = dict(written["model"])
    change(written)
    with pytest.raises(ValueError, match=message):
        gnomon.train(written, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["image-classification", "masked-image-modeling"])
@pytest.mark.parametrize("training", [{"workers": 2}, {"gradient_accumulation_steps": 2, "evaluate_every": 2}])
def test_a_resumed_run_of_images_ends_as_one_that_never_stopped(
    pictures: Path, tmp_path: Path, task: str, training: dict[str, int]
) -> None:
    """Every change of the images, the hidden patches, dropout and dropped rows included: the same weights, bit by bit.

    The loader reads a batch ahead, so that draws from torch's own generator would come out differently.
    """
    written = recipe(pictures, task, max_steps=8, save_every=5, **training)
    written["model"] = {**MODEL, "hidden_dropout": 0.1, "drop_path_rate": 0.1}
    changes = {"crop_padding": 1, "flip": 0.5, "rand_augment_operations": 1, "rotation": 10, "shift": 0.1}
    written["data"]["augmentation"] = changes | ({"mixup": 0.3} if task == "image-classification" else {})
    whole, resumed = resumed_weights(written, tmp_path, 5)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


def test_images_are_changed_anew_every_epoch(pictures: Path) -> None:
    """The same batch comes out differently in the next epoch, and as before in the same one."""
    task = find_task("image-classification")
    options = DataOptions(source=str(pictures), image_size=8, num_channels=1, augmentation={"flip": 0.5, "shift": 0.3})
    splits = task.load(options)
    rows = task.encode(splits.train, splits.processor, options, ["lying", "upright"], True)
    collate, found = rows.collator(None), []
    for epoch in (0, 0, 1):
        rows.begin_epoch(3, 0, epoch)
        found.append(collate([rows[index] for index in range(6)])["pixel_values"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_single_class_is_nothing_to_tell_apart(pictures: Path, tmp_path: Path) -> None:
    """A classifier of one class would be right about everything."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "lying").symlink_to(pictures / "lying")
    written = recipe(tmp_path / "one")
    with pytest.raises(ValueError, match="the training data have only one, 'lying'; add rows of another"):
        gnomon.train(written, tmp_path / "run", progress=False)


def test_a_class_that_the_model_does_not_know_is_refused(pictures: Path) -> None:
    """Other classes' numbers would be scored against the wrong names; known ones are numbered as the model has them."""
    task = find_task("image-classification")
    options = DataOptions(source=str(pictures), image_size=8, num_channels=1)
    splits = task.load(options)
    turned = task.encode(splits.validation, splits.processor, options, ["upright", "square", "lying"], False)
    names = np.array(["upright", "square", "lying"])[turned.labels]
    assert names.tolist() == np.array(splits.classes)[splits.validation.labels].tolist()
    with pytest.raises(ValueError, match=r"the class 'lying' is none of the 1 that the model knows \(upright"):
        task.encode(splits.validation, splits.processor, options, ["upright"], False)


def test_a_model_of_images_is_for_classifying() -> None:
    """A recipe that names no task learns classes."""
    assert task_of_fields({"image_size": 8, "is_decoder": False}) == "image-classification"
    assert load_recipe("image-digits").task == "image-classification"
