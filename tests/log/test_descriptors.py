"""Open descriptors of logs: the space of a removed file is freed when its last one is closed."""

import os
import sys

import pytest
import trio

from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.partition_log import PartitionLog, create
from kwire.log.segments.segment import Segment
from kwire.types import TopicPartition
from tests.support.log.batches import TIME_MS, append, content, max_timestamp
from tests.support.log.manager import ID, running
from tests.support.log.slices import result_of

HOUR_MS = 3_600_000
CONFIG = LogConfig(
    segment_bytes=200, retention_ms=HOUR_MS, file_delete_delay_ms=60_000, index_interval_bytes=1
)


def open_files(path: object, *, removed: bool | None = None) -> list[str]:
    """Return the names of this process's open files below ``path``, relative to it."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # The descriptor of the listing.
            continue
        if name.startswith(f"{path}/") and removed in (None, name.endswith(" (deleted)")):
            names.append(name.removeprefix(f"{path}/"))
    return sorted(names)


def is_open(segment: Segment) -> bool:
    """Whether the log file has a descriptor, on any system."""
    return segment.file.fileno() >= 0


def fill(log: PartitionLog) -> list[Segment]:
    """Append to segments of two batches each, and read them all; return the segments."""
    for _ in range(12):
        append(log, [b"v" * 10])
    log.high_watermark = log.end_offset
    content(log)
    for offset in range(log.end_offset):
        result_of(
            timestamp_search.position_of(log.segments[log.segments.index_of(offset)], TIME_MS)
        )
    assert len(log.segments) == 6
    assert all(map(is_open, log.segments))
    return list(log.segments)


async def test_space_of_expired_segments_is_freed_at_once(tmp_path, autojump_clock) -> None:
    async with running(RealDisk(str(tmp_path))) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        old = fill(log)
        await trio.sleep(2 * HOUR_MS / 1000)
        assert len(log.segments) == 1
        assert not any(map(is_open, old))
        if sys.platform == "linux":
            assert open_files(tmp_path, removed=True) == []
    await logs.close()


async def test_reader_of_an_expired_segment_keeps_its_file_open(tmp_path, autojump_clock) -> None:
    async with running(RealDisk(str(tmp_path))) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        old = fill(log)
        region = log.read(0, 10_000, end_offset=log.end_offset)
        before = region.read()
        await trio.sleep(2 * HOUR_MS / 1000)
        assert not any(e.name.endswith(".deleted") for e in log.disk.entries("t-0"))
        assert region.read() == before
        assert [is_open(segment) for segment in old] == [True] + [False] * 5
        if sys.platform == "linux":
            [name] = open_files(tmp_path, removed=True)
            assert name.startswith("t-0/00000000000000000000.log")
        region.close()
        assert not is_open(old[0])
        if sys.platform == "linux":
            assert open_files(tmp_path, removed=True) == []
    await logs.close()


async def test_search_of_removed_segments_leaves_no_descriptor_open(
    tmp_path, autojump_clock
) -> None:
    """A search in slices may open a segment again that retention has closed and renamed."""
    async with running(RealDisk(str(tmp_path))) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        old = fill(log)
        await trio.sleep(3_910)  # Retention removed them ten seconds ago.
        assert log.segments[0] is not old[0]
        assert not is_open(old[1])
        assert list(old[1].scan())
        assert is_open(old[1])
        await trio.sleep(61)
        assert not is_open(old[1])
        if sys.platform == "linux":
            assert open_files(tmp_path, removed=True) == []
    await logs.close()


@pytest.mark.parametrize("how", ["delete", "recreate"])
async def test_space_of_a_deleted_topic_is_freed(tmp_path, autojump_clock, how: str) -> None:
    async with running(RealDisk(str(tmp_path))) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        old = fill(log)
        with log.read(0, 10_000, end_offset=log.end_offset):
            if how == "delete":
                await logs.delete("t", 0)
            else:
                logs.create("t", bytes(15) + b"\x08", 0, CONFIG)
            assert list(old[3].scan())
            await trio.sleep(61)
            assert [is_open(segment) for segment in old] == [True] + [False] * 5
        assert not any(map(is_open, old))
        if sys.platform == "linux":
            assert open_files(tmp_path, removed=True) == []
    await logs.close()


@pytest.mark.parametrize("offset", [0, 7, 10])
def test_truncation_frees_the_space_of_truncated_records(tmp_path, offset: int) -> None:
    disk = RealDisk(str(tmp_path))
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=CONFIG)
    old = fill(log)
    region = log.read(10, 10_000, end_offset=log.end_offset)
    if offset:
        log.truncate_to(offset)
    else:
        log.truncate_fully_at(100)
    region.close()
    assert [s for s in old if is_open(s) and s not in log.segments] == []
    if sys.platform == "linux":
        assert open_files(tmp_path, removed=True) == []


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_searching_closed_segments_leaves_no_index_open(tmp_path) -> None:
    disk = RealDisk(str(tmp_path))
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=CONFIG)
    fill(log)
    max_timestamp(log)
    assert [name for name in open_files(tmp_path) if not name.endswith(".log")] == []
