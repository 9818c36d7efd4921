"""The producer snapshots of a log: a file for each segment's base offset, and one for the end."""

from bisect import insort
from contextlib import suppress

from kwire.log.disk_health import ignore_no_room
from kwire.log.flush_state import FlushState
from kwire.log.formats import names
from kwire.log.log_segments import LogSegments
from kwire.log.producers import CorruptSnapshot, ProducerStates, read_snapshot
from kwire.records.header import CONTROL, NO_PRODUCER


def _name(offset: int) -> str:
    return names.stem(offset) + names.SNAPSHOT


class ProducerSnapshots:
    """The snapshot files of one log's producers, and the replay of batches from them."""

    __slots__ = ("_flush_state", "_producers", "_segments", "offsets")

    def __init__(
        self, producers: ProducerStates, segments: LogSegments, flush_state: FlushState
    ) -> None:
        self._producers = producers
        self._segments = segments
        self._flush_state = flush_state
        self.offsets: list[int] = []
        """The offsets of the snapshots; each covers the batches below its offset."""

    def take(self, offset: int) -> None:
        """Write a snapshot of the producers below ``offset``; the next flush syncs the file.

        Without room on the disk it stays in memory, and the next flush writes it.
        """
        files, data = self._flush_state.unsynced.files, self._producers.snapshot()
        files[_name(offset)] = data
        with ignore_no_room():
            self._segments.disk.write(self._path(offset), data)
            files[_name(offset)] = None
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def take_at_flush(self, offset: int) -> None:
        """Let the next flush write a snapshot of the producers as they are now."""
        data = self._producers.snapshot()
        if offset not in self.offsets:
            insort(self.offsets, offset)
        else:
            with suppress(FileNotFoundError):
                if self.read(offset) == data:
                    return
        self._flush_state.unsynced.files[_name(offset)] = data

    def read(self, offset: int) -> bytes:
        """Return a snapshot file's content, even if no flush has written it yet."""
        data = self._flush_state.unwritten(_name(offset))
        return self._segments.disk.read(self._path(offset)) if data is None else data

    def remove(self, offset: int) -> None:
        """Remove a snapshot from the list and from the disk."""
        self._segments.disk.remove(self._path(offset))
        self.forget(offset)

    def remove_after(self, end_offset: int) -> None:
        """Remove the snapshots that cover batches from ``end_offset`` on."""
        for offset in [offset for offset in self.offsets if offset > end_offset]:
            self.remove(offset)

    def forget(self, offset: int) -> None:
        """Drop a snapshot whose file is removed with its segment's, if there is one."""
        if offset in self.offsets:
            self.offsets.remove(offset)
            self._flush_state.unsynced.files.pop(_name(offset), None)

    def replay(self, end_offset: int) -> None:
        """Set the producers to their state after all batches below ``end_offset``."""
        start_offset = self._restore(end_offset)
        for segment, position, header in self._segments.batches_from(start_offset):
            if header.next_offset > end_offset:
                return
            if header.producer_id > NO_PRODUCER:
                is_control = header.attributes & CONTROL
                data = segment.file.read(position, header.size) if is_control else b""
                self._producers.replay(data, 0, header)

    def _restore(self, end_offset: int) -> int:
        """Restore the newest good snapshot up to ``end_offset``; return its offset.

        Without one, no producers remain, and the offset is the first of the segments.
        """
        for offset in reversed([offset for offset in self.offsets if offset <= end_offset]):
            try:
                self._producers.restore(read_snapshot(self.read(offset)))
            except (CorruptSnapshot, FileNotFoundError):
                self.remove(offset)
                continue
            return offset
        self._producers.clear()
        return self._segments[0].base_offset if len(self._segments) else 0

    def _path(self, offset: int) -> str:
        return f"{self._segments.directory}/{_name(offset)}"
