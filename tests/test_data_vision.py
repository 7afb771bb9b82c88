"""Images: what is read, converted, held out, left out and refused, and the rows and batches made of them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from gnomon.data.augmentation import ImageAugmentation, denormalize, normalize
from gnomon.data.image_processing import GnomonGrayImageProcessor, build_image_processor
from gnomon.data.images import decode_image
from gnomon.data.vision import load_images


def save(file, size=(12, 10), mode="RGB", color=None):
    """A small image with some structure in it; size is width and height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    levels = np.linspace(0, 255, size[0] * size[1] * 3).reshape(size[1], size[0], 3).astype(np.uint8)
    image = Image.new("RGB", size, color) if color else Image.fromarray(levels)
    image.convert(mode).save(file)
    return file


@pytest.fixture
def folder(tmp_path):
    """Three classes of four images of different kinds."""
    for number in range(4):
        save(tmp_path / f"pets/cat/{number}.png")
        save(tmp_path / f"pets/dog/{number}.png", size=(7, 20), mode="L")
        save(tmp_path / f"pets/owl/more/{number}.png", mode="RGBA")
    return tmp_path / "pets"


def test_digits_are_split_by_writer_and_gray():
    """The embedded digits need no fetching: 1,437 and 360 rows of 1 x 8 x 8, from -1 to 1, of ten classes."""
    splits = load_images(name="digits")
    assert (len(splits.train), len(splits.validation)) == (1437, 360)
    row = splits.train[0]
    assert row["pixel_values"].shape == (1, 8, 8)
    assert (row["pixel_values"].min(), row["pixel_values"].max()) == (-1, splits.train[0]["pixel_values"].max())
    assert splits.model_fields == {"image_size": 8, "num_channels": 1, "num_labels": 10}
    assert splits.describe().startswith("digits: Handwritten digits")
    assert set(splits.validation.labels) == set(range(10))


def test_short_way_equals_the_image_processor():
    """Arrays of the model's own size skip the processor, with exactly its pixel values."""
    rows = load_images(name="digits").train
    array = rows.array(3)
    own = rows[3]["pixel_values"]
    processed = rows.processor(array, return_tensors="pt", input_data_format="channels_last")["pixel_values"][0]
    assert torch.equal(own, processed.float())


def test_other_sizes_and_channels_are_converted_as_asked():
    """The digits as color of 16 x 12: three equal channels, resized by the processor."""
    splits = load_images(name="digits", image_size=(16, 12), num_channels=3)
    pixel_values = splits.train[0]["pixel_values"]
    assert pixel_values.shape == (3, 16, 12)
    assert torch.equal(pixel_values[0], pixel_values[2])
    assert splits.model_fields["image_size"] == [16, 12]


def test_class_folders_give_classes_in_order_and_hold_out_by_name(folder):
    """The folders' sorted names are the classes; the same files are held out every time, none on both sides."""
    splits = load_images(source=folder, image_size=8, validation_percent=30)
    assert splits.classes == ("cat", "dog", "owl")
    (folder / "zebra").mkdir(exist_ok=True)  # a folder without images is no class
    again = load_images(source=folder, image_size=8, validation_percent=30)
    assert again.classes == splits.classes
    assert splits.validation.images.names == again.validation.images.names
    both = set(splits.train.images.names) | set(splits.validation.images.names)
    assert len(both) == len(splits.train) + len(splits.validation) == 12
    assert splits.train[0]["pixel_values"].shape == (3, 8, 8)
    for row in range(len(splits.train)):
        label = splits.train[row]["labels"]
        assert splits.train.images.names[row].startswith(splits.classes[label])


def test_a_bad_file_is_counted_and_listed_and_nothing_else_changes(folder):
    """A text named .png, an empty file and one that is cut off are left out by name; the other images are there."""
    (folder / "cat/text.png").write_text("no image")
    (folder / "dog/empty.jpg").touch()
    whole = save(folder / "owl/cut.png", size=(64, 64)).read_bytes()
    (folder / "owl/cut.png").write_bytes(whole[: len(whole) // 2])
    splits = load_images(source=folder, image_size=8)
    assert len(splits.train) + len(splits.validation) == 12
    assert set(splits.left_out.reasons) == {"cat/text.png", "dog/empty.jpg", "owl/cut.png"}
    assert "3 left out: cat/text.png (it is no image, or empty)" in splits.describe()


def test_an_image_damaged_later_is_replaced_listed_and_told_once(folder, caplog):
    """A file that goes bad after loading does not end the run: the next good image takes its place."""
    splits = load_images(source=folder, image_size=8)
    name = splits.train.images.names[0]
    (folder / name).write_bytes(b"gone bad")
    assert torch.equal(splits.train[0]["pixel_values"], splits.train[1]["pixel_values"])
    assert torch.equal(splits.train[0]["pixel_values"], splits.train[1]["pixel_values"])
    assert list(splits.left_out.reasons) == [name]
    assert caplog.text.count(f"{name} is left out from here on") == 1
    assert splits.validation[0]["pixel_values"].shape == (3, 8, 8)


def test_train_and_test_folders_are_the_two_sides(folder, tmp_path):
    """`train` and `test` beside each other are taken as such; a class unknown to the training side is refused."""
    root = tmp_path / "sides"
    root.mkdir()
    folder.rename(root / "train")
    save(root / "test/dog/a.png")
    splits = load_images(source=root, image_size=8)
    assert (len(splits.train), len(splits.validation)) == (12, 1)
    assert splits.validation.labels.tolist() == [1]
    save(root / "test/fox/a.png")
    with pytest.raises(ValueError, match=r"class 'fox', which is not among the 3 trained on \(cat, dog, owl\)"):
        load_images(source=root, image_size=8)


def test_rows_without_a_label_or_a_file_are_counted_and_listed(folder):
    """An empty cell is no class of its own, and does not end the reading of the others."""
    files = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.png"))]
    lines = [*(f"{name},{name.split('/')[0]}" for name in files), f"{files[0]},", f"{files[1]}, ", ",cat"]
    (folder / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    splits, count = load_images(source=folder, image_size=8), len(files)
    assert splits.classes == ("cat", "dog", "owl")
    assert len(splits.train) + len(splits.validation) == count
    reasons = splits.left_out.reasons
    assert reasons.pop(f"row {count + 3} of metadata.csv").endswith("not nothing")
    assert reasons == {f"row {count + row} of metadata.csv": "it has no label" for row in (1, 2)}
    (folder / "metadata.csv").write_text(f"file_name,label\n{files[0]},\n")
    with pytest.raises(ValueError, match=r"metadata\.csv holds no label in its column 'label'"):
        load_images(source=folder, image_size=8)


def test_tables_name_files_or_hold_them(folder, tmp_path):
    """A .csv with file names, a Parquet table with contents, and a saved data set give the same images."""
    import datasets

    files = sorted(folder.rglob("*.png"))
    names = [file.relative_to(folder).as_posix() for file in files]
    labels = [name.split("/")[0] for name in names]
    lines = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    contents = [{"bytes": file.read_bytes(), "path": None} for file in files]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])})
    table = datasets.Dataset.from_dict({"image": contents, "label": labels}, features=features)
    table.to_parquet(tmp_path / "pets.parquet")
    table.save_to_disk(tmp_path / "saved")
    loaded = [
        load_images(source=source, image_size=8, validation_percent=20)
        for source in (folder, tmp_path / "pets.parquet", tmp_path / "saved")
    ]
    seen = []
    for splits in loaded:
        assert splits.classes == ("cat", "dog", "owl")
        rows = [side[row] for side in (splits.train, splits.validation) for row in range(len(side))]
        seen.append(sorted((int(row["labels"]), row["pixel_values"].numpy().tobytes()) for row in rows))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "CMYK", "LA", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image_becomes_gray_or_color(tmp_path, mode, channels):
    """Color, gray, palettes, transparency and 16 bits come out as bytes of as many channels as asked."""
    file = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    if mode == "I;16":
        Image.fromarray(np.full((10, 12), 32896, dtype=np.uint16)).save(file)
    else:
        save(file, mode=mode)
    array = decode_image(file, channels)
    assert array.shape == (10, 12, channels)
    assert array.dtype == np.uint8
    assert array.max() == 128 if mode == "I;16" else array.max() > 200


def test_transparency_is_put_on_white():
    """A pixel that cannot be seen is white, whatever color lies below."""
    image = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    assert (decode_image(stream.getvalue(), 3) == 255).all()


def test_gray_processor_takes_the_pipelines_color_images(tmp_path):
    """Saved and loaded, the gray processor turns a color image into the one channel that training saw."""
    from transformers import AutoImageProcessor

    processor = build_image_processor((8, 6), 1)
    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(loaded) is GnomonGrayImageProcessor
    color = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((6, 8))
    pixel_values = loaded(color, return_tensors="pt")["pixel_values"]
    assert pixel_values.shape == (1, 1, 8, 6)
    gray = torch.from_numpy(decode_image(np.asarray(color), 1).copy()).permute(2, 0, 1)
    assert (pixel_values[0] - (gray / 255 - 0.5) / 0.5).abs().max() <= 1.01 * 2 / 255


def test_color_processor_is_transformers_own(tmp_path):
    """A color model's processor is loaded by anyone, and turns gray images into color."""
    from transformers import AutoImageProcessor

    build_image_processor((8, 8), 3).save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "ViTImageProcessorPil"
    assert loaded(Image.new("L", (5, 9), 100), return_tensors="pt")["pixel_values"].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a name of the catalog or a source, not neither"),
        ({"name": "digits", "split": "train"}, r"data\.split has no meaning here"),
        ({"name": "emoji-noto"}, "holds images with text, not images"),
        ({"name": "digits", "num_channels": 2}, r"1 channel \(gray\) or 3 \(color\), not 2"),
        ({"name": "digits", "image_size": 0}, "at least 1 x 1 pixels"),
        ({"name": "digits", "image_size": [1, 2, 3]}, "one number or a height and a width"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    """What has no meaning, or contradicts, is refused with the rule."""
    with pytest.raises(ValueError, match=message):
        load_images(**options)


def test_folders_without_classes_or_images_are_refused(tmp_path):
    """Images that lie in no class folder, class folders without images, and no folder at all each get a sentence."""
    save(tmp_path / "flat/a.png")
    with pytest.raises(ValueError, match=r"one folder a class, but .*flat holds none: move the images"):
        load_images(source=tmp_path / "flat")
    (tmp_path / "empty/cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"class folders of .*empty hold no image"):
        load_images(source=tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        load_images(source=str(tmp_path / "nowhere"))
    (tmp_path / "bad/cat").mkdir(parents=True)
    (tmp_path / "bad/cat/a.png").write_text("no image")
    with pytest.raises(ValueError, match=r"no image that can be read \(1 left out: cat/a\.png"):
        load_images(source=tmp_path / "bad")


def test_unknown_labels_and_columns_of_a_table_are_refused(tmp_path):
    """A validation label that training has not is refused with row and label, a missing column with those there are."""
    save(tmp_path / "a.png")
    (tmp_path / "train.csv").write_text("image,label\na.png,cat\na.png,dog\n")
    (tmp_path / "validation.csv").write_text("image,label\na.png,fox\n")
    with pytest.raises(ValueError, match=r"row 1 of validation\.csv has the label 'fox'.*cat, dog"):
        load_images(source=tmp_path / "train.csv", validation=tmp_path / "validation.csv")
    with pytest.raises(ValueError, match=r"a column 'kind', but it has image, label: name one as data\.label_column"):
        load_images(source=tmp_path / "train.csv", label_column="kind")


def test_augmentation_keeps_shape_and_range_and_is_repeatable():
    """Gray and color batches stay within 0 and 1, change, and are the same again with the same seed."""
    augment = ImageAugmentation(crop_padding=2, flip=0.5, rand_augment_operations=2)
    for channels in (1, 3):
        images = torch.rand(10, channels, 8, 9, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(10)
        seen = []
        for _ in range(2):
            torch.manual_seed(1)
            changed, kept = augment(images, labels, 10)
            seen.append(changed)
        assert torch.equal(*seen)
        assert seen[0].shape == images.shape
        assert 0 <= seen[0].min() <= seen[0].max() <= 1
        assert not torch.equal(seen[0], images)
        assert torch.equal(kept, labels)


def test_moves_stay_within_their_bounds():
    """A bright square is moved, turned about the center and zoomed, each as far as allowed and no farther."""
    torch.manual_seed(0)
    images = torch.zeros(64, 1, 32, 32)
    images[:, :, 12:20, 12:20] = 1
    labels, columns = torch.zeros(64, dtype=torch.long), torch.arange(32.0)

    def center(changed: torch.Tensor) -> torch.Tensor:
        return (changed.sum(2) * columns).sum((1, 2)) / changed.sum((1, 2, 3))

    moved, _ = ImageAugmentation(shift=0.25)(images, labels, 1)
    assert torch.allclose(moved.sum((1, 2, 3)), images.sum((1, 2, 3)), rtol=1e-3)
    distance = (center(moved) - 15.5).abs()
    assert distance.max() <= 8.01
    assert distance.max() > 4
    turned, _ = ImageAugmentation(rotation=180)(images, labels, 1)
    assert torch.allclose(center(turned), torch.tensor(15.5), atol=0.05)
    assert (turned - images).abs().amax((1, 2, 3)).median() > 0.1
    slanted, _ = ImageAugmentation(shear=40)(images, labels, 1)
    assert torch.allclose(center(slanted), torch.tensor(15.5), atol=0.2)
    assert (slanted - images).abs().amax((1, 2, 3)).median() > 0.1
    zoomed, _ = ImageAugmentation(zoom=0.5)(images, labels, 1)
    share = zoomed.sum((1, 2, 3)) / images.sum((1, 2, 3))
    assert 0.2 < share.min() < 0.6
    assert 1.6 < share.max() < 2.4


def test_colors_change_and_go_as_often_as_asked():
    """Gray images pass through unchanged; colors move, and are lost in about the share asked for."""
    torch.manual_seed(0)
    images, labels = torch.rand(200, 3, 4, 4), torch.zeros(200, dtype=torch.long)
    gone, _ = ImageAugmentation(grayscale=0.3)(images, labels, 1)
    without_color = (gone.amax(1) - gone.amin(1)).amax((1, 2)) < 1e-6
    assert 0.2 < without_color.float().mean() < 0.4
    assert torch.equal(gone[~without_color], images[~without_color])
    changed, _ = ImageAugmentation(color_jitter=0.4)(images, labels, 1)
    assert 0 <= changed.min() <= changed.max() <= 1
    assert (changed - images).abs().amax((1, 2, 3)).min() > 0.01
    gray = images[:, :1]
    assert torch.equal(ImageAugmentation(color_jitter=0.4, grayscale=1.0)(gray, labels, 1)[0], gray)


def test_mixup_mixes_images_and_labels_by_the_same_share():
    """Of constant images whose level is their class, the mixed level is the mean of the classes by their shares."""
    torch.manual_seed(0)
    labels = torch.arange(8)
    images = (labels / 10)[:, None, None, None].expand(8, 1, 4, 4).contiguous()
    mixed, shares = ImageAugmentation(mixup=0.6)(images, labels, 8)
    assert torch.allclose(shares.sum(1), torch.ones(8))
    assert torch.allclose(mixed[:, 0, 0, 0], shares @ (torch.arange(8) / 10), atol=1e-6)
    assert (shares.max(1).values < 1).any()


def test_collator_augments_what_the_model_reads():
    """Without augmentation a batch is the rows; with it, pixel values stay within -1 and 1."""
    splits = load_images(name="digits")
    rows = [splits.train[row] for row in range(12)]
    plain = splits.collate()(rows)
    assert torch.equal(plain["pixel_values"], torch.stack([row["pixel_values"] for row in rows]))
    changed = splits.collate(ImageAugmentation(crop_padding=1, mixup=0.5))(rows)
    assert changed["labels"].shape == (12, 10)
    assert changed["pixel_values"].abs().max() <= 1
    assert not torch.equal(changed["pixel_values"], plain["pixel_values"])
    assert torch.allclose(normalize(denormalize(plain["pixel_values"], 0.5, 0.5), 0.5, 0.5), plain["pixel_values"])


@pytest.mark.parametrize(
    "setting",
    [
        {"flip": 1.5},
        {"mixup": -0.1},
        {"rand_augment_magnitude": 30},
        {"crop_padding": -1},
        {"rotation": 181},
        {"shift": 1.1},
        {"zoom": 1.0},
        {"shear": 90},
        {"color_jitter": 1.5},
        {"grayscale": -0.5},
    ],
)
def test_augmentation_out_of_range_is_refused(setting):
    """Each setting has a range, and the message names the setting."""
    with pytest.raises(ValueError, match=next(iter(setting))):
        ImageAugmentation(**setting)


@pytest.mark.parametrize("first", ["gnomon", "transformers"])
def test_gray_processor_is_known_whatever_is_imported_first(tmp_path, first):
    """After `import gnomon`, AutoImageProcessor and the image pipelines' own imports find it in a folder."""
    import subprocess
    import sys

    build_image_processor((4, 4), 1).save_pretrained(tmp_path)
    imports = ["import gnomon", "from transformers import AutoImageProcessor"]
    lines = imports if first == "gnomon" else imports[::-1]
    code = "; ".join([*lines, "import sys", "print(type(AutoImageProcessor.from_pretrained(sys.argv[1])).__name__)"])
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "GnomonGrayImageProcessor", result.stderr


def test_a_stray_table_among_class_folders_does_no_harm(folder):
    """Beside class folders only metadata and labels are taken for the table of images; two of those are refused."""
    (folder / "notes.csv").write_text("who,when\nme,today\n")
    assert len(load_images(source=folder, image_size=8).classes) == 3
    (folder / "metadata.csv").write_text("image,label\ncat/0.png,cat\ndog/0.png,dog\n")
    assert load_images(source=folder, image_size=8).classes == ("cat", "dog")
    (folder / "labels.csv").write_text("image,label\n")
    with pytest.raises(ValueError, match=r"holds 2 tables \(labels\.csv, metadata\.csv\): name one"):
        load_images(source=folder)
