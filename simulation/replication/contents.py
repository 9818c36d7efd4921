"""The records of simulated logs, each decoded once, because most logs only grow between checks.

Rules: ``generation`` changes when records disappear or change, so a check of everything below an
offset stays valid for a log as long as the generation is the same.
"""

from typing import Final, cast

import attrs

from kwire.log.partition_log import PartitionLog
from kwire.records.header import headers
from kwire.records.iterate import records
from simulation.disk import SimDisk

Content = dict[int, tuple[int, bytes]]
"""The epoch and the value of each record, by offset."""
_READ_BYTES: Final = 1 << 20


def raw(log: PartitionLog, start_offset: int) -> bytes:
    """Return the readable batches of a log from ``start_offset`` onwards."""
    data = bytearray()
    offset, end_offset = start_offset, log.writer.written_offset
    while offset < end_offset:
        region = log.read(offset, _READ_BYTES, end_offset=end_offset)
        piece = bytes(region.read())
        region.close()
        data += piece
        for _, header in headers(piece):
            offset = header.next_offset
    return bytes(data)


def decode(data: bytes) -> Content:
    """Return the records in ``data``, which has whole batches."""
    content: Content = {}
    for position, header in headers(data):
        for record in records(data, position, header):
            content[record.offset] = header.leader_epoch, bytes(record.value or b"")
    return content


def read_stored(disk: SimDisk, topic: str, index: int) -> Content:
    """Return the records of a partition on the disk of a machine whose process has ended."""
    prefix = f"{topic}-{index}/"
    files = sorted((path, inode) for path, inode in disk.files.items() if path.startswith(prefix))
    content: Content = {}
    for path, inode in files:
        if path.endswith(".log"):
            content |= decode(bytes(inode.data))
    return content


@attrs.define(eq=False)
class Decoded:
    """The records of one replica's log at the time of the last check."""

    content: Content = attrs.field(factory=dict)
    generation: int = 0
    _log: PartitionLog | None = None
    log_start: int = 0
    _end_offset: int = 0
    _epochs: list[tuple[int, int]] = attrs.field(factory=list)

    def look(self, log: PartitionLog) -> None:
        """Decode the new records of a log, or all records if some may have been removed.

        A truncation is detected by a new leader epoch that starts below the former end.
        """
        epochs = log.epochs.entries()
        end_offset = log.writer.written_offset
        has_grown = (
            log is self._log
            and log.log_start >= self.log_start
            and end_offset >= self._end_offset
            and epochs[: len(self._epochs)] == self._epochs
            and all(start >= self._end_offset for _, start in epochs[len(self._epochs) :])
        )
        if not has_grown:
            self.content, self._end_offset = {}, log.log_start
            self.generation += 1
        self._end_offset = max(self._end_offset, log.log_start)
        if end_offset > self._end_offset:
            with cast("SimDisk", log.disk).without_faults():
                self.content.update(decode(raw(log, self._end_offset)))
        self._log, self.log_start, self._epochs = log, log.log_start, epochs
        self._end_offset = end_offset


@attrs.define(eq=False)
class Contents:
    """The records of all replicas, by broker and partition."""

    _logs: dict[tuple[int, str, int], Decoded] = attrs.field(factory=dict)

    def of(self, node: int, topic: str, index: int, log: PartitionLog) -> Decoded:
        """Return the current records of a replica."""
        decoded = self._logs.setdefault((node, topic, index), Decoded())
        decoded.look(log)
        return decoded
