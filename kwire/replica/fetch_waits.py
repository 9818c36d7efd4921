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

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from kwire.drive import Wakes, run_in_slices
from kwire.lazy_heap import LazyHeap
from kwire.replica.byte_waits import (
    REMOVED_AT_ONCE,
    ByteWait,
    ByteWaits,
    FetchIsolation,
    SharedReads,
)
from kwire.replica.fetch_sessions import Session
from kwire.replica.partition import Partition

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
    _times: LazyHeap[trio.Event] = attrs.field(factory=LazyHeap)
    """The times at which fetches are answered with whatever is readable."""
    _until_time: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """The scope in which :meth:`_keep_times` sleeps until the earliest of these times."""
    _keeps_times: bool = False
    _sessions: dict[Session, EventWatch] = attrs.field(factory=dict)

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
        event = wait.waiter
        try:
            if self._keeps_times:
                self._end_at(self.now() + timeout_s, event)
                await event.wait()
            else:
                with trio.move_on_after(timeout_s):
                    await event.wait()
            await self.discard_in_turns(wait)
        finally:
            self._bytes.discard(wait)
            self._times.discard(event)
        return wait.shared_reads

    def on_readable(
        self, partition: Partition, isolations: Iterable[FetchIsolation], size_bytes: int
    ) -> None:
        """Wake the fetches of these isolation levels that ``size_bytes`` more bytes complete."""
        waits = self._bytes
        if partition in waits.watches:
            waits.mark(partition)
        elif partition not in waits.watched:
            return
        for isolation in isolations:
            self._to_wake.wake(waits.pop_complete(partition, isolation, size_bytes))

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
        """Wake fetches until cancelled, then all of them.

        While this does not run, each fetch sets its own timeout, at ten times the cost.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._to_wake.run)
            await nursery.start(self._keep_times)
            task_status.started()

    def _end_at(self, at: float, event: trio.Event) -> None:
        """Wake a fetch at the time ``at``, at a tenth of the cost of its own cancel scope."""
        self._times.push(event, at)
        if at < self._until_time.deadline:
            self._until_time.deadline = at

    async def _keep_times(self, task_status: trio.TaskStatus[None]) -> None:
        """Wake the fetches whose time is up, and all when cancelled; sleep in between."""
        self._keeps_times = True
        task_status.started()
        try:
            while True:
                with trio.CancelScope(deadline=self._times.first_key) as self._until_time:
                    await trio.sleep_forever()
                self._to_wake.wake(self._times.pop_up_to(self.now()))
        finally:
            self._keeps_times = False
            self._to_wake.wake(self._times.pop_up_to(math.inf))
