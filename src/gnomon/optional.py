"""Packages that only some of the library needs: imported where used, and named with the way to get them."""

import importlib
from types import ModuleType


class MissingPackageError(ImportError):
    """A package is missing that belongs to one of the library's extras."""


def import_optional(module: str, extra: str, *, system: str = "") -> ModuleType:
    """Import a module of an extra.

    Args:
        module: The module's name, which is also the package's.
        extra: The extra of gnomon that installs it.
        system: What else the system must have, as a command; named when the module is there but cannot be loaded.

    Raises:
        MissingPackageError: It cannot be imported.

    >>> import_optional("no_such_module", "speech")
    Traceback (most recent call last):
    gnomon.optional.MissingPackageError: this needs the Python package no_such_module, which is not installed: \
run pip install 'gnomon[speech]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise MissingPackageError(
            f"this needs the Python package {missing}, which is not installed: run pip install 'gnomon[{extra}]'"
        ) from error
    except OSError as error:
        raise MissingPackageError(
            f"the Python package {module} cannot load a library of the system ({str(error).splitlines()[0]}): "
            f"install it{f', on Debian with {system}' if system else ''}"
        ) from error
