"""Sheets of samples: which rows they show, and that the page and the picture hold them."""

import base64
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gnomon import GnomonConfig, GnomonForMaskedImageModeling
from gnomon.data.image_text import load_image_text
from gnomon.data.vision import load_images
from gnomon.report.paintings import painted_samples
from gnomon.report.samples import (
    Sample,
    choose_rows,
    classified_samples,
    picture,
    retrieved_samples,
    write_samples,
)
from gnomon.training.tasks.image_rows import ImageSet


class Constant(nn.Module):
    """Answers the same class always."""

    device = torch.device("cpu")

    def forward(self, pixel_values):
        return SimpleNamespace(logits=torch.tensor([[2.0] + 9 * [0.0]]).repeat(len(pixel_values), 1))


@pytest.mark.parametrize(("errors", "shown"), [(0, 0), (3, 3), (50, 5), (98, 8), (100, 10)])
def test_sheet_shows_errors_for_up_to_a_half_and_more_only_if_little_is_right(errors, shown):
    """Of 100 rows ten are shown; errors take at most five places unless too few rows are right."""
    is_right = [row >= errors for row in range(100)]
    rows = choose_rows(is_right, 10)
    assert len(rows) == len(set(rows)) == 10
    assert sum(not is_right[row] for row in rows) == shown


def test_classifier_sheet_has_label_prediction_and_every_picture(tmp_path):
    """The page holds each digit, enlarged, with what was right and what was said; it needs no other file."""
    splits = load_images(name="digits")
    samples, summary = classified_samples(
        Constant(), splits.validation, splits.classes, collate=splits.collate(), count=6
    )
    zeros = int((splits.validation.labels == 0).sum())
    assert summary.startswith(f"{zeros} of 360 answers are right")
    assert sum(sample.is_right for sample in samples) == 3
    page = write_samples(tmp_path / "sheets/a.html", samples, "Digits & more", summary).read_text(encoding="utf-8")
    assert "<h1>Digits &amp; more</h1>" in page
    assert page.count("<dt>label</dt>") == 6
    assert "right, 45% sure" in page
    assert "http" not in page
    pictures = re.findall(r"base64,([^\"]+)", page)
    assert len(pictures) == 6
    for sample, encoded in zip(samples, pictures, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
        assert pixels.shape == (160, 160, 3)
        assert (pixels[::20, ::20, 0] == sample.image[:, :, 0]).all()


def test_png_sheet_is_one_picture(tmp_path):
    """The same samples as PNG; dollar signs and long words do no harm."""
    samples = [Sample("a $5 label", "word " * 40, False, image=np.zeros((4, 6, 3), dtype=np.uint8)) for _ in range(8)]
    file = write_samples(tmp_path / "a.png", samples, "Title", "Summary")
    image = Image.open(io.BytesIO(file.read_bytes()))
    assert image.format == "PNG"
    assert image.width > 1000


def test_spectrogram_has_time_to_the_right_and_pitch_upwards():
    """A loud low bin at the start is bright at the bottom left."""
    features = np.full((30, 80), -2.0)
    features[:3, :5] = 3.0
    image = picture(Sample("a", "a", True, features=features)).astype(int).sum(-1)
    assert image.shape == (80, 30)
    assert image[-1, 0] == image.max()
    assert image[0, 0] == image[-1, -1] == image.min()


def test_retrieval_sheet_says_where_the_label_came():
    """For each image: the text that was found first, and the rank of the right one."""
    splits = load_image_text(name="emoji-noto")
    texts = splits.validation.texts
    similarity = np.eye(len(texts))
    similarity[0, 1] = 2.0
    samples, summary = retrieved_samples(splits.validation, similarity, texts, count=4)
    assert summary.startswith(f"{len(texts) - 1} of {len(texts)} texts found are right")
    assert (samples[0].label, samples[0].prediction) == (texts[0], texts[1])
    assert samples[0].remark == f", the label ranks 2 of {len(texts)}"
    assert samples[1].is_right


def test_painted_patches_stand_beside_the_image_and_what_was_hidden(tmp_path):
    """Three pictures with a gap: the whole image, gray where it was hidden, and the model's pixels there alone."""
    splits = load_images(name="digits")
    rows = ImageSet(splits.validation, mask_ratio=0.5)
    fields = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 16, "num_attention_heads": 2}
    model = GnomonForMaskedImageModeling(GnomonConfig(**fields, num_hidden_layers=1))
    with torch.no_grad():
        model.pixel_head.weight.zero_()  # it paints the middle level everywhere
    samples, summary = painted_samples(model, rows, 3)
    assert summary.startswith("3 of 360 images")
    for number, sample in enumerate(samples):
        whole, hidden, painted = (sample.image[:, start : start + 8, 0] for start in (0, 9, 18))
        row = number * 360 // 3
        np.testing.assert_array_equal(whole, splits.validation.array(row)[:, :, 0])
        mask = rows.masks([row], 4).view(2, 2).repeat_interleave(4, 0).repeat_interleave(4, 1).numpy()
        assert set(hidden[mask]) == {160}
        assert set(painted[mask]) <= {127, 128}
        for shown in (hidden, painted):
            np.testing.assert_array_equal(shown[~mask], whole[~mask])
        assert sample.name == splits.validation.images.names[row]
    page = write_samples(tmp_path / "sheet.html", samples, "Painted", summary).read_text(encoding="utf-8")
    assert "levels off" in page
    assert "<dt>label" not in page
    assert write_samples(tmp_path / "sheet.png", samples, "Painted $1", summary).stat().st_size > 5_000


def test_an_input_that_cannot_be_read_any_more_is_said_in_its_place(tmp_path):
    """One file that went bad does not take the sheet of all others with it."""
    folder = tmp_path / "pictures"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (8, 8), number).save(folder / name / f"{number}.png")
    splits = load_images(source=folder, image_size=8, num_channels=1, validation_percent=50)
    bad = splits.validation.images.names[0]
    (folder / bad).write_bytes(b"")
    samples, _ = classified_samples(Constant(), splits.validation, ["a", "b", *"cdefghij"], collate=splits.collate())
    assert samples[0].image is None
    assert samples[0].text == f"{bad} cannot be shown: it is no image, or empty"
    for ending in ("html", "png"):
        write_samples(tmp_path / f"sheet.{ending}", samples, "Title")
    assert bad in (tmp_path / "sheet.html").read_text(encoding="utf-8")


def test_other_endings_and_empty_sheets_are_refused(tmp_path):
    """The ending says which kind of sheet; there must be something to show."""
    sample = Sample("a", "b", False)
    with pytest.raises(ValueError, match=r"must end in \.html or \.png, not '\.pdf'"):
        write_samples(tmp_path / "a.pdf", [sample], "Title")
    with pytest.raises(ValueError, match="shows at least one"):
        write_samples(tmp_path / "a.html", [], "Title")
    assert "<script>" not in write_samples(
        tmp_path / "a.html", [Sample("<script>", "", True, text="<script>")], "<script>"
    ).read_text(encoding="utf-8")
