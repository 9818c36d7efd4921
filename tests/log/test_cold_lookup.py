"""Lookups that do not wait for the disk, and what threads read for them."""

import errno
import os

import pytest

from kwire.log import timestamp_search
from kwire.log.cold import WouldWait
from kwire.log.config import LogConfig
from kwire.log.disk import File, RealDisk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.partition_log import PartitionLog, create
from kwire.log.segments import segment as segment_module
from kwire.log.segments.segment import UNKNOWN_TIMESTAMP
from kwire.records.header import Buffer, parse
from kwire.simulation.disk import SimDisk
from kwire.types import TopicPartition
from tests.support.log.batches import TIME_MS, append

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100)


def filled(disk: SimDisk) -> PartitionLog:
    """A log of several segments whose indexes are on disk."""
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=CONFIG)
    for number in range(90):
        append(log, [b"%d" % number], timestamp_ms=TIME_MS + number)
    log.flush_state.flush()
    assert len(log.segments) > 3
    return log


def base_offset(log: PartitionLog, offset: int, *, wait: bool) -> int:
    with log.read(offset, 1, end_offset=log.end_offset, wait=wait) as region:
        return parse(region.read()).base_offset


def test_lookup_in_a_closed_segment_tells_that_it_would_wait() -> None:
    """Invariant 91: it reads nothing, and finds its place after a thread has read for it."""
    disk = SimDisk()
    log = filled(disk)
    for offset in range(log.segments.active.base_offset):
        disk.cached = False
        calls = len(disk.calls)
        with pytest.raises(WouldWait) as cold:
            base_offset(log, offset, wait=False)
        assert not [path for kind, path in disk.calls[calls:] if kind == "read"]
        cold.value.job()
        assert [path for kind, path in disk.calls[calls:] if kind == "read"]
        disk.cached = True
        assert base_offset(log, offset, wait=False) == offset


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("suffix", [names.INDEX, names.TIME_INDEX])
def test_segment_whose_index_is_gone_is_read_from_its_beginning(suffix: str, wait: bool) -> None:
    """Invariant 79: somebody removed the file while the broker runs; the next start makes it."""
    disk = SimDisk()
    log = filled(disk)
    segment = log.segments[1]
    segment.largest_timestamp()
    disk.remove(segment.files.path(suffix))
    for offset in range(segment.base_offset, log.segments[2].base_offset):
        assert base_offset(log, offset, wait=wait) == offset
        found = timestamp_search.run(timestamp_search.first_at_least(log, TIME_MS + offset))
        assert found == timestamp_search.OffsetAndTimestamp(offset, TIME_MS + offset)
    assert disk.failed is None


def test_lookup_in_the_tail_waits_for_nothing() -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.cached = False
    for offset in range(log.segments.active.base_offset, log.end_offset):
        assert log.segments.active.locate(offset, wait=False) is not None


def test_lookup_beyond_the_tail_of_the_active_segment() -> None:
    """Its index is in memory and may change under a thread, which reads the batches alone."""
    disk = SimDisk()
    log = filled(disk)
    log.segments.active._recent_next = log.segments.active._recent_next[:0]
    log.segments.active._recent_position = log.segments.active._recent_position[:0]
    offset = log.end_offset - 2
    disk.cached = False
    with pytest.raises(WouldWait) as cold:
        base_offset(log, offset, wait=False)
    calls = len(disk.calls)
    cold.value.job()
    read = {path for kind, path in disk.calls[calls:] if kind == "read"}
    assert read == {log.segments.active.file.path}
    disk.cached = True
    assert base_offset(log, offset, wait=False) == offset


@pytest.mark.parametrize("change", ["removed", "cut"])
def test_segment_that_goes_while_a_thread_reads(change: str) -> None:
    """The thread finds out or not; no file stays open because of it."""
    disk = SimDisk()
    log = filled(disk)
    disk.cached = False
    with pytest.raises(WouldWait) as cold:
        base_offset(log, 1, wait=False)
    if change == "removed":
        log.drop_segments(1)
        with pytest.raises(FileNotFoundError):
            cold.value.job()
    else:
        log.truncate_to(1)
        cold.value.job()
    log.segments.release()
    assert not disk.opened


def test_cached_reads_of_a_real_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.write([b"0123456789"], 0)
    if file.read_cached(0, 1) is None:
        assert not disk.can_probe
        pytest.skip("this file system does not say what is cached")
    assert [file.read_cached(*at) for at in ((0, 4), (8, 4), (10, 4))] == [b"0123", b"89", b""]
    monkeypatch.setattr(os, "preadv", lambda fd, parts, position, flags: 2)
    assert file.read_cached(0, 4) is None, "the next page is not there"

    def refuse(number: int) -> None:
        def preadv(*arguments: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "preadv", preadv)

    refuse(errno.EAGAIN)
    assert file.read_cached(0, 4) is None
    assert not file.is_cached(0, 4)
    refuse(errno.EOPNOTSUPP)
    assert file.read_cached(0, 4) is None
    assert not disk.can_probe
    disk.can_probe = True
    refuse(errno.EIO)
    with pytest.raises(OSError, match="error"):
        file.read_cached(0, 4)
    assert disk.failed is not None


@pytest.mark.parametrize("count", [0, 1, 2, 2047, 2048, 2049, 5000, 9000])
def test_search_in_an_index_reads_few_entries_and_finds_the_last(count: int) -> None:
    offsets = b"".join(offset_index.ENTRY.pack(3 * n, 100 * n) for n in range(count))
    times = b"".join(time_index.ENTRY.pack(3 * n, n) for n in range(count))
    reads = 0

    def counted(data: bytes, size: int) -> offset_index.Read:
        def read(first: int, number: int) -> bytes:
            nonlocal reads
            reads += 1
            return data[first * size : (first + number) * size]

        return read

    for wanted in sorted({-1, 0, 1, 2, 3, 4, 3 * count // 2, 3 * count - 3, 3 * count, 1 << 30}):
        expected = [n for n in range(count) if 3 * n <= wanted]
        reads = 0
        found = offset_index.floor(counted(offsets, 8), count, wanted)
        assert found == ((3 * expected[-1], 100 * expected[-1]) if expected else None)
        assert reads <= 4
        older = [n for n in range(count) if 3 * n < wanted]
        assert time_index.before(counted(times, 12), count, wanted) == (
            (3 * older[-1], older[-1]) if older else None
        )


@pytest.mark.parametrize("number", [0, 1, 2])
def test_time_index_that_vanished_before_its_first_use_is_rebuilt(number: int) -> None:
    """Invariants 17 and 79: searches find the records, retention knows their age."""
    disk = SimDisk()
    log = filled(disk)
    for segment in log.segments[:-1]:
        segment.max_timestamp = UNKNOWN_TIMESTAMP  # As after a start.
    segment, following = log.segments[number], log.segments[number + 1]
    path = segment.files.path(names.TIME_INDEX)
    index = disk.read(path)
    disk.remove(path)
    for offset in range(segment.base_offset, following.base_offset):
        spot = timestamp_search.run(timestamp_search.first_at_least(log, TIME_MS + offset))
        assert spot == timestamp_search.OffsetAndTimestamp(offset, TIME_MS + offset)
    assert segment.largest_timestamp() == TIME_MS + following.base_offset - 1
    assert disk.read(path) == index


class FailingFile:
    """A file of which only some reads succeed."""

    def __init__(self, file: File, reads: int) -> None:
        self.file = file
        self.reads = reads

    def read(self, position: int, size: int) -> Buffer:
        self.reads -= 1
        if self.reads < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.file.read(position, size)


@pytest.mark.parametrize("reads", [0, 1])
def test_error_while_an_index_is_rebuilt_is_repaired_by_the_next_search(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 17 and 79: half an index would hide records from searches until a restart."""
    monkeypatch.setattr(segment_module, "CHUNK", 256)
    disk = SimDisk()
    log = filled(disk)
    segment, following = log.segments[0], log.segments[1]
    segment.max_timestamp = UNKNOWN_TIMESTAMP  # As after a start.
    path = segment.files.path(names.TIME_INDEX)
    index = disk.read(path)
    disk.remove(path)
    with monkeypatch.context() as shortage:
        shortage.setattr(segment, "file", FailingFile(segment.file, reads))
        with pytest.raises(OSError, match="Too many open files"):
            segment.largest_timestamp()
    assert not segment.has_indexes
    assert segment.size == segment.written
    assert segment.largest_timestamp() == TIME_MS + following.base_offset - 1
    assert disk.read(path) == index


def test_search_rebuilds_no_index_of_a_segment_that_was_removed_meanwhile() -> None:
    """A search by time pauses between segments, and retention goes on."""
    disk = SimDisk()
    log = filled(disk)
    for segment in log.segments[:-1]:
        segment.max_timestamp = UNKNOWN_TIMESTAMP  # As after a start.
    removed = log.segments[:3]
    for path in log.drop_segments(3):
        disk.remove(path)
    files = set(disk.entries(removed[0].files.directory))
    assert [segment.largest_timestamp() for segment in removed] == [-1, -1, -1]
    assert set(disk.entries(removed[0].files.directory)) == files
