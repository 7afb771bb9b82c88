"""Fetch a data set of images or speech through apt or npm, check it by its contents, and keep it as plain files."""

import shutil
import tarfile
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from gnomon.data.collections import Collection, describe_collection, find_collection
from gnomon.data.fetch import cache_folder, download_debian, run_client


def collection_folder(name: str) -> Path:
    """Where an embedded or fetched data set lies.

    Raises:
        ValueError: There is no data set of that name.
        FileNotFoundError: It has not been fetched yet.
    """
    if find_collection(name).is_embedded:
        return Path(str(resources.files("gnomon.data") / name))
    folder = cache_folder() / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the data set {name!r} has not been fetched yet ({folder} is missing): run gnomon data fetch {name}"
        )
    return folder


def is_collected(name: str) -> bool:
    """Whether the data set can be read now, without fetching anything."""
    return find_collection(name).is_embedded or (cache_folder() / name).is_dir()


def check_collection(entry: Collection, folder: Path, remedy: str) -> None:
    """Refuse a folder that does not hold what the catalog says.

    Raises:
        ValueError: A count differs, or a file is missing or damaged.
    """
    try:
        found = entry.count(folder)
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{folder} does not hold the data set {entry.name!r} ({error}): {remedy}") from error
    for unit, expected in entry.counts.items():
        if found[unit] != expected:
            raise ValueError(
                f"the data set {entry.name!r} must hold {expected:,} {unit}, but {found[unit]:,} were found in "
                f"{folder}: {remedy}"
            )


def fetch_collection(name: str, *, folder: Path | None = None, announce: Callable[[str], None] | None = None) -> Path:
    """Fetch a data set of images or speech, unless it is there already.

    Nothing is installed and no fetched code runs: the packages are unpacked, read, counted and written in the
    library's own form, and a folder appears only when it is complete.

    Args:
        name: A name of the catalog.
        folder: Where to put it; $GNOMON_DATA/NAME or ~/.cache/gnomon/NAME if None.
        announce: Called with one sentence before anything is downloaded: what, how large, where from, under which
            license and where to; or that there is nothing to do.

    Returns:
        The folder.

    Raises:
        ValueError: The name is unknown, or what arrived is not what the catalog says.
        FileNotFoundError: apt-get or npm is missing.
        FileExistsError: The folder exists and holds something else.
        ConnectionError: The download failed.
        MissingPackageError: What draws the pictures is not installed.
    """
    announce = announce or (lambda sentence: None)
    entry = find_collection(name)
    if entry.is_embedded:
        announce(f"{describe_collection(name)}. Nothing to download.")
        return collection_folder(name)
    target = Path(folder) if folder is not None else cache_folder() / name
    if target.exists():
        try:
            check_collection(entry, target, "fetch it again")
        except ValueError as error:
            raise FileExistsError(
                f"{target} exists but does not hold the data set {name!r}: "
                "remove it, or name another folder, and fetch again"
            ) from error
        announce(f"{name} is already in {target}. Nothing to download.")
        return target
    announce(f"Downloading {describe_collection(name)}; into {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        unpacked, staged = Path(scratch) / "unpacked", Path(scratch) / "staged"
        staged.mkdir()
        for number, package in enumerate(entry.packages):
            place = Path(scratch) / str(number)
            place.mkdir()
            download = download_npm if entry.origin == "npm" else download_debian
            download(package, place, unpacked)
        if entry.prepare is not None:
            entry.prepare(unpacked, staged)
        check_collection(entry, staged, "the packages have changed; update gnomon")
        (staged / "NOTICE").write_text(describe_collection(name) + "\n", encoding="utf-8")
        staged.rename(target)
    return target


def download_npm(package: str, scratch: Path, unpacked: Path) -> None:
    """Download a package with npm and unpack it into a folder of its own name; it is never installed.

    Args:
        package: `name@version`; the name may have a scope (`@owner/name`).
        scratch: An empty folder for the download.
        unpacked: Where the package's folder goes.
    """
    if shutil.which("npm") is None:
        raise FileNotFoundError(
            f"fetching {package} needs npm, which this machine lacks: install it, or fetch on another machine and "
            f"copy the folder into {cache_folder()}"
        )
    remedy = "check the network and npm's registry settings, then fetch again"
    run_client(["npm", "pack", "--silent", package], package, scratch, remedy)
    target = unpacked / package.rpartition("@")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
        archive.extractall(scratch / "content", filter="data")
    # npm packs everything below one folder, by custom `package`.
    (root,) = (scratch / "content").iterdir()
    root.rename(target)
