"""Appended records whose commit is awaited.

Rule: commits complete in log order, once their records are committed and delivered to the
listeners. When the leadership that appended them ends, the remaining commits fail.
"""

from collections import deque

import attrs
import trio

from kwire import errors
from kwire.errors import KafkaError


@attrs.define(eq=False, repr=False)
class Commit:
    """Appended records from ``base_offset`` to ``offset``, both inclusive."""

    base_offset: int
    offset: int
    epoch: int
    _event: trio.Event = attrs.field(factory=trio.Event)
    _error: KafkaError | None = None

    async def wait(self) -> None:
        """Wait for commit and delivery to listeners; NotController if the outcome is uncertain."""
        await self._event.wait()
        if self._error is not None:
            raise self._error

    def complete(self, error: KafkaError | None = None) -> None:
        """End all waits; they raise ``error`` if it is given."""
        self._error = error
        self._event.set()


class PendingCommits:
    """The commits that have not completed, in the order of their offsets."""

    def __init__(self) -> None:
        self._commits: deque[Commit] = deque()

    def add(self, base_offset: int, last_offset: int, epoch: int) -> Commit:
        """Add a commit whose records follow those of all pending commits."""
        commit = Commit(base_offset, last_offset, epoch)
        self._commits.append(commit)
        return commit

    def complete_before(self, end_offset: int) -> None:
        """Complete the commits whose records all have offsets below ``end_offset``."""
        while self._commits and self._commits[0].offset < end_offset:
            self._commits.popleft().complete()

    def fail_unless(self, epoch: int | None) -> None:
        """Fail the commits of other epochs: only a later leader knows whether they survive."""
        for commit in self._commits:
            if commit.epoch != epoch:
                commit.complete(errors.NotController())
        self._commits = deque(c for c in self._commits if c.epoch == epoch)
