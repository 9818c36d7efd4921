"""The fetches that wait for bytes, and the tasks that wake them.

Rules:

* A fetch sleeps on one :class:`trio.Event`, set when enough bytes become readable, a partition's
  role changes, or the fetch's time is up. No task polls, so an idle broker sleeps.
* Many fetches that complete together are woken a few at a time, so that other clients get their
  turns.
* A fetch of thousands of partitions begins its wait with :meth:`FetchWaits.begin`, adds the
  partitions with pauses, and then sleeps. An append during a pause counts if its partition was
  added; otherwise the fetch notices the change before it adds the partition.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from kwire.drive import Wakes, run_in_slices
from kwire.replica.byte_waits import (
    REMOVED_AT_ONCE,
    ByteWait,
    ByteWaits,
    FetchIsolation,
    SharedReads,
)
from kwire.replica.fetch_sessions import Session
from kwire.replica.partition import Partition
from kwire.waits import Deadlines

if TYPE_CHECKING:
    from kwire.replica.fetch_session_watch import FetchSessionWatch

EventWatch: TypeAlias = "FetchSessionWatch[trio.Event]"
"""The watch of a session whose requests wait on events."""
FetchWait: TypeAlias = ByteWait[Partition, trio.Event]
"""The wait of one request."""
_WOKEN_AT_ONCE: Final = 16
"""Fetches answered before other tasks run, which takes about a millisecond."""


@attrs.define(eq=False, repr=False)
class FetchWaits:
    """The waiting fetches of one broker."""

    now: Callable[[], float]
    """The clock of trio's deadlines."""
    _bytes: ByteWaits[Partition, trio.Event] = attrs.field(factory=ByteWaits)
    _to_wake: Wakes = attrs.field(factory=lambda: Wakes(_WOKEN_AT_ONCE))
    """Complete fetches that are still to be woken."""
    _deadlines: Deadlines = attrs.field(init=False)
    """The times at which fetches are answered with whatever is readable."""
    _sessions: dict[Session, EventWatch] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._deadlines = Deadlines(self.now, self._to_wake.wake)

    def __len__(self) -> int:
        return len(self._bytes)

    def __contains__(self, partition: Partition) -> bool:
        """Return whether a fetch waits for this partition, or a session watches it."""
        return partition in self._bytes.watched or partition in self._bytes.watches

    def watch(self, session: Session, replica: int) -> EventWatch:
        """Return the watch of a session, created for the session's first request."""
        watch = self._sessions.get(session)
        if watch is None:
            from kwire.replica.fetch_session_watch import FetchSessionWatch

            watch = self._sessions[session] = FetchSessionWatch(session, replica, self._bytes)
        return watch

    def on_session_ended(self, session: Session) -> None:
        watch = self._sessions.pop(session, None)
        if watch is not None:
            watch.end()

    def begin(
        self, missing_bytes: int, isolation: FetchIsolation, watch: "EventWatch | None" = None
    ) -> FetchWait:
        """Begin a wait, which ends with :meth:`finish` or :meth:`discard`.

        With ``watch`` the wait is for all partitions that the session watches, otherwise for those
        passed to :meth:`add`.
        """
        wait: FetchWait = ByteWait(trio.Event(), isolation, missing_bytes)
        if watch is not None:
            wait.watch, watch.watch.wait = watch.watch, wait
        return wait

    def add(self, wait: FetchWait, partitions: Iterable[Partition]) -> None:
        """Count the bytes that become readable in these partitions from now on."""
        self._bytes.add(wait, partitions)

    def discard(self, wait: FetchWait) -> None:
        """End a wait."""
        self._bytes.discard(wait)

    async def discard_in_turns(self, wait: FetchWait) -> None:
        """End a wait, letting other tasks run if it has many partitions."""
        if len(wait.keys) > REMOVED_AT_ONCE:
            await run_in_slices(self._bytes.discarding(wait))
        else:
            self._bytes.discard(wait)

    async def finish(self, wait: FetchWait, timeout_s: float) -> SharedReads | None:
        """Sleep until enough is readable, a role changes or the time is up.

        If one append completed several fetches, all of them share the returned reads; otherwise the
        result is None.
        """
        try:
            await self._deadlines.wait(wait.waiter, self.now() + timeout_s)
            await self.discard_in_turns(wait)
        finally:
            self._bytes.discard(wait)
        return wait.shared_reads

    def on_readable(
        self, partition: Partition, isolations: Sequence[FetchIsolation], size_bytes: int
    ) -> None:
        """Wake the fetches of these isolation levels that ``size_bytes`` more bytes complete."""
        waits = self._bytes
        if partition in waits.watches:
            waits.mark(partition)
        elif partition not in waits.watched:
            return
        self._to_wake.wake(waits.pop_complete(partition, isolations, size_bytes))

    def mark(self, partition: Partition) -> None:
        """Make the next fetch of each session visit a partition, without waking any fetch."""
        self._bytes.mark(partition)

    def on_transaction_ended(self, partition: Partition) -> None:
        """Wake the read_committed fetches: records before the marker may have become readable.

        They check whether enough is readable, and wait again if not.
        """
        self._to_wake.wake(self._bytes.pop_isolation(partition, FetchIsolation.STABLE))

    def on_changed(self, partition: Partition) -> None:
        """Wake all fetches of a partition, because they must check it again."""
        self._bytes.mark(partition)
        self._to_wake.wake(self._bytes.pop_all(partition))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wake fetches until cancelled, then all of them."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._to_wake.run)
            await nursery.start(self._deadlines.run)
            task_status.started()
