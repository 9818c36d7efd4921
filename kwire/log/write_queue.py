"""The queued writes of a log whose directory is slow, written in order by a thread.

Rules: the log changes the queue; a service runs one :class:`Job` at a time per log and returns it.
A truncation while a job is running lowers the offsets that the job will make readable, and queues
its cut of the file after the job. A flush that runs meanwhile does not sync the cut; the next one
does.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from kwire.log.disk import pin_all
from kwire.log.segments.segment import Segment
from kwire.records.header import BatchHeader, Buffer, headers

JOB_WRITES_MAX: Final = 256


@attrs.define(eq=False, repr=False)
class Write:
    """Batches queued for a segment; ``parts`` keep the request's memory alive."""

    segment: Segment
    position: int
    parts: Sequence[Buffer]
    end_position: int
    next_offset: int


@attrs.define(eq=False, repr=False)
class Cut:
    """A truncation that must not overtake the writes before it."""

    segment: Segment
    size: int


Operation = Write | Cut


@attrs.define(eq=False, repr=False)
class Job:
    """The operations of one call in a thread."""

    operations: list[Operation]

    def run(self) -> None:
        """Run the operations, in a thread, between ``WriteQueue.take`` and ``finish``."""
        for operation in self.operations:
            if isinstance(operation, Write):
                operation.segment.file.write(operation.parts, operation.position)
            else:
                operation.segment.file.truncate(operation.size)


@attrs.define(eq=False, repr=False)
class WriteQueue:
    """The queue of one log."""

    queue: list[Operation] = attrs.Factory(list)
    running: Job | None = None

    def __bool__(self) -> bool:
        return bool(self.queue) or self.running is not None

    def add(self, operation: Operation) -> None:
        self.queue.append(operation)

    def take(self) -> Job:
        """Take the next job and pin its files until it is returned.

        If this raises OSError, no job was taken.
        """
        assert self.running is None
        operations = self.queue[:JOB_WRITES_MAX]
        pin_all(operation.segment.file for operation in operations)
        del self.queue[:JOB_WRITES_MAX]
        self.running = Job(operations)
        return self.running

    def put_back(self) -> None:
        """Return the running job to the queue; repeating it is safe, as writes have positions."""
        assert self.running is not None
        operations, self.running = self.running.operations, None
        self.queue[:0] = operations
        for operation in operations:
            operation.segment.file.unpin()

    def finish(self) -> list[Operation]:
        """End the running job after success; return its operations, adjusted to truncations."""
        assert self.running is not None
        operations, self.running = self.running.operations, None
        for operation in operations:
            operation.segment.file.unpin()
        return operations

    def locate(self, segment: Segment, offset: int) -> int | None:
        """Return the position of the batch that contains ``offset``, if queued for ``segment``."""
        running = self.running.operations if self.running is not None else ()
        for operation in (*running, *self.queue):
            if isinstance(operation, Write) and operation.segment is segment:
                for position, header in _batches(operation):
                    if offset < header.next_offset <= operation.next_offset:
                        return position
        return None

    def truncate(self, segment: Segment, position: int, offset: int) -> None:
        """Drop the queued writes from ``position`` onwards, and queue a cut after the others.

        Operations on later segments are dropped, because those segments are removed. A write that
        spans the position stays, because its first part is needed; the cut removes the rest.
        """
        self.queue = [
            op
            for op in self.queue
            if op.segment.base_offset <= segment.base_offset
            and (isinstance(op, Cut) or op.segment is not segment or op.position < position)
        ]
        running = self.running.operations if self.running is not None else ()
        for operation in (*running, *self.queue):
            if isinstance(operation, Write) and operation.next_offset > offset:
                operation.next_offset = offset
                operation.end_position = min(operation.end_position, position)
        self.queue.append(Cut(segment, position))

    def forget(self, offset: int) -> None:
        """Drop all writes, because the log was emptied and continues at ``offset``."""
        self.queue.clear()
        for operation in self.running.operations if self.running is not None else ():
            if isinstance(operation, Write):
                operation.next_offset, operation.end_position = offset, 0


def _batches(write: Write) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position in the segment and the header of each batch of a write."""
    data = write.parts[0] if len(write.parts) == 1 else b"".join(write.parts)
    for pos, header in headers(data):
        yield write.position + pos, header
