"""Counts work instead of time: how many functions a piece of work calls."""

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls_in(work: Callable[[], Any]) -> int:
    """Run something; return how many functions, of Python and of C, it called.

    A garbage collection would add the calls of its callbacks, such as Hypothesis's.
    """
    count = 0

    def on_event(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
