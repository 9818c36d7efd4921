"""The producer snapshots of a log: one per segment's base offset, and one for the end."""

from bisect import insort
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from kwire.log.cold_lookups import preparation, run_all
from kwire.log.disk import Disk
from kwire.log.disk_health import ignore_no_room
from kwire.log.flush_state import FlushState
from kwire.log.formats import names
from kwire.log.log_segments import LogSegments
from kwire.log.producers import CorruptSnapshot, ProducerStates, iterate_snapshot
from kwire.log.segments import warming
from kwire.log.segments.segment import Segment
from kwire.records.header import HEADER_SIZE, NO_PRODUCER, parse

READ_BYTES: Final = 256 * 1024
"""The number of bytes of a segment that a replay reads at once."""
SLICE_BATCHES: Final = 20
"""The number of batches that a replay processes between two pauses."""
SLICE_PRODUCERS: Final = 50
Read: TypeAlias = Callable[[], bytes | None]
Rebuild: TypeAlias = Generator[Read | None, bytes | None, ProducerStates]
"""A replay in slices: it yields None to pause, or a read for a thread, and is sent the data
read."""


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

        If the disk has no room, it stays in memory until the next flush writes it.
        """
        self._flush_state.unsynced.files[_name(offset)] = self._producers.freeze().to_bytes
        self.write_now(offset)
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def take_at_flush(self, offset: int) -> None:
        """Let the next flush write a snapshot of the current producers.

        The flush's thread encodes the snapshot, so that the append that begins a segment need not.
        """
        producers = self._producers.freeze()
        if offset not in self.offsets:
            insort(self.offsets, offset)
        else:
            with suppress(FileNotFoundError):
                if self.read(offset) == producers.to_bytes():
                    return
        self._flush_state.unsynced.files[_name(offset)] = producers.to_bytes

    def is_waiting(self, offset: int) -> bool:
        """Return whether a snapshot waits for the next flush to write it."""
        return self._flush_state.unsynced.files.get(_name(offset)) is not None

    def write_now(self, offset: int) -> None:
        """Write a snapshot that waits for the next flush, unless the disk has no room for it."""
        files = self._flush_state.unsynced.files
        encode = files.get(_name(offset))
        if encode is not None:
            with ignore_no_room():
                self._segments.disk.write(self._path(offset), encode())
                files[_name(offset)] = None

    def read(self, offset: int) -> bytes:
        """Return a snapshot file's content, even if no flush has written it yet."""
        encode = self._flush_state.unwritten(_name(offset))
        return self._segments.disk.read(self._path(offset)) if encode is None else encode()

    def remove(self, offset: int) -> None:
        """Remove a snapshot from the list and from the disk."""
        self._segments.disk.remove(self._path(offset))
        self.forget(offset)

    def remove_after(self, end_offset: int) -> None:
        """Remove the snapshots that cover batches from ``end_offset`` onwards."""
        for offset in [offset for offset in self.offsets if offset > end_offset]:
            self.remove(offset)

    def forget(self, offset: int) -> None:
        """Remove a snapshot from the list, if listed; it is removed with its segment's files."""
        if offset in self.offsets:
            self.offsets.remove(offset)
            self._flush_state.unsynced.files.pop(_name(offset), None)

    def replay(self, end_offset: int) -> None:
        """Set the producers to their state after all batches below ``end_offset``, at once."""
        for _ in self.replaying(end_offset):
            pass

    def replaying(self, end_offset: int, high_watermark: int = 0) -> Iterator[None]:
        """Do the same as :meth:`replay` in slices; reads happen in the calling thread.

        Transactions that ended below ``high_watermark`` are dropped.
        """
        rebuild, data = self.rebuilding(end_offset, high_watermark), None
        while True:
            try:
                read = rebuild.send(data)
            except StopIteration as done:
                self._producers.replace(done.value)
                return
            data = None if read is None else read()
            yield

    def rebuilding(self, end_offset: int, high_watermark: int) -> Rebuild:
        """Build the producer state after all batches below ``end_offset``, beside the current one.

        The batches and segments below ``end_offset`` must not change meanwhile.
        """
        states = ProducerStates()
        start_offset = yield from self._restore(states, end_offset)
        if start_offset >= end_offset:
            return states
        segments = self._segments
        for segment in segments[segments.index_of(start_offset) :] if len(segments) else ():
            first: tuple[int, int] | None = (0, 0)
            if start_offset > segment.base_offset:
                yield from _warm(segment, start_offset)
                first = segment.locate(start_offset)
            if first is not None:
                is_last = yield from self._replay_segment(
                    states, segment, first[0], end_offset, high_watermark
                )
                if is_last:
                    break
        return states

    def _replay_segment(
        self,
        states: ProducerStates,
        segment: Segment,
        position: int,
        end_offset: int,
        high_watermark: int,
    ) -> Generator[Read | None, bytes | None, bool]:
        """Replay a segment's batches; return whether one of them reaches past ``end_offset``."""
        data, start, count = b"", position, 0
        while position + HEADER_SIZE <= segment.written:
            pos = position - start
            header = parse(data, pos) if pos + HEADER_SIZE <= len(data) else None
            if header is None or (header.is_control and pos + header.size > len(data)):
                size = READ_BYTES if header is None else max(header.size, READ_BYTES)
                size = min(size, segment.written - position)
                start, data = position, (yield from _read(segment, position, size))
                if len(data) < HEADER_SIZE:
                    return False
                pos, header = 0, parse(data)
            if header.size < HEADER_SIZE or header.next_offset > end_offset:
                return header.next_offset > end_offset
            if header.producer_id > NO_PRODUCER:
                states.replay(data, pos, header)
            position += header.size
            count += 1
            if not count % SLICE_BATCHES:
                states.drop_replicated(high_watermark)
                yield None
        return False

    def _restore(
        self, states: ProducerStates, end_offset: int
    ) -> Generator[Read | None, bytes | None, int]:
        """Restore the newest valid snapshot up to ``end_offset``; return its offset.

        Without a snapshot the state stays empty, and the offset is the first base offset.
        """
        for offset in reversed([offset for offset in self.offsets if offset <= end_offset]):
            encode = self._flush_state.unwritten(_name(offset))
            disk, path = self._segments.disk, self._path(offset)
            data = yield encode or partial(_read_file, disk, path)
            try:
                producers = iterate_snapshot(data or b"")
            except CorruptSnapshot:
                self.remove(offset)
                continue
            for count, _ in enumerate(states.restoring(producers), 1):
                if not count % SLICE_PRODUCERS:
                    yield None
            return offset
        return self._segments[0].base_offset if len(self._segments) else 0

    def _path(self, offset: int) -> str:
        return f"{self._segments.directory}/{_name(offset)}"


def _warm(segment: Segment, offset: int) -> Generator[Read | None, bytes | None, None]:
    """Have a thread read what :meth:`Segment.locate` needs, and rebuild wrong indexes."""
    look_up, make_job = partial(segment.locate, offset), partial(warming.lookups, segment, offset)
    for job in preparation(look_up, make_job):
        yield partial(run_all, [job])


def _read(
    segment: Segment, position: int, size: int
) -> Generator[Read | None, bytes | None, bytes]:
    """Read from a segment's file, pinning it meanwhile."""
    file = segment.file
    file.pin()
    try:
        data = yield partial(file.read, position, size)
    finally:
        file.unpin()
    assert data is not None
    return data


def _read_file(disk: Disk, path: str) -> bytes | None:
    """Return a file's content, in a thread; None if the file does not exist."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return None


async def finish_rebuild(
    rebuild: Rebuild,
    in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    pause: Callable[[], Awaitable[None]],
    may_go_on: Callable[[], bool],
) -> ProducerStates | None:
    """Run a rebuild with its reads ``in_thread``; return None as soon as it may not go on."""
    results: list[bytes | None] = []
    try:
        while may_go_on():
            read = rebuild.send(results.pop() if results else None)
            if read is not None:
                await in_thread(partial(_collect, read, results))
            await pause()
    except StopIteration as done:
        states: ProducerStates = done.value
        return states
    finally:
        rebuild.close()
    return None


def _collect(read: Read, results: list[bytes | None]) -> None:
    results.append(read())
