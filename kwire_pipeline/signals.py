"""SIGTERM and SIGINT: a command ends at once, and a run after its batch.

Rules of this file: a handler only writes to file descriptors and calls nothing in Spark. It may
interrupt a py4j call, which makes the connection unusable, so a command on Spark ends without
another call. The JVM ends by itself when its standard input closes, and a lease is free once its
process has ended.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
PROGRAM: Final = "kwire-pipeline"


class Interrupted(BaseException):
    """A signal that ends a command which has not started Spark yet."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(number: int) -> int:
    """Return the exit code by which shells and schedulers recognize a signal: 143 or 130."""
    return 128 + number


def stop_line(number: int, rest: str = "") -> str:
    """Return the line that says which signal ended a command."""
    return f"{PROGRAM}: stopped by {signal.Signals(number).name}{rest}"


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Raise Interrupted in the main thread."""
    raise Interrupted(number)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process with one line, without informing Spark."""
    os.write(2, f"{stop_line(number)}\n".encode())
    os._exit(exit_code(number))


class StopRequest:
    """The request to stop a run after its batch; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal; None before one arrives."""

    def is_stopping(self) -> bool:
        return self.number is not None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            end_at_once(number, frame)
        self.number = number


@contextmanager
def handle_with(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle both signals during a block, if this is the main thread."""
    with keep_handlers():
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, handler)
        yield


@contextmanager
def keep_handlers() -> Iterator[None]:
    """Restore the handlers after a block that installs its own, as SparkContext does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
