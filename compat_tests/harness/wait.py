"""Waiting for something to come true: by deadline, never by a guess at how long it takes.

Rule: a deadline is only how long a broken broker may hold up the run; a working one never meets it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

DEADLINE_SECONDS = 60.0

T = TypeVar("T")


def eventually(check: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS) -> T:
    """The first true-ish answer of ``check``, which should itself wait a little (a poll)."""
    deadline = time.monotonic() + seconds
    answer = check()
    while not answer:
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}; last: {answer!r}"
        time.sleep(0.02)
        answer = check()
    return answer


def collect(
    poll: Callable[[], Iterable[T]], count: int, seconds: float = DEADLINE_SECONDS
) -> list[T]:
    """At least ``count`` items out of repeated polls."""
    found: list[T] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        found.extend(poll())
        assert time.monotonic() < deadline, f"{len(found)} of {count} records in {seconds} s"
    return found
