"""The rules that a node sets for moves between directories: limits, and whom to notify."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs

from kwire.log.directories.directory import LogDirectory
from kwire.log.partition_log import PartitionLog


class Throttle(Protocol):
    """The limit on the bytes that all moves together copy; ``now`` is in monotonic seconds."""

    def record(self, size_bytes: int, now: float) -> None: ...

    def is_exceeded(self, now: float) -> bool: ...

    def pause_s(self, now: float) -> float: ...


async def _assigned_at_once(log: PartitionLog, directory: LogDirectory) -> None: ...


def _ignore(*logs: PartitionLog) -> None: ...


@attrs.define(eq=False, repr=False)
class MoveRules:
    """The limits and notifications of one node's moves."""

    throttle: Throttle | None = None
    """``replica.alter.log.dirs.io.max.bytes.per.second``; None for no limit."""
    thread_count: int | None = None
    """``num.replica.alter.log.dirs.threads``: concurrent copies; None for one per directory."""
    wait_assigned: Callable[[PartitionLog, LogDirectory], Awaitable[None]] = _assigned_at_once
    """Waits until the metadata assign the log's replica to a directory."""
    on_moved: Callable[[PartitionLog, PartitionLog], None] = _ignore
    """Called with the old log and the one that replaces it, before anything else can happen."""
    on_given_up: Callable[[PartitionLog], None] = _ignore
    """Called with a log whose move ended after its assignment to the target was requested."""
