"""SIGINT and SIGTERM during training: remembered, so that the step can end and a checkpoint be written."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Which signal has asked the run to stop, if any.

    Attributes:
        signal: The signal's number, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def catch_interrupts() -> Iterator[Interrupt]:
    """Remember the first signal; a second one of the same kind acts at once, as it would outside.

    Python delivers signals to the main thread alone, so in another one nothing is caught.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    outside = {number: signal.getsignal(number) for number in SIGNALS}

    def remember(number: int, frame: FrameType | None) -> None:
        interrupt.signal = number
        signal.signal(number, outside[number])

    for number in SIGNALS:
        signal.signal(number, remember)
    try:
        yield interrupt
    finally:
        for number in SIGNALS:
            signal.signal(number, outside[number])
