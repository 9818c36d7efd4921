"""A share partition that this broker leads, with the fetches that wait for its records.

Only one write is in progress at a time; the next write stores all changes requested meanwhile. So
stored states arrive in the order in which they were decided, and many small acknowledgements cost
few writes. The task that writes also completes changes, so that a client that disconnects leaves no
change undecided.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import NamedTuple

import attrs
import trio

from kwire.errors import (
    BY_CODE,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    KafkaError,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kwire.replica.fetch_waits import FetchWait
from kwire.replica.partition import Partition
from kwire.share.in_flight import InFlight
from kwire.share.keys import SharePartition
from kwire.share.persister import Persister, StateBatch
from kwire.share.runs import Change

logger = logging.getLogger(__name__)

_UNAVAILABLE = (14, 15, 16)
"""The codes COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""
_FENCED = (74, 124)
"""The codes FENCED_LEADER_EPOCH and FENCED_STATE_EPOCH."""


class _Write(NamedTuple):
    """States to store, and the change that is complete once they are stored."""

    batches: Sequence[StateBatch]
    change: Change | None
    finish: Callable[[KafkaError | None], None]


@attrs.define(eq=False, repr=False)
class LedShare:
    """A share partition from its load until this broker stops leading the partition."""

    key: SharePartition
    partition: Partition
    leader_epoch: int
    in_flight: InFlight
    persister: Persister
    start_task: Callable[[Callable[[], Awaitable[object]]], None]
    """Starts a task that may outlive the request."""
    on_deadline: Callable[["LedShare"], None]
    """Called when the deadline of the state may be earlier than before."""
    on_fenced: Callable[["LedShare"], None]
    """Called when a write shows that another leader or state has replaced this one."""
    is_over: bool = False
    """True once this broker no longer leads the share partition."""
    waits: dict[FetchWait, None] = attrs.field(factory=dict)
    """The fetches that wait for its records."""
    _writes: list[_Write] = attrs.field(factory=list)
    _is_writing: bool = False

    def wake(self) -> None:
        """Wake the waiting fetches, because there may be records or the leadership has ended."""
        for wait in self.waits:
            wait.waiter.set()

    def end(self) -> None:
        """Stop serving; fetches and acknowledgements then get NotLeaderOrFollower."""
        self.is_over = True
        self.wake()

    def check(self) -> None:
        """Raise NotLeaderOrFollower unless this broker still leads the share partition."""
        if self.is_over or self.partition.leader is None:
            raise NotLeaderOrFollower

    async def store(self, change: Change) -> None:
        """Store a change and complete it; raises KafkaError if it was not stored."""
        if not change.moves:
            return
        done = trio.Event()
        errors: list[KafkaError] = []

        def finish(error: KafkaError | None) -> None:
            if error is not None:
                errors.append(error)
            done.set()

        self._enqueue(_Write(change.batches(), change, finish))
        await done.wait()
        if errors:
            raise errors[0]

    def store_batches(self, batches: Sequence[StateBatch]) -> None:
        """Store states that already apply, without waiting for the result."""
        self._enqueue(_Write(batches, None, _ignore))

    def _enqueue(self, write: _Write) -> None:
        self._writes.append(write)
        if not self._is_writing:
            self._is_writing = True
            self.start_task(self._write_all)

    async def _write_all(self) -> None:
        """Write the requested states until none are left."""
        try:
            while self._writes:
                writes, self._writes = self._writes, []
                error: KafkaError | None = NotLeaderOrFollower()
                try:
                    if not self.is_over:
                        error = error_of(await self._write(writes))
                except Exception:  # A fault must not end the node.
                    logger.exception("share state not stored of=%s", self.key)
                    error = UnknownServerError()
                finally:
                    self._finish(writes, error)
        finally:
            self._is_writing = False

    async def _write(self, writes: list[_Write]) -> int:
        in_flight = self.in_flight
        return await self.persister.write(
            *self.key,
            in_flight.state_epoch,
            self.leader_epoch,
            in_flight.start,
            in_flight.complete_count,
            list(chain.from_iterable(write.batches for write in writes)),
        )

    def _finish(self, writes: list[_Write], error: KafkaError | None) -> None:
        may_gain = False
        for write in writes:
            if write.change is not None:
                may_gain |= self.in_flight.complete(write.change, is_stored=error is None)
            write.finish(error)
        if error is not None:
            self.on_deadline(self)
            if isinstance(error, NotLeaderOrFollower | GroupIdNotFound | UnknownTopicOrPartition):
                self.on_fenced(self)
        if may_gain:
            self.wake()


def _ignore(error: KafkaError | None) -> None:
    """Ignore the result, because nobody waits for it."""


def error_of(code: int) -> KafkaError | None:
    """Return the error that a client gets for a persister's error code; None for success."""
    if code == 0:
        return None
    if code in _UNAVAILABLE:
        return CoordinatorNotAvailable()
    if code in _FENCED:
        return NotLeaderOrFollower()
    error = BY_CODE.get(code)
    if error in (GroupIdNotFound, UnknownTopicOrPartition):
        return error()
    return UnknownServerError()
