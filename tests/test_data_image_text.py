"""Images with text: what is read and held out, and the rows and batches made of it."""

import numpy as np
import pytest
import torch
from PIL import Image

from gnomon.data.augmentation import ImageAugmentation
from gnomon.data.converters import EMOJI_ARTISTS, write_sheet
from gnomon.data.image_text import load_image_text
from gnomon.data.tokenizers import build_tokenizer

NAMES = ["red-heart", "blue-heart", "cat", "dog_face"]


@pytest.fixture
def emoji(tmp_path, monkeypatch):
    """A stand-in for the fetched emoji: four artists, whose pictures are of one level each, by artist and name."""
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path))
    folder = tmp_path / "emoji"
    folder.mkdir()
    (folder / "names.tsv").write_text("name\tcategory\n" + "".join(f"{name}\tx\n" for name in NAMES))
    for number, artist in enumerate(EMOJI_ARTISTS):
        levels = [50 * number + 10 * row for row in range(len(NAMES))]
        pictures = np.array(levels, dtype=np.uint8)[:, None, None, None].repeat(32, 1).repeat(32, 2).repeat(3, 3)
        write_sheet(folder / f"{artist}.webp", pictures)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures with a table of captions, some of them equal."""
    root = tmp_path / "pictures"
    root.mkdir()
    lines = ["file,text"]
    for number in range(12):
        Image.new("RGB", (9, 7), (20 * number, 0, 0)).save(root / f"{number}.png")
        lines.append(f"{number}.png,shade {number % 6}")
    (root / "captions.csv").write_text("\n".join(lines))
    return root


def test_embedded_emoji_hold_out_names():
    """Noto's emoji need no fetching; a tenth of the names is held out, and no name stands on both sides."""
    splits = load_image_text(name="emoji-noto")
    assert len(splits.train) + len(splits.validation) == 1561
    assert 100 < len(splits.validation) < 220
    assert not set(splits.train.texts) & set(splits.validation.texts)
    row = splits.train[0]
    assert row["pixel_values"].shape == (3, 32, 32)
    assert row["pixel_values"].min() >= -1
    assert splits.model_fields["image_size"] == 32


def test_one_artist_is_held_out_and_every_name_is_known(emoji):
    """Of four artists' emoji one artist's are validated on, with the names that the other three draw too."""
    splits = load_image_text(name="emoji")
    assert (len(splits.train), len(splits.validation)) == (12, 4)
    assert splits.validation.texts == ["red heart", "blue heart", "cat", "dog face"]
    assert set(splits.train.texts) == set(splits.validation.texts)
    level = 50 * list(EMOJI_ARTISTS).index("openmoji") + 10
    assert splits.validation[1]["pixel_values"].mean() == pytest.approx(level / 255 * 2 - 1, abs=1e-6)
    other = load_image_text(name="emoji", artist="noto")
    assert other.validation[0]["pixel_values"].mean() == -1
    with pytest.raises(ValueError, match=r"one of .*noto.*, not 'picasso'"):
        load_image_text(name="emoji", artist="picasso")
    with pytest.raises(ValueError, match="which has one artist"):
        load_image_text(name="emoji-noto", artist="noto")


def test_texts_stand_between_marks_and_are_cut_and_counted(emoji):
    """Ids are start, characters, end; a text too long for its room keeps both marks and is counted."""
    splits = load_image_text(name="emoji", longest_text=8)
    start = splits.tokenizer.bos_token_id
    for ids, text in zip(splits.validation.token_ids, splits.validation.texts, strict=True):
        assert ids[0] == ids[-1] == start
        assert splits.tokenizer.decode(ids[1:-1]) == text[:6]
    assert splits.validation.num_truncated == 3
    assert splits.train.num_truncated == 9
    with pytest.raises(ValueError, match="room for at least 3 tokens"):
        load_image_text(name="emoji", longest_text=2)


def test_batches_are_filled_on_the_right(emoji):
    """Shorter texts are filled with padding that the mask leaves out; images may be augmented, not mixed."""
    splits = load_image_text(name="emoji")
    rows = [splits.validation[row] for row in range(4)]
    batch = splits.collate()(rows)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (4, 12)
    assert batch["attention_mask"].sum(1).tolist() == [11, 12, 5, 10]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == splits.tokenizer.pad_token_id).all()
    torch.manual_seed(0)
    changed = splits.collate(ImageAugmentation(rand_augment_operations=2))(rows)
    assert changed["pixel_values"].shape == batch["pixel_values"].shape
    assert not torch.equal(changed["pixel_values"], batch["pixel_values"])
    with pytest.raises(ValueError, match="cannot be mixed"):
        splits.collate(ImageAugmentation(mixup=0.5))


def test_folder_with_captions_keeps_equal_texts_together(folder):
    """Equal captions stand on one side; bad images and missing texts are left out by name with their pair."""
    (folder / "3.png").write_text("no image")
    table = (folder / "captions.csv").read_text().replace("8.png,shade 2", "8.png,")
    (folder / "captions.csv").write_text(table)
    splits = load_image_text(source=folder, image_size=8, validation_percent=30)
    assert not set(splits.train.texts) & set(splits.validation.texts)
    assert len(splits.train) + len(splits.validation) == 10
    assert splits.left_out.reasons == {
        "captions.csv:4 3.png": "it is no image, or empty",
        "captions.csv:9 8.png": "it has no text",
    }
    for side in (splits.train, splits.validation):
        for row in range(len(side)):
            red = round(float((side[row]["pixel_values"][0, 0, 0] + 1) / 2 * 255) / 20)
            assert side.texts[row] == f"shade {red % 6}"


def test_an_image_damaged_later_takes_its_text_along(folder, caplog):
    """The pair after it comes instead, image and text together."""
    splits = load_image_text(source=folder, image_size=8)
    _, file = splits.train.images.images.names[0].split()
    (folder / file).write_bytes(b"gone bad")
    first, second = splits.train[0], splits.train[1]
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert len(splits.left_out) == 1
    assert f"{file} is left out from here on" in caplog.text


def test_a_tokenizer_may_be_given_or_described(emoji):
    """A given tokenizer is used as it is, so that a checkpoint's own makes the same ids."""
    tokenizer = build_tokenizer({"kind": "byte"})
    assert load_image_text(name="emoji", tokenizer=tokenizer).tokenizer is tokenizer
    described = load_image_text(name="emoji", tokenizer={"kind": "byte"})
    assert torch.equal(described.train.token_ids[2][1:-1], torch.tensor(list(b"cat")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a name of the catalog or a source, not neither"),
        ({"name": "digits"}, "holds images, not images with text: use emoji-noto or emoji"),
        ({"name": "emoji", "split": "train"}, r"data\.split has no meaning here"),
        ({"source": "x.csv", "artist": "noto"}, r"data\.artist \('noto'\) has no meaning for a source"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    """What has no meaning, or contradicts, is refused with the rule."""
    with pytest.raises(ValueError, match=message):
        load_image_text(**options)


def test_folders_without_captions_are_refused(folder):
    """Images without a table of texts get a sentence that says which table to add."""
    (folder / "captions.csv").unlink()
    with pytest.raises(ValueError, match=r"must hold a table of them, .* add captions\.csv"):
        load_image_text(source=folder)
