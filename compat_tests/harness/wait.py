"""Waits for a condition, with a deadline instead of a guessed duration.

Rule: a deadline only limits the delay by a broken broker; a working one never reaches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

DEADLINE_SECONDS = 180.0

T = TypeVar("T")


def eventually(
    check: Callable[[], T | None], what: str | Callable[[], str], seconds: float = DEADLINE_SECONDS
) -> T:
    """Call ``check`` until its result is true and return that; fail after ``seconds``.

    A ``what`` that reads logs is a function, called after the deadline only.
    """
    deadline = time.monotonic() + seconds
    answer = check()
    while not answer:
        if time.monotonic() >= deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {text}; last: {answer!r}")
        time.sleep(0.02)
        answer = check()
    return answer


def collect(
    poll: Callable[[], Iterable[T]], count: int, seconds: float = DEADLINE_SECONDS
) -> list[T]:
    """Poll until there are at least ``count`` items and return them; fail after ``seconds``."""
    items: list[T] = []
    deadline = time.monotonic() + seconds
    while len(items) < count:
        items.extend(poll())
        assert time.monotonic() < deadline, f"{len(items)} of {count} records in {seconds} s"
    return items
