"""Tracers that count events: calls, returns, lines and exceptions of the frames entered meanwhile.

The tracer in C (``_tracer.c``) is built when this module is first loaded. Where that is not
possible the one in Python is used: it counts the same, and each event takes five times as long.
"""

import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

from scripts.speedups import build

SOURCE: Final = Path(__file__).with_name("_tracer.c")
TARGET: Final = SOURCE.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))


class Tracer(Protocol):
    """Counts while it is what ``sys.gettrace`` returns."""

    units: int
    """The events that were counted."""
    next_sample: int
    """The count from which each event is shown to the function that takes samples."""

    @property
    def start(self) -> Callable[[], None]:
        """Count the frames of this thread that are entered or resumed from now on."""

    @property
    def stop(self) -> Callable[[], None]:
        """Count no longer."""


class PythonTracer:
    """A tracer without anything to build."""

    def __init__(self, sample: Callable[[FrameType], None]) -> None:
        self.units = 0
        self.next_sample = 0
        # Functions in C, so that neither is counted.
        self.start: Callable[[], None] = partial(sys.settrace, self)
        self.stop: Callable[[], None] = partial(sys.settrace, None)
        self._sample = sample

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        self.units += 1
        if self.units >= self.next_sample:
            self._sample(frame)
        return self


def _tracer_in_c() -> Callable[[Callable[[FrameType], None]], Tracer] | None:
    if not build(TARGET, SOURCE):
        return None
    spec = importlib.util.spec_from_file_location("_tracer", TARGET)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make: Callable[[Callable[[FrameType], None]], Tracer] = module.Tracer
    return make


CTracer: Final = _tracer_in_c()
"""None without a C compiler."""
make_tracer: Final = CTracer or PythonTracer
