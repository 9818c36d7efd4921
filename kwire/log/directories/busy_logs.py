"""The logs of one directory on which a thread works.

Rule: a log is not truncated, closed, renamed or removed while a thread works on it. A log has at
most one flush and one write of queued batches at a time; both may run together.
"""

import trio

from kwire import attrs
from kwire.log.partition_log import PartitionLog


@attrs.define(eq=False)
class BusyLogs:
    """The running flushes and writes by log; each event is set when that work has ended."""

    flushes: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)
    writes: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)

    def __contains__(self, log: PartitionLog) -> bool:
        return log in self.flushes or log in self.writes

    async def wait_idle(self, log: PartitionLog) -> None:
        """Block until no thread works on a log."""
        while log in self.flushes or log in self.writes:
            running = self.flushes if log in self.flushes else self.writes
            await running[log].wait()
