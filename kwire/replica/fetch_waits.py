"""The fetches that wait for bytes, and the events that end their waits.

Rules:

* A fetch is one :class:`kwire.waits.TimedWait`, which ends when enough bytes become readable, a
  partition's role changes, or the fetch's time is up. Normally no task waits: the connection
  continues the fetch. No task polls, so an idle broker sleeps.
* If many fetches complete together, they continue in turns, so that other clients are served too:
  the connections ensure that, and :class:`kwire.drive.Wakes` where a task waits.
* An append for which more than :data:`_COUNTED_AT_ONCE` fetches wait returns before they count its
  bytes, so that the producer is acknowledged first; a task counts them soon, with pauses. Followers
  never wait for that task, because the acknowledgement may wait for them. The task also wakes the
  fetches of a partition that has as many when its role changes or a transaction ends; followers,
  which then fetch in the new epoch, are woken at once.
* A fetch of thousands of partitions begins its wait with :meth:`FetchWaits.begin`, adds the
  partitions with pauses, and then sleeps. An append during a pause counts if its partition was
  added; otherwise the fetch notices the change before it adds the partition.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from kwire.drive import Wakes, run_in_slices, run_steps
from kwire.replica.byte_waits import (
    ALL_ISOLATIONS,
    ENOUGH_BYTES,
    REMOVED_AT_ONCE,
    ByteWait,
    ByteWaits,
    NewBytes,
)
from kwire.replica.fetch_sessions import Session
from kwire.replica.partition import FetchIsolation, Partition
from kwire.waits import Deadlines, Signal, Steps, TimedWait, Wakeable

if TYPE_CHECKING:
    from kwire.replica.fetch_session_watch import FetchSessionWatch

SessionWatch: TypeAlias = "FetchSessionWatch[TimedWait]"
"""The watch of a session."""
FetchWait: TypeAlias = ByteWait[Partition, TimedWait]
"""The wait of one request."""
_FOLLOWERS: Final = (FetchIsolation.LOG_END,)
_WOKEN_AT_ONCE: Final = 16
"""Tasks that answer fetches before other tasks run, which takes about a millisecond."""
_COUNTED_AT_ONCE: Final = 16
"""The number of waiting fetches that count new bytes within the append."""
_SHARED_FROM: Final = 16
"""The number of reads of a partition between two appends from which consumers share them."""
_SHARING_MAX: Final = 64
"""The number of partitions that keep reads to share: their last reads stay in memory."""
_COUNTED_A_TURN: Final = 128
"""The number of waiting fetches that count new bytes before other tasks run."""
_UNCOUNTED_MAX: Final = 16
"""The number of appends whose bytes are counted later; each keeps a list of the fetches."""


@attrs.define(eq=False, repr=False)
class FetchWaits:
    """The waiting fetches of one broker."""

    now: Callable[[], float]
    """The clock of trio's deadlines."""
    _bytes: ByteWaits[Partition, TimedWait] = attrs.field(factory=ByteWaits)
    _to_wake: Wakes = attrs.field(factory=lambda: Wakes(_WOKEN_AT_ONCE))
    """Complete fetches whose tasks are still to be woken."""
    _deadlines: Deadlines = attrs.field(init=False)
    """The times at which fetches are answered with whatever is readable."""
    _sessions: dict[Session, SessionWatch] = attrs.field(factory=dict)
    _uncounted: deque[NewBytes[Partition, TimedWait]] = attrs.field(factory=deque)
    """Bytes that became readable and are still to be counted, in the order of the appends."""
    _has_uncounted: Signal = attrs.field(factory=Signal)
    _is_running: bool = False
    _nursery: trio.Nursery | None = None
    _sharing: dict[Partition, None] = attrs.field(factory=dict)
    """The partitions that keep reads, the one with the oldest first."""

    def __attrs_post_init__(self) -> None:
        self._deadlines = Deadlines(self.now, self._end_all)

    def __len__(self) -> int:
        return len(self._bytes)

    def __contains__(self, partition: Partition) -> bool:
        """Return whether a fetch waits for this partition, or a session watches it."""
        return partition in self._bytes.watched or partition in self._bytes.watches

    def watch(self, session: Session, replica: int) -> SessionWatch:
        """Return the watch of a session, created for the session's first request."""
        watch = self._sessions.get(session)
        if watch is None:
            from kwire.replica.fetch_session_watch import FetchSessionWatch

            watch = self._sessions[session] = FetchSessionWatch(session, replica, self._bytes)
        return watch

    def on_session_ended(self, session: Session) -> None:
        """End a session's watch, in slices if it has many partitions."""
        watch = self._sessions.pop(session, None)
        if watch is None:
            return
        if len(watch) <= REMOVED_AT_ONCE or self._nursery is None:
            run_steps(watch.ending())
        else:
            self._nursery.start_soon(run_in_slices, watch.ending())

    def begin(
        self, missing_bytes: int, isolation: FetchIsolation, watch: "SessionWatch | None" = None
    ) -> FetchWait:
        """Begin a wait, which ends with :meth:`end`.

        With ``watch`` the wait is for all partitions that the session watches, otherwise for those
        passed to :meth:`add`.
        """
        is_first = isolation is FetchIsolation.LOG_END
        timed = TimedWait(self._deadlines, is_first=is_first)
        wait: FetchWait = ByteWait(timed, isolation, missing_bytes)
        if watch is not None:
            wait.watch, watch.watch.wait = watch.watch, wait
        return wait

    def add(self, wait: FetchWait, partitions: Iterable[Partition]) -> None:
        """Count the bytes that become readable in these partitions from now on."""
        self._bytes.add(wait, partitions)

    def end(self, wait: FetchWait) -> None:
        """End a wait: it is over, or its fetch is cancelled."""
        wait.waiter.end()
        self._bytes.discard(wait)

    def ending(self, wait: FetchWait) -> Steps[None]:
        """End a wait, letting other tasks run if it has many partitions."""
        wait.waiter.end()
        if len(wait.keys) > REMOVED_AT_ONCE:
            yield partial(run_in_slices, self._bytes.discarding(wait))
        elif wait.keys or not wait.is_over:
            self._bytes.discard(wait)

    def on_readable(
        self,
        partition: Partition,
        isolations: Sequence[FetchIsolation],
        size_bytes: int,
        *,
        ends_transaction: bool,
    ) -> None:
        """Wake the fetches of these isolation levels that ``size_bytes`` more bytes complete.

        With ``ends_transaction``, records before the marker may have become readable too, so all
        read_committed fetches are woken. They wait again if not enough is readable.
        """
        waits = self._bytes
        if partition.read_count and isolations != _FOLLOWERS:
            self._begin_reads(partition)
        if partition in waits.watches:
            waits.mark(partition)
        elif partition not in waits.watched:
            return
        if self._may_count_later(partition) and not _has_followers(partition, isolations):
            self._count_later(waits.find(partition, isolations, size_bytes))
        else:
            self._end_all(waits.pop_complete(partition, isolations, size_bytes))
        if not ends_transaction:
            return
        if self._may_count_later(partition):
            self._count_later(waits.find(partition, (FetchIsolation.STABLE,), ENOUGH_BYTES))
        else:
            self._end_all(waits.pop_isolation(partition, FetchIsolation.STABLE))

    def _begin_reads(self, partition: Partition) -> None:
        """Begin the reads of a partition after an append."""
        partition.begin_reads(_SHARED_FROM)
        self._sharing.pop(partition, None)
        if partition.shared_reads is not None:
            self._sharing[partition] = None
            if len(self._sharing) > _SHARING_MAX:
                self._end_sharing(next(iter(self._sharing)))

    def _end_sharing(self, partition: Partition) -> None:
        if partition in self._sharing:
            del self._sharing[partition]
            partition.shared_reads = None

    def _may_count_later(self, partition: Partition) -> bool:
        """Return whether a partition has so many waits that a task should visit them later."""
        waits = self._bytes
        count = len(waits.watched.get(partition, ())) + len(waits.watches.get(partition, ()))
        has_time = self._is_running and len(self._uncounted) < _UNCOUNTED_MAX
        return count > _COUNTED_AT_ONCE and has_time

    def _count_later(self, arrival: NewBytes[Partition, TimedWait]) -> None:
        self._uncounted.append(arrival)
        self._has_uncounted.notify()

    def mark(self, partition: Partition) -> None:
        """Make the next fetch of each session visit a partition, without waking any fetch."""
        self._bytes.mark(partition)

    def on_changed(self, partition: Partition) -> None:
        """Wake all fetches of a partition, because they must check it again."""
        self._end_sharing(partition)
        self._bytes.mark(partition)
        if self._may_count_later(partition):
            self._end_all(self._bytes.pop_all(partition, _FOLLOWERS))
            arrival = self._bytes.find(partition, ALL_ISOLATIONS, ENOUGH_BYTES)
            arrival.is_change = True
            self._count_later(arrival)
        else:
            self._end_all(self._bytes.pop_all(partition))

    def _end_all(self, waits: Iterable[Wakeable]) -> None:
        """End waits: of tasks a few at a time, of connections at once, which have their turns.

        The tasks of followers, who are few, are woken at once too.
        """
        in_tasks = []
        for wait in waits:
            if isinstance(wait, TimedWait) and (wait.is_parked or wait.is_first):
                wait.set()
            else:
                in_tasks.append(wait)
        if in_tasks:
            self._to_wake.wake(in_tasks)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End the waits whose time is up until cancelled, then all of them."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._to_wake.run)
                self._nursery.start_soon(self._count)
                await self._nursery.start(self._deadlines.run)
                task_status.started()
        finally:
            self._nursery = None

    async def _count(self) -> None:
        """Have waiting fetches count new bytes, a few of them in each turn of the loop."""
        self._is_running = True
        uncounted = self._uncounted
        try:
            while True:
                if not uncounted:
                    await self._has_uncounted.wait()
                # A task that sends an acknowledgement may have been woken together with this one.
                await trio.lowlevel.checkpoint()
                self._count_some()
        finally:
            self._is_running = False
            uncounted.clear()  # When the deadlines end, all waits end.

    def _count_some(self) -> None:
        """Have some fetches count new bytes.

        The task holds no references to fetches while it waits for more bytes, so they can be freed.
        """
        arrival = self._uncounted[0]
        waits = self._bytes.count(arrival, _COUNTED_A_TURN)
        if arrival.is_counted:
            self._uncounted.popleft()
        self._end_all(waits)


def _has_followers(partition: Partition, isolations: Sequence[FetchIsolation]) -> bool:
    """Return whether followers may wait for bytes at these isolation levels."""
    leader = partition.leader
    return FetchIsolation.LOG_END in isolations and leader is not None and bool(leader.followers)
