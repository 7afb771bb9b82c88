"""Load text for language modelling, and split it into what is trained on and what is held out."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon.data.catalog import find_dataset
from gnomon.data.fetch import read_dataset
from gnomon.data.files import READERS, Document, read_documents
from gnomon.data.hub import is_saved_dataset, read_hub, read_saved
from gnomon.data.origins import check_held_out, check_origin

DEFAULT_VALIDATION_PERCENT = 10.0


@dataclass(frozen=True)
class TextSplits:
    """Document name -> text, of the two sides of a split; a single document may stand on both, cut in two."""

    train: dict[str, str]
    validation: dict[str, str]

    @property
    def num_train_characters(self) -> int:
        """How many characters are trained on."""
        return sum(map(len, self.train.values()))

    @property
    def num_validation_characters(self) -> int:
        """How many characters are held out."""
        return sum(map(len, self.validation.values()))


def load_text(
    *,
    name: str | None = None,
    source: str | Path | None = None,
    column: str = "text",
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
) -> TextSplits:
    """Load a data set and hold a part of it out, the same part every time.

    A catalog data set holds out the documents that its entry names, a table the rows whose hashed first column falls
    below its percentage. For anything else: `validation` if given; of
    several documents, those whose hashed name (a file) or hashed text (a row) falls below the percentage, at least
    one and never all; of a single document, its last part, cut at a line break.

    Args:
        name: A data set of the catalog.
        source: A .txt, .jsonl, .json, .csv or .parquet file, a folder of such files, a folder written by
            `datasets.Dataset.save_to_disk`, or the name of a data set on the Hugging Face Hub.
        column: The field of a row that holds the text; documents of plain text have none.
        validation: What is held out: a file or folder, or for a Hub data set the name of a split.
        validation_percent: How much is held out where `validation` is not given: of the documents, or of the
            characters of a single document; above 0 and below 100, 10 if None.
        split: The split of a Hub data set that is trained on; `train` if None.
        subset: The configuration of a Hub data set, where it has several.

    Returns:
        Both sides of the split; neither is empty.

    Raises:
        ValueError: An option contradicts another or is out of range, or the text cannot be read or split.
        FileNotFoundError: There is no such file, folder or data set, or it has not been fetched yet.

    >>> sorted(load_text(name="shakespeare").validation)
    ['the-tempest']
    """
    check_origin(name, source)
    options = {
        "validation": validation,
        "validation_percent": validation_percent,
        "split": split,
        "subset": subset,
    }
    if name is not None:
        _refuse(options, f"the data set {name!r} comes with its own split", "drop it, or give data.source")
        return _load_catalog(name, column)
    train, held_out = load_source(str(source), column, **options)
    return TextSplits(_as_mapping(train), _as_mapping(held_out))


def load_source(
    source: str,
    column: str,
    others: Sequence[str] = (),
    *,
    validation: str | Path | None = None,
    validation_percent: float | None = None,
    split: str | None = None,
    subset: str | None = None,
) -> tuple[list[Document], list[Document]]:
    """The documents of a source, split into (training, held out).

    Args:
        source: As for `load_text`, as are the other options.
        column: The field that holds the text, and decides the side.
        others: Further fields that are wanted.
        validation: As for `load_text`.
        validation_percent: As for `load_text`.
        split: As for `load_text`.
        subset: As for `load_text`.

    Raises:
        ValueError: As for `load_text`.
        FileNotFoundError: As for `load_text`.
    """
    check_held_out(validation, validation_percent)
    percent = DEFAULT_VALIDATION_PERCENT if validation_percent is None else validation_percent
    if not 0 < percent < 100:
        raise ValueError(f"data.validation_percent must be above 0 and below 100, not {percent}: 10 holds a tenth out")
    train, held_out = _read_source(source, column, others, validation, split, subset)
    return (train, held_out) if held_out is not None else hold_out(train, percent)


def hold_out(documents: Sequence[Document], percent: float) -> tuple[list[Document], list[Document]]:
    """Split documents into (training, held out), the same way every time and neither side empty.

    Args:
        documents: At least one document.
        percent: How much is held out: of several documents, or of the characters of a single one.
    """
    if len({document.split_key for document in documents}) == 1:
        if len(documents) > 1:
            raise ValueError(
                f"all {len(documents)} documents are the same text, so none can be held out: give data.validation"
            )
        head, tail = split_at_line(documents[0].text, percent)
        return [documents[0]._replace(text=head)], [documents[0]._replace(text=tail)]
    ranks = [_hash_percent(document.split_key) for document in documents]
    lowest, highest = min(ranks), max(ranks)
    train: list[Document] = []
    held_out: list[Document] = []
    for document, rank in zip(documents, ranks, strict=True):
        is_held_out = rank == lowest or (rank < percent and rank < highest)
        (held_out if is_held_out else train).append(document)
    return train, held_out


def split_at_line(text: str, percent: float) -> tuple[str, str]:
    r"""Cut off the last `percent` of a text at the nearest line break after that point, or else before it.

    A text without line breaks is cut at the character.

    >>> split_at_line("one\ntwo\nthree\n", 50)
    ('one\ntwo\n', 'three\n')
    """
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} characters cannot be split: give a longer text or data.validation")
    cut = min(max(round(len(text) * (1 - percent / 100)), 1), len(text) - 1)
    after, before = text.find("\n", cut - 1) + 1, text.rfind("\n", 0, cut) + 1
    if 0 < after < len(text):
        cut = after
    elif before > 0:
        cut = before
    return text[:cut], text[cut:]


def _hash_percent(key: str) -> float:
    """A number in [0, 100) that depends on the key alone."""
    digest = hashlib.sha256(key.encode("utf-8")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48 * 100


def split_rows(rows: Sequence[Mapping[str, str]], key: str, percent: float) -> tuple[list, list]:
    """Split the rows of a catalog's table into (training, held out), by the hashed text of one column."""
    sides: tuple[list, list] = ([], [])
    for row in rows:
        sides[_hash_percent(row[key]) < percent].append(row)
    return sides


def _load_catalog(name: str, column: str) -> TextSplits:
    dataset = find_dataset(name)
    held_out, documents = dataset.held_out, read_dataset(name)
    if dataset.columns:
        if column not in dataset.columns:
            raise ValueError(
                f"the data set {name!r} has the columns {', '.join(dataset.columns)}, and none called {column!r}: "
                f"name one of them, for example data.column: {dataset.columns[0]}"
            )
        sides = split_rows(documents, dataset.columns[0], dataset.held_out_percent)
        return TextSplits(
            *({f"{name}:{number}": row[column] for number, row in enumerate(side, start=1)} for side in sides)
        )
    return TextSplits(
        train={document: text for document, text in documents.items() if document not in held_out},
        validation={document: documents[document] for document in held_out},
    )


def _read_source(
    source: str,
    column: str,
    others: Sequence[str],
    validation: str | Path | None,
    split: str | None,
    subset: str | None,
) -> tuple[list[Document], list[Document] | None]:
    """The documents of a source, and those of an explicit validation set if there is one."""
    path = Path(source).expanduser()
    is_saved = is_saved_dataset(path)
    is_local = path.exists() or _looks_like_a_path(source)
    if is_local:
        _refuse({"subset": subset}, f"{source} is a local file or folder", "drop it")
    if is_saved or not is_local:
        if validation is not None and str(validation) == (split or "train"):
            raise ValueError(f"data.validation must be another split than data.split, not {validation!r}: drop it")
        parts = [split] if validation is None else [split, str(validation)]
        loaded = [
            read_saved(path, part, column, others)
            if is_saved
            else read_hub(source, subset, part or "train", column, others)
            for part in parts
        ]
        return loaded[0], loaded[1] if validation is not None else None
    _refuse({"split": split}, f"{source} is a local file or folder", "name a file as data.validation")
    if validation is None:
        return read_documents(path, column, others), None
    other = Path(validation).expanduser()
    inner, outer = sorted((other.resolve(), path.resolve()), key=lambda place: -len(place.parts))
    if inner.is_relative_to(outer):
        raise ValueError(
            f"data.validation must lie apart from data.source, but {validation} and {source} share files: "
            "move one of them, or drop data.validation to hold a part of the source out"
        )
    return read_documents(path, column, others), read_documents(other, column, others)


def _refuse(options: Mapping[str, object], reason: str, remedy: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise ValueError(f"data.{key} ({value!r}) has no meaning here, because {reason}: {remedy}")


def _looks_like_a_path(source: str) -> bool:
    """Whether a source that does not exist was meant as a path; a Hub name is `name` or `owner/name`."""
    return (
        source.startswith((".", "/", "~"))
        or source.count("/") > 1
        or "\\" in source
        or source.endswith("/")
        or Path(source).suffix.lower() in READERS
    )


def _as_mapping(documents: Sequence[Document]) -> dict[str, str]:
    return {document.name: document.text for document in documents}
