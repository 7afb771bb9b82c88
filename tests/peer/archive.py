"""transformers' own model tests, out of its source distribution of the installed version, as a package to import."""

import email
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

import transformers

PACKAGE = "transformers_tests"
NEEDED = (
    "test_modeling_common.py",
    "test_training_mixin.py",
    "test_fsdp_mixin.py",
    "test_tensor_parallel_mixin.py",
)
STAND_INS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "distributed_testing_utils.py": "from ranks import *\n",
}
"""Modules that the distribution leaves out and its tests import: two mixins without tests, and our `ranks.py`."""


def fetch_tests(cache: Path) -> Path:
    """Download, check and unpack the tests, once a version.

    Args:
        cache: A folder to keep them in.

    Returns:
        The folder to put on the import path; it holds the package `transformers_tests`.

    Raises:
        ValueError: What pip fetched is another version, or lacks a test module.
    """
    version = transformers.__version__
    target = cache / f"transformers-{version}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", *download, f"transformers=={version}"], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        unpacked = Path(folder) / "unpacked"
        _unpack(archive, unpacked / PACKAGE, version)
        for name, text in STAND_INS.items():
            path = unpacked / PACKAGE / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        unpacked.rename(target)
    return target


def _unpack(archive: Path, target: Path, version: str) -> None:
    """Write the modules of the archive's `tests` folder, after a look at what the archive says of itself."""
    target.mkdir(parents=True)
    with tarfile.open(archive) as file:
        root = PurePosixPath(file.getnames()[0]).parts[0]
        about = email.message_from_bytes(file.extractfile(f"{root}/PKG-INFO").read())
        if (about["Name"], about["Version"]) != ("transformers", version):
            raise ValueError(f"{archive.name} must be transformers {version}; it is {about['Name']} {about['Version']}")
        for member in file.getmembers():
            path = PurePosixPath(member.name)
            if member.isfile() and path.parts[1:-1] == ("tests",) and path.suffix == ".py":
                (target / path.name).write_bytes(file.extractfile(member).read())
    if missing := [name for name in NEEDED if not (target / name).is_file()]:
        raise ValueError(f"{archive.name} lacks tests/{missing[0]}: another version of the tests has to be learned")
