"""Writes of a log whose directory is slow: queued in order, done by somebody's thread.

Rules: the log changes the queue, a service runs :class:`Job`s one at a time per log and hands
them back. A truncation while a job runs takes back what the job promises to readers, and its cut
of the file waits behind the job: a flush meanwhile does not sync it, the one after it does.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import attrs

from kwire.log.disk import pin_all
from kwire.log.segment import Segment
from kwire.records.header import BatchHeader, Buffer, headers

JOB_WRITES_MAX: Final = 256


@attrs.define(eq=False)
class Write:
    """A batch on its way into a segment; ``parts`` keep the request's memory alive."""

    segment: Segment
    position: int
    parts: Sequence[Buffer]
    end_position: int
    next_offset: int


@attrs.define(eq=False)
class Cut:
    """A truncation that must not overtake the writes before it."""

    segment: Segment
    size: int


Operation = Write | Cut


@attrs.define(eq=False)
class Job:
    """What one visit of a thread does."""

    operations: list[Operation]

    def run(self) -> None:
        """In a thread, between :meth:`WriteQueue.take` and :meth:`WriteQueue.done`."""
        for operation in self.operations:
            if isinstance(operation, Write):
                operation.segment.file.write(operation.parts, operation.position)
            else:
                operation.segment.file.truncate(operation.size)


@attrs.define(eq=False)
class WriteQueue:
    """The queue of one log."""

    queue: deque[Operation] = attrs.Factory(deque)
    running: Job | None = None

    def __bool__(self) -> bool:
        return bool(self.queue) or self.running is not None

    def add(self, operation: Operation) -> None:
        self.queue.append(operation)

    def take(self) -> Job:
        """The next job; its files are pinned until it is handed back. OSError: none was taken."""
        assert self.running is None
        operations = list(islice(self.queue, JOB_WRITES_MAX))
        pin_all(operation.segment.file for operation in operations)
        for _ in operations:
            self.queue.popleft()
        self.running = Job(operations)
        return self.running

    def put_back(self) -> None:
        """The running job could not be done now; it may be begun again, for it says where."""
        assert self.running is not None
        operations, self.running = self.running.operations, None
        self.queue.extendleft(reversed(operations))
        for operation in operations:
            operation.segment.file.unpin()

    def done(self) -> list[Operation]:
        """The running job is over, and well; its writes, as far as they still count, and cuts."""
        assert self.running is not None
        operations, self.running = self.running.operations, None
        for operation in operations:
            operation.segment.file.unpin()
        return operations

    def locate(self, segment: Segment, offset: int) -> int | None:
        """Position of the batch that holds ``offset``, if it waits to be written into a segment."""
        running = self.running.operations if self.running is not None else ()
        for operation in (*running, *self.queue):
            if isinstance(operation, Write) and operation.segment is segment:
                for position, header in _batches(operation):
                    if offset < header.next_offset <= operation.next_offset:
                        return position
        return None

    def truncate(self, segment: Segment, position: int, offset: int) -> None:
        """Forget what was to be written from here on, and cut after what is being written.

        The segments that follow are gone, and with them what was to be cut off them. Of a write
        that is cut in two the front still counts; the cut that follows it takes the rest.
        """
        self.queue = deque(
            op
            for op in self.queue
            if op.segment.base_offset <= segment.base_offset
            and (isinstance(op, Cut) or op.segment is not segment or op.position < position)
        )
        running = self.running.operations if self.running is not None else ()
        for operation in (*running, *self.queue):
            if isinstance(operation, Write) and operation.next_offset > offset:
                operation.next_offset = offset
                operation.end_position = min(operation.end_position, position)
        self.queue.append(Cut(segment, position))

    def forget(self, offset: int) -> None:
        """The log begins anew at ``offset``: nothing of the old one counts."""
        self.queue.clear()
        for operation in self.running.operations if self.running is not None else ():
            if isinstance(operation, Write):
                operation.next_offset, operation.end_position = offset, 0


def _batches(write: Write) -> Iterator[tuple[int, BatchHeader]]:
    """Position in the segment and header of each batch of a write."""
    data = write.parts[0] if len(write.parts) == 1 else b"".join(write.parts)
    for pos, header in headers(data):
        yield write.position + pos, header
