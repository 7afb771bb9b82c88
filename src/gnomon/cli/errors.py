"""One place that turns what went wrong in a command into one sentence on stderr and an exit code."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

USER_ERROR = 2
FAILURE = 1
"""Nothing was wrong with the command, but it failed: training diverged, or the fault is our own."""

INTERRUPTED = 128
"""An interrupted command exits with this plus the signal's number: 130 or 143."""

DEBUG_VARIABLE = "GNOMON_DEBUG"

# What libraries raise for a user's mistakes outside ValueError, TypeError and OSError: by name, because importing a
# library only to recognize its errors would cost `--help` its speed.
_LIBRARY_ERRORS = {
    "DatasetsError",
    "MissingPackageError",
    "SafetensorError",
    "StrictDataclassError",
    "UnpicklingError",
    "YAMLError",
}


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Run a command; end the process with a sentence and an exit code if it fails.

    With GNOMON_DEBUG=1 in the environment the traceback is shown as well.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        _leave("interrupted.", INTERRUPTED + signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has left; Python would complain again while flushing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            traceback.print_exc()
        _leave(*describe(error))


def describe(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code of an error: 2 for what a user can mend, 1 for the rest."""
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # the command line does not parse
        if not error.format_message():  # a command without arguments has just shown its help
            return "", USER_ERROR
        context = getattr(error, "ctx", None)
        hint = f" Try '{context.command_path} --help'." if context else ""
        return error.format_message().rstrip(".") + "." + hint, USER_ERROR
    names = {kind.__name__ for kind in type(error).__mro__}
    if "StrictDataclassError" in names and isinstance(error.__cause__, Exception):
        return describe(error.__cause__)  # what the configuration's own check said
    if isinstance(error, UnicodeDecodeError):
        return f"text must be UTF-8, but a byte at position {error.start} is not: {error.reason}.", USER_ERROR
    if isinstance(error, KeyError) and " " in str(error.args[0]):  # a sentence, and not the key of a bug
        return str(error.args[0]), USER_ERROR
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}", USER_ERROR
    if "DivergenceError" in names:
        return _on_one_line(error), FAILURE
    if isinstance(error, ValueError | TypeError | OSError) or names & _LIBRARY_ERRORS:
        return _on_one_line(error), USER_ERROR
    if names & {"MemoryError", "OutOfMemoryError"} or "can't allocate memory" in str(error):
        return "there is not enough memory: take a smaller model, batch or sequence length.", USER_ERROR
    message = f"{type(error).__name__}: {_on_one_line(error)} This is a fault of gnomon or of a library below it"
    return f"{message}; set {DEBUG_VARIABLE}=1 to see where.", FAILURE


def _on_one_line(error: Exception) -> str:
    """The message without its line breaks, and without the C++ frames that torch puts behind some."""
    return " ".join(str(error).partition("\nException raised from")[0].split()) or type(error).__name__


def _leave(message: str, code: int) -> NoReturn:
    """Print one sentence on stderr and exit."""
    if message:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End as after an exception, so that half-written outputs are removed on the way out."""
    sys.exit(INTERRUPTED + number)
