"""From unpacked packages to the files that the library keeps: arrays, sheets of pictures and tables."""

import csv
import gzip
import io
import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from gnomon.optional import import_optional

if TYPE_CHECKING:
    import numpy as np

EMOJI_ARTISTS = {"noto": "1.2.9", "twemoji": "1.2.5", "fluent-emoji-flat": "1.2.6", "openmoji": "1.2.29"}
"""Artist -> the version of the npm package that has the drawings."""

EMOJI_SIZE = 32
"""The height and width of a picture in pixels."""

SHEET_COLUMNS = 40
"""How many pictures stand in a row of a sheet."""

ARRAYS = "images.npz"
NAMES = "names.tsv"

FASHION_CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def prepare_fashion_mnist(unpacked: Path, folder: Path) -> None:
    """Write both halves of Fashion-MNIST as arrays."""
    import numpy as np

    root = unpacked / "usr/share/datasets/fashion-mnist"
    arrays = {"classes": np.array(FASHION_CLASSES)}
    for side, stem in (("train", "train"), ("validation", "t10k")):
        arrays[f"{side}_images"] = read_idx(root / f"{stem}-images-idx3-ubyte.gz")
        arrays[f"{side}_labels"] = read_idx(root / f"{stem}-labels-idx1-ubyte.gz")
    np.savez_compressed(folder / ARRAYS, **arrays)


def read_idx(file: Path) -> "np.ndarray":
    """An array in the IDX format of bytes: two zero bytes, the type 8, the number of axes, the sizes, the data.

    Raises:
        ValueError: It is no such file, or shorter or longer than it says.
    """
    import numpy as np

    raw = gzip.decompress(file.read_bytes())
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{file.name} must be an IDX file of bytes, but it begins with {raw[:4]!r}: fetch it again")
    axes = raw[3]
    shape = struct.unpack_from(f">{axes}I", raw, 4)
    data = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes)
    if data.size != np.prod(shape):
        raise ValueError(f"{file.name} must hold {np.prod(shape):,} bytes of data, not {data.size:,}: fetch it again")
    return data.reshape(shape)


def prepare_emoji(unpacked: Path, folder: Path) -> None:
    """Draw what all four artists have drawn, a sheet of pictures an artist; skin tones are left out.

    Raises:
        MissingPackageError: cairosvg is missing, or the system's library cairo.
    """
    import numpy as np

    drawings = {artist: read_icons(unpacked / f"@iconify-json/{artist}") for artist in EMOJI_ARTISTS}
    names = sorted(set.intersection(*map(set, drawings.values())))
    first = drawings[next(iter(EMOJI_ARTISTS))]
    write_table(folder / NAMES, ("name", "category"), [(name, first[name][1]) for name in names])
    for artist, icons in drawings.items():
        pictures = np.stack([draw_svg(icons[name][0], EMOJI_SIZE) for name in names])
        write_sheet(folder / f"{artist}.webp", pictures)


def read_icons(folder: Path) -> dict[str, tuple[str, str]]:
    """Name -> (SVG text, category) of an Iconify package, for the icons that stand in a category."""
    icons = json.loads((folder / "icons.json").read_text(encoding="utf-8"))
    categories = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["categories"]
    category = {name: title.replace(" & ", " and ") for title, names in categories.items() for name in names}
    found = {}
    for name, icon in icons["icons"].items():
        if name in category and "skin-tone" not in name:
            width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
            head = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
            svg = f'<svg {head} viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
            found[name] = (svg, category[name])
    return found


def draw_svg(svg: str, size: int) -> "np.ndarray":
    """An SVG drawing on white as (size, size, 3) bytes.

    Raises:
        MissingPackageError: cairosvg is missing, or the system's library cairo.
    """
    import numpy as np
    from PIL import Image

    cairosvg = import_optional("cairosvg", "multimodal", system="apt-get install libcairo2")
    png = cairosvg.svg2png(svg.encode(), output_width=size, output_height=size, background_color="white")
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def write_sheet(file: Path, pictures: "np.ndarray") -> None:
    """Write pictures (count, size, size, 3) side by side as one lossless WebP file."""
    import numpy as np
    from PIL import Image

    count, size = pictures.shape[:2]
    rows = -(-count // SHEET_COLUMNS)
    grid = np.full((rows * SHEET_COLUMNS, size, size, 3), 255, dtype=np.uint8)
    grid[:count] = pictures
    sheet = grid.reshape(rows, SHEET_COLUMNS, size, size, 3).transpose(0, 2, 1, 3, 4)
    image = Image.fromarray(sheet.reshape(rows * size, SHEET_COLUMNS * size, 3))
    image.save(file, lossless=True, quality=50, method=4)


def read_sheet(file: Path, count: int, size: int = EMOJI_SIZE) -> "np.ndarray":
    """The first `count` pictures of a sheet, (count, size, size, 3) bytes."""
    import numpy as np
    from PIL import Image

    sheet = np.asarray(Image.open(file).convert("RGB"))
    rows, columns = sheet.shape[0] // size, sheet.shape[1] // size
    grid = sheet.reshape(rows, size, columns, size, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(rows * columns, size, size, 3)[:count]


def read_names(folder: Path) -> list[tuple[str, str]]:
    """(Name, category) of every picture on the sheets of a folder, in their order."""
    with (folder / NAMES).open(encoding="utf-8", newline="") as file:
        return [(row["name"], row["category"]) for row in csv.DictReader(file, delimiter="\t")]


def count_arrays(folder: Path) -> dict[str, int]:
    """How many images either side of a split has."""
    import numpy as np

    with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return {
            "training images": len(arrays["train_labels"]),
            "validation images": len(arrays["validation_labels"]),
        }


def count_pictures(folder: Path) -> dict[str, int]:
    """How many names there are, and how many pictures on the sheets."""
    names = len(read_names(folder))
    return {"names": names, "pictures": names * len(list(folder.glob("*.webp")))}


def write_table(file: Path, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Write a table with tabs between its columns."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter="\t", lineterminator="\n").writerows([columns, *rows])


def readable_name(name: str) -> str:
    """A picture's name as words.

    >>> readable_name("1st-place-medal")
    '1st place medal'
    """
    return re.sub(r"[-_\s]+", " ", name).strip()
