"""A sheet of predictions to look at: what went in, what was right, and what the model said, as HTML or PNG."""

import base64
import io
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnomon.evaluation.batches import evaluation_mode, move
from gnomon.training.records import write_text

SMALLEST_PIXELS = 160
"""A small image is enlarged to so many pixels, by whole factors, so that its own pixels stay visible."""

LOWEST_LEVEL, HIGHEST_LEVEL = -2.0, 3.0
"""The features between which a spectrogram's colors run, in standard deviations from their mean."""

RIGHT, WRONG = "#1b7837", "#b2182b"
"""Green and red of equal darkness; the words `right` and `wrong` stand beside them."""

COLORS = {True: RIGHT, False: WRONG, None: "#1a1a1a"}

WIDE_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS")
"""Fonts with many scripts, used where they are installed."""

PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1a1a1a }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax({{ width }}rem, 1fr)); gap: 1rem }
figure { margin: 0; padding: .75rem; border: 1px solid #ccc; border-top: 4px solid; border-radius: 4px }
figure.right { border-top-color: """
    + RIGHT
    + """ } figure.wrong { border-top-color: """
    + WRONG
    + """ }
img { max-width: 100%; image-rendering: pixelated; display: block; margin-bottom: .5rem; outline: 1px solid #ddd }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .6rem; margin: 0 } dt { color: #595959 }
dd { margin: 0; overflow-wrap: anywhere }
small { color: #595959; overflow-wrap: anywhere }
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ summary }}</p>
<main>{% for sample, picture in samples %}
<figure class="{{ {True: 'right', False: 'wrong'}.get(sample.is_right, 'shown') }}">
{% if picture %}<img src="data:image/png;base64,{{ picture }}"
alt="{{ sample.kind }} of {{ sample.label or sample.name }}">{% endif %}
<figcaption>{% if sample.text %}<p>{{ sample.text }}</p>{% endif %}
{% if sample.is_right is none %}<p>{{ sample.verdict }}</p>{% else %}<dl>
<dt>label</dt><dd>{{ sample.label }}</dd>
<dt>model</dt><dd>{{ sample.prediction or '(nothing)' }}</dd>
<dt>that is</dt><dd>{{ sample.verdict }}</dd></dl>{% endif %}
<small>{{ sample.name }}</small></figcaption></figure>{% endfor %}
</main></body></html>
"""
)


@dataclass(frozen=True)
class Sample:
    """One input with what is right and what the model said.

    Attributes:
        label: What is right.
        prediction: What the model said.
        is_right: Whether that is right; None where there is no label to compare with.
        image: The input as (height, width, 1 or 3) bytes, if it is an image.
        features: The input as (frames, mel bins), if it is sound.
        text: The input, if it is text.
        name: What the row is called.
        remark: Something to say after right or wrong, such as how sure the model is.
    """

    label: str
    prediction: str
    is_right: bool | None
    image: np.ndarray | None = None
    features: np.ndarray | None = None
    text: str = ""
    name: str = ""
    remark: str = ""

    @property
    def verdict(self) -> str:
        """Right or wrong, and the remark."""
        return f"{ {True: 'right', False: 'wrong', None: ''}[self.is_right] }{self.remark}"

    @property
    def kind(self) -> str:
        """What its picture is called for those who cannot see it."""
        return "spectrogram" if self.features is not None else "image"


def choose_rows(is_right: Sequence[bool], count: int) -> list[int]:
    """Which rows go on a sheet: up to half of it errors, and the others evenly spread over the right ones.

    >>> choose_rows([True, True, False, True, True, False], 4)
    [0, 2, 3, 5]
    """
    wrong = [row for row, right in enumerate(is_right) if not right]
    good = [row for row, right in enumerate(is_right) if right]
    errors = _spread(wrong, max(count // 2, count - len(good)))
    return sorted(errors + _spread(good, count - len(errors)))


def _spread(rows: list[int], count: int) -> list[int]:
    """Some of the rows, evenly spread."""
    count = min(count, len(rows))
    return [rows[number * len(rows) // count] for number in range(count)]


def classified_samples(
    model: Any,
    rows: Any,
    classes: Sequence[str],
    *,
    collate: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]],
    count: int = 24,
    batch_size: int = 32,
) -> tuple[list[Sample], str]:
    """Samples of a classifier of images or sounds, and a sentence on the whole set.

    Args:
        model: Returns `.logits` (batch, classes).
        rows: `ImageRows`, or `SpeechRows` whose labels are classes.
        classes: The names of the classes.
        collate: Makes a batch of rows, without augmentation.
        count: How many samples there are at most.
        batch_size: How many rows go through the model at once.
    """
    shares: list[torch.Tensor] = []
    with evaluation_mode(model):
        for start in range(0, len(rows), batch_size):
            batch = [rows[row] for row in range(start, min(start + batch_size, len(rows)))]
            inputs = move(collate(batch), model.device)
            inputs.pop("labels")
            shares.append(model(**inputs).logits.float().softmax(-1).cpu())
    probabilities = torch.cat(shares)
    answers, labels = probabilities.argmax(-1).tolist(), [int(label) for label in rows.labels]
    is_right = [answer == label for answer, label in zip(answers, labels, strict=True)]
    samples = []
    for row in choose_rows(is_right, count):
        samples.append(
            Sample(
                label=classes[labels[row]],
                prediction=classes[answers[row]],
                is_right=is_right[row],
                **_input(rows, row),
                remark=f", {probabilities[row, answers[row]]:.0%} sure",
            )
        )
    return samples, _summary(is_right, len(samples), "answers")


def transcribed_samples(rows: Any, transcripts: Sequence[str], count: int = 24) -> tuple[list[Sample], str]:
    """Samples of a recognizer, and a sentence on the whole set.

    Args:
        rows: `SpeechRows`.
        transcripts: What the model heard in each row, as `SpeechScore` has it.
        count: How many samples there are at most.
    """
    is_right = [said == heard for said, heard in zip(rows.texts, transcripts, strict=True)]
    samples = [
        Sample(
            label=rows.texts[row],
            prediction=transcripts[row],
            is_right=is_right[row],
            **_input(rows, row),
            remark=f", {rows.clips.headers[row].seconds:.1f} s",
        )
        for row in choose_rows(is_right, count)
    ]
    return samples, _summary(is_right, len(samples), "transcripts")


def retrieved_samples(
    rows: Any, similarity: np.ndarray, texts: Sequence[str], count: int = 24
) -> tuple[list[Sample], str]:
    """Samples of the texts found for images, and a sentence on the whole set.

    Args:
        rows: `ImageTextRows`.
        similarity: (rows, texts).
        texts: The different texts.
        count: How many samples there are at most.
    """
    order = np.argsort(-similarity, axis=1, kind="stable")
    is_right = [texts[order[row, 0]] == text for row, text in enumerate(rows.texts)]
    samples = []
    for row in choose_rows(is_right, count):
        rank = int(np.flatnonzero(np.array(texts)[order[row]] == rows.texts[row])[0]) + 1
        samples.append(
            Sample(
                label=rows.texts[row],
                prediction=texts[order[row, 0]],
                is_right=is_right[row],
                image=rows.images.array(row),
                name=rows.pairs.images.names[row],
                remark=f", the label ranks {rank:,} of {len(texts):,}",
            )
        )
    return samples, _summary(is_right, len(samples), "texts found")


def _input(rows: Any, row: int) -> dict[str, Any]:
    """A row's input as a sample shows it, and its name."""
    name = rows.clips.names[row] if hasattr(rows, "clips") else rows.images.names[row]
    try:
        shown = {"features": rows.features(row).numpy()} if hasattr(rows, "clips") else {"image": rows.array(row)}
    except ValueError as error:
        return {"text": f"{name} cannot be shown: {error}", "name": name}
    return {**shown, "name": name}


def _summary(is_right: Sequence[bool], shown: int, what: str) -> str:
    wrong = sum(not is_right[row] for row in choose_rows(is_right, shown))
    return (
        f"{sum(is_right):,} of {len(is_right):,} {what} are right ({np.mean(is_right):.1%}). "
        f"The sheet shows {shown}, {wrong} of them errors."
    )


def write_samples(file: Path, samples: Sequence[Sample], title: str, summary: str = "") -> Path:
    """Write a sheet of samples: one self-contained page, or one picture.

    Args:
        file: Ends in `.html` or `.png`; a file of that name is replaced.
        samples: What is shown, in order.
        title: Stands above.
        summary: Stands below the title.

    Raises:
        ValueError: The ending is another one, or there are no samples.
    """
    if not samples:
        raise ValueError("a sheet of samples shows at least one, and there is none: evaluate on more rows")
    if file.suffix not in (".html", ".png"):
        raise ValueError(f"a sheet of samples must end in .html or .png, not {file.suffix or 'nothing'!r} ({file})")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".html":
        write_text(file, render_page(samples, title, summary))
    else:
        file.write_bytes(draw_sheet(samples, title, summary))
    return file


def render_page(samples: Sequence[Sample], title: str, summary: str) -> str:
    """The page as HTML, its pictures inside."""
    import jinja2

    template = jinja2.Environment(autoescape=True).from_string(PAGE)
    pictures = [(sample, base64.b64encode(_png(sample)).decode() if _has_picture(sample) else "") for sample in samples]
    width = 22 if any(_is_wide(sample) for sample in samples) else 13
    return template.render(title=title, summary=summary, samples=pictures, width=width)


def draw_sheet(samples: Sequence[Sample], title: str, summary: str) -> bytes:
    """The samples in a grid, as the contents of a PNG file."""
    import matplotlib
    from matplotlib.figure import Figure

    is_sound, is_wide = any(sample.features is not None for sample in samples), any(map(_is_wide, samples))
    columns = min(3 if is_wide else 6, len(samples))
    lines = -(-len(samples) // columns)
    stream = io.BytesIO()
    with matplotlib.rc_context({"font.family": _fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # letters that no font here has are boxes
        figure = Figure(
            figsize=(12, 0.8 + lines * (2.4 if is_sound else 2.0 if is_wide else 2.8)), layout="constrained"
        )
        figure.suptitle(_plain(f"{title}\n{summary}" if summary else title), fontsize=10)
        grid = np.atleast_1d(figure.subplots(lines, columns)).ravel()
        for axes in grid:
            axes.set_axis_off()
        for axes, sample in zip(grid, samples, strict=False):
            if _has_picture(sample):
                axes.imshow(picture(sample), interpolation="nearest", aspect="auto" if is_sound else "equal")
                axes.set_axis_on()
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_color("#dddddd")
            axes.set_title(_words(sample, is_wide), fontsize=7, color=COLORS[sample.is_right])
        figure.savefig(stream, dpi=110, format="png")
    return stream.getvalue()


def _words(sample: Sample, is_wide: bool) -> str:
    """What stands above a picture."""
    if not _has_picture(sample) and sample.text:
        return _wrap(sample.text, is_wide)
    if sample.is_right is None:
        return _wrap(sample.verdict, is_wide)
    said = _wrap(sample.prediction or "(nothing)", is_wide)
    return f"label: {_wrap(sample.label, is_wide)}\nmodel: {said}\n{sample.verdict}"


def _fonts() -> list[str]:
    """matplotlib's own font, and those installed here that have the letters which it lacks."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]


def _is_wide(sample: Sample) -> bool:
    """Whether a picture takes the place of two: a spectrogram, or images side by side."""
    image = sample.image
    return sample.features is not None or (image is not None and image.shape[1] > 2 * image.shape[0])


def _wrap(words: str, is_sound: bool) -> str:
    """Cut words to two lines above a picture, as plain text for matplotlib."""
    return _plain("\n".join(textwrap.wrap(words, 62 if is_sound else 26, max_lines=2, placeholder=" ...")))


def _plain(words: str) -> str:
    """Words that matplotlib takes for no formula."""
    return words.replace("$", r"\$")


def _has_picture(sample: Sample) -> bool:
    return sample.image is not None or sample.features is not None


def picture(sample: Sample) -> np.ndarray:
    """A sample's input as (height, width, 3) bytes: its image, or its spectrogram with time to the right, pitch up."""
    if sample.features is None:
        image = np.asarray(sample.image)
        factor = max(1, SMALLEST_PIXELS // max(image.shape[:2]))
        return np.broadcast_to(image, (*image.shape[:2], 3)).repeat(factor, 0).repeat(factor, 1)
    import matplotlib

    levels = (sample.features.T[::-1] - LOWEST_LEVEL) / (HIGHEST_LEVEL - LOWEST_LEVEL)
    return (matplotlib.colormaps["magma"](levels.clip(0, 1))[:, :, :3] * 255).round().astype(np.uint8)


def _png(sample: Sample) -> bytes:
    """A sample's picture as the contents of a PNG file."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture(sample)).save(stream, "PNG")
    return stream.getvalue()
