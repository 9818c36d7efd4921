"""The logs of one directory that a thread is working on, or that are about to be cut.

Rules: a log is not truncated, closed, renamed or removed while a thread works on it. A log has at
most one flush and one write of queued batches at a time; both may run concurrently. A task that
waits for these threads takes precedence over the log's next flush and next write; otherwise it
would wait forever for a log that is constantly flushed or written. Before a task cuts a log, it
claims the log: from then on, only flushes and writes continue, and everything else waits. A claim
aborts the log's compaction, unless compaction itself claims the log to replace segments.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import attrs
import trio

from kwire.log.compaction.states import CleaningStates
from kwire.log.flush import Flush
from kwire.log.partition_log import PartitionLog


@attrs.frozen(eq=False, repr=False)
class RunningFlush:
    """A flush that runs in a thread."""

    flush: Flush
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, repr=False)
class Waiters:
    """The tasks that wait until no thread works on a log."""

    count: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, repr=False)
class BusyLogs:
    """The running flushes, writes and cuts by log; an event is set when its work has ended."""

    flushes: dict[PartitionLog, RunningFlush] = attrs.field(init=False, factory=dict)
    writes: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)
    cuts: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)
    queues: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)
    """Logs whose queued batches a task is writing; the event is set when some of them are
    written."""
    cleaning: CleaningStates = attrs.field(init=False, factory=CleaningStates)
    """The logs that are being compacted, or must not be."""
    _waiters: dict[PartitionLog, Waiters] = attrs.field(init=False, factory=dict)

    def __contains__(self, log: PartitionLog) -> bool:
        return log in self.flushes or log in self.writes or log in self.cuts

    async def wait_idle(self, log: PartitionLog) -> None:
        """Block until no thread works on a log and no task is about to cut it.

        The caller must change the log before it awaits anything else.
        """
        while log in self:
            await self.wait_cut(log)
            await self.wait_threads(log)

    async def wait_cut(self, log: PartitionLog) -> None:
        """Block while another task has claimed the log."""
        if log in self.cuts:
            await self.cuts[log].wait()

    async def wait_threads(self, log: PartitionLog) -> None:
        """Block until no thread works on a log; new flushes and writes have to wait for this."""
        async with self.hold(log):
            pass

    @asynccontextmanager
    async def hold(self, log: PartitionLog) -> AsyncIterator[None]:
        """Block until no thread works on a log; no thread starts to until the context ends."""
        waiters = self._waiters.setdefault(log, Waiters())
        waiters.count += 1
        try:
            while log in self.flushes or log in self.writes:
                flush = self.flushes.get(log)
                await (self.writes[log] if flush is None else flush.ended).wait()
            yield
        finally:
            waiters.count -= 1
            if not waiters.count:
                del self._waiters[log]
                waiters.ended.set()

    async def wait_turn(self, log: PartitionLog) -> bool:
        """Block while other tasks wait for a log's threads; return whether there were any.

        Call it before starting a flush or a write; after a wait the log may have changed.
        """
        if log not in self._waiters:
            return False
        while (waiters := self._waiters.get(log)) is not None:
            await waiters.ended.wait()
        return True

    @asynccontextmanager
    async def claim(self, log: PartitionLog, *, by_compaction: bool = False) -> AsyncIterator[None]:
        """Claim a log that is about to be cut; call :meth:`wait_threads` before the cut."""
        with ExitStack() as pause:
            if not by_compaction:
                pause.enter_context(self.cleaning.pause(log))
            await self.wait_idle(log)
            ended = self.cuts[log] = trio.Event()
            try:
                yield
            finally:
                del self.cuts[log]
                ended.set()
