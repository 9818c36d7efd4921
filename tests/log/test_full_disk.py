"""A log directory on a full disk: records are refused, everything else goes on."""

import errno
import logging
import os

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.log import disk as disk_module
from kwire.log.config import LogConfig
from kwire.log.disk import Disk, RealDisk
from kwire.log.disk_health import RESERVE, RESERVE_BYTES
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog, create
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.types import TopicPartition
from simulation.disk import PLENTY, SimDisk
from simulation.raft.quorums import voters_of
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import ID, OTHER, config_of, running
from tests.support.raftmeta.storage import data, sync

CONFIG = LogConfig(segment_bytes=400, retention_ms=3_600_000, file_delete_delay_ms=1_000)
NO_ROOM = OSError(errno.ENOSPC, "no space left on device")


def fill(disk: SimDisk) -> None:
    """Leave no free byte beside those of the reserve."""
    disk.capacity = disk.capacity - disk.free() if disk.capacity < PLENTY else _used_bytes(disk)


def _used_bytes(disk: SimDisk) -> int:
    return sum(inode.room for inode in disk.files.values())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().split(" directory=")[0]
        for record in caplog.records
        if "room" in record.getMessage() and record.levelno >= logging.WARNING
    ]


async def test_full_disk_refuses_records_and_serves_other_requests(
    autojump_clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 88."""
    disk = SimDisk()
    async with running(disk) as logs:
        log, other = logs.create("t", ID, 0, CONFIG), logs.create("u", OTHER, 0, CONFIG)
        for number in range(8):
            append(log, [b"%d" % number])
            append(other, [b"%d" % number * 100])
        log.high_watermark = log.end_offset
        await trio.sleep(100)
        fill(disk)
        before = content(log)
        for _ in range(3):
            with pytest.raises(errors.KafkaStorageError):
                append(log, [b"refused" * 100])
            await trio.sleep(10)
        assert logs.statistics()["offline_directories"] == 0
        assert logs.statistics()["full_directories"] == 1
        assert content(log) == before
        with pytest.raises(errors.KafkaStorageError):
            logs.create("v", bytes(15) + b"\x09", 0, CONFIG)
        log.advance_log_start(3)
        assert not await logs.keep_starts([log])
        assert disk.read("log-start-offset-checkpoint") == b"0\n1\nt 0 3\n"
        await trio.sleep(4_000)
        assert log.log_start == log.end_offset == 8, "retention goes on"
        disk.capacity += 2 * RESERVE_BYTES
        append(log, [b"again"])
        assert [value for _, value in content(log)] == [b"again"]
        assert logs.statistics()["full_directories"] == 0
        assert lines(caplog) == ["no room for records", "room for records again"]
    await logs.close()
    assert ".kafka_cleanshutdown" in disk.files
    assert RESERVE not in disk.files


async def test_records_are_accepted_again_after_a_topic_is_deleted(autojump_clock) -> None:
    """Invariant 88: the next append checks for room; no task polls for it."""
    disk = SimDisk()
    async with running(disk) as logs:
        log, big = logs.create("t", ID, 0, CONFIG), logs.create("u", OTHER, 0, LogConfig())
        append(log, [b"v"])
        for _ in range(3):
            append(big, [b"x" * 4_000_000])
        await trio.sleep(100)
        fill(disk)
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"w" * 1000])
        await trio.sleep(100)
        idle = len(disk.calls)
        await trio.sleep(100)
        assert len(disk.calls) == idle
        await logs.delete("u", 0)
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"w"])
        await trio.sleep(61)
        append(log, [b"w"])
    await logs.close()


@pytest.mark.parametrize("is_clean", [False, True])
async def test_start_on_a_full_disk_serves_existing_records(autojump_clock, is_clean: bool) -> None:
    """Invariant 88: a recovery goes on if it cannot write snapshots and indexes."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        for number in range(20):
            append(log, [b"%d" % number], producer_id=5, producer_epoch=0, base_sequence=number)
        log.high_watermark = log.end_offset
        fill(disk)
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"refused" * 100])
        expected = content(log)
        disk.capacity = _used_bytes(disk)  # Another process takes the room of the reserve.
    if is_clean:
        disk.capacity += 4_000
        await logs.close()
        disk.capacity = _used_bytes(disk)
    after = disk.after_kill()
    async with running(after) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        assert content(log) == expected
        assert log.producers.get(5) is not None
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"x" * 1000])
        assert logs.directories[0].online
        await trio.sleep(100)
        assert content(log) == expected
        after.capacity += 3 * RESERVE_BYTES
        append(log, [b"y"])
        await trio.sleep(100)
    again = after.after_kill()
    async with running(again) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        assert content(log) == [*expected, (20, b"y")]


@pytest.mark.parametrize("step", range(40))
@pytest.mark.parametrize("times", [1, 10_000])
async def test_disk_that_fills_up_at_any_step_loses_no_acknowledged_record(
    autojump_clock, step: int, times: int
) -> None:
    """Invariant 88: at append, roll, index, checkpoint, snapshot, rename, creation, deletion."""
    disk = SimDisk()
    acknowledged: list[bytes] = []
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        disk.fail_at("[cwm]*", NO_ROOM, after=step, times=times)  # create, write, mkdir
        disk.fail_at("rename", NO_ROOM, after=step // 4, times=times)
        for number in range(12):
            value = b"%d" % number
            try:
                append(log, [value])
                acknowledged.append(value)
            except errors.KafkaStorageError:
                pass
            if number % 4 == 3:
                await trio.sleep(70)
        try:
            logs.create("u", OTHER, 0, CONFIG)
            await logs.delete("u", 0)
        except (OSError, errors.KafkaStorageError):
            pass
        await trio.sleep(70)
        assert logs.directories[0].online
        assert [value for _, value in content(log)] == acknowledged
    after = disk.after_kill()
    async with running(after) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        assert [value for _, value in content(log)] == acknowledged
        append(log, [b"more"])
    await logs.close()


def test_repeated_batch_is_acknowledged_on_a_full_disk() -> None:
    """Invariant 50: the batch is stored already, so it needs no room."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS)
    sequence = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    append(log, [b"v"], **sequence)
    fill(disk)
    with pytest.raises(errors.KafkaStorageError):
        append(log, [b"w" * 1000])
    assert append(log, [b"v"], **sequence).is_duplicate


def test_batches_in_flight_behind_a_refused_batch_are_refused_alike() -> None:
    """Invariants 50 and 88: a producer with several requests in flight sends all of them again.

    For an OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would begin a new epoch for all partitions, and
    store twice what another partition has not acknowledged yet.
    """
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS)
    producer = {"producer_id": 5, "producer_epoch": 0}
    append(log, [b"v"], **producer, base_sequence=0)
    fill(disk)
    for sequence in (1, 2, 3):
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"w" * 1000], **producer, base_sequence=sequence)
    disk.capacity = PLENTY
    for sequence in (2, 3, 4):  # There is room before these come.
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"w" * 1000], **producer, base_sequence=sequence)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        append(log, [b"w" * 1000], **producer, base_sequence=5)
    append(log, [b"w" * 1000], **producer, base_sequence=1)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        append(log, [b"w" * 1000], **producer, base_sequence=3)
    for sequence in (2, 3):
        append(log, [b"w" * 1000], **producer, base_sequence=sequence)


def test_refused_batch_leaves_no_bytes_in_the_log_file() -> None:
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS)
    append(log, [b"v"])
    disk.capacity = _used_bytes(disk) + 90
    with pytest.raises(errors.KafkaStorageError):
        append(log, [b"w" * 1000])
    assert len(disk.files["t-0/00000000000000000000.log"].data) == log.segments.size


@pytest.fixture(params=["real", "simulated"])
def disk(request, tmp_path) -> Disk:
    return RealDisk(str(tmp_path)) if request.param == "real" else SimDisk()


def test_reserve_is_released_when_the_disk_is_full(disk: Disk) -> None:
    disk.keep_room()
    assert [entry.name for entry in disk.entries()] == [RESERVE]
    assert disk.has_room()
    disk.judge(NO_ROOM)
    assert disk.full
    assert disk.entries() == []
    assert disk.failed is None
    assert disk.has_room()
    assert not disk.full
    assert [entry.name for entry in disk.entries()] == [RESERVE]
    disk.drop_reserve()
    assert disk.entries() == []


def test_reserve_has_allocated_blocks_and_survives_a_kill(tmp_path) -> None:
    disk = RealDisk(str(tmp_path))
    disk.keep_room()
    stat = os.stat(tmp_path / RESERVE)
    assert stat.st_size == RESERVE_BYTES
    if hasattr(stat, "st_blocks"):
        assert stat.st_blocks * 512 >= RESERVE_BYTES
    RealDisk(str(tmp_path)).keep_room()
    assert os.stat(tmp_path / RESERVE).st_ino == stat.st_ino


def test_exceeded_quota_is_detected_by_writing_the_reserve(tmp_path, monkeypatch) -> None:
    """The volume reports free space, but the user's quota is exceeded."""
    disk = RealDisk(str(tmp_path))
    disk.judge(OSError(errno.EDQUOT, "quota exceeded"))
    sizes: list[int] = []

    def refuse(fd: int, size: int) -> None:
        sizes.append(size)
        raise OSError(errno.EDQUOT, "quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "_fill", refuse)
        assert not disk.has_room()
    assert sizes == [2 * RESERVE_BYTES]
    assert disk.entries() == []
    assert disk.has_room()


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        (0, 2),
        (errno.EOPNOTSUPP, 1),
        (errno.ENOSYS, 1),
        (errno.ENOSPC, 2),
        (errno.EDQUOT, 2),
        (errno.EINVAL, 2),
    ],
)
def test_refused_preallocation_is_no_error(tmp_path, monkeypatch, number: int, calls: int) -> None:
    allocations: list[int] = []

    def fallocate(fd: int, mode: int, position: int, size: int) -> int:
        allocations.append(position)
        return number

    monkeypatch.setattr(disk_module, "_fallocate", lambda: fallocate)
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.allocate(0, 100)
    file.allocate(100, 100)
    assert len(allocations) == calls
    assert disk.failed is None
    assert not disk.full
    file.write([b"x"], 0)


def test_interrupted_preallocation_is_repeated(tmp_path, monkeypatch) -> None:
    answers = [errno.EINTR, errno.EINTR, 0]
    monkeypatch.setattr(disk_module, "_fallocate", lambda: lambda *_: answers.pop(0))
    RealDisk(str(tmp_path)).open("a", create=True).allocate(0, 100)
    assert answers == []


def test_io_error_of_a_preallocation_takes_the_directory_offline(tmp_path, monkeypatch) -> None:
    """Invariant 89."""
    monkeypatch.setattr(disk_module, "_fallocate", lambda: lambda *_: errno.EIO)
    disk = RealDisk(str(tmp_path))
    with pytest.raises(OSError, match="Input/output"):
        disk.open("a", create=True).allocate(0, 100)
    assert disk.failed is not None


def test_failed_preallocation_returns_the_error_number(tmp_path) -> None:
    fallocate = disk_module._fallocate()
    if fallocate is not None:
        assert fallocate(-1, 1, 0, 10) == errno.EBADF


def test_short_write_is_completed_or_refused_as_a_whole(tmp_path, monkeypatch) -> None:
    """Invariant 88: the kernel writes a part of the data if the disk fills up meanwhile."""
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    real_write, real_pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real_write(fd, parts[:1], at))
    file.write([b"abc", b"def"], 0)
    assert file.read(0, 10) == b"abcdef"
    room = [2]

    def write_part(fd: int, data: memoryview, at: int) -> int:
        if not room:
            raise NO_ROOM
        return real_pwrite(fd, data[: room.pop()], at)

    monkeypatch.setattr(os, "pwrite", write_part)
    with pytest.raises(OSError, match="no space"):
        file.write([b"ghi", b"jkl"], 6)
    assert disk.full
    assert disk.failed is None


async def test_metadata_log_uses_the_reserve_on_a_full_disk(autojump_clock) -> None:
    """Invariant 88: topics can be deleted on a full disk only if the metadata log has room."""
    disk = SimDisk()
    disk.keep_room()
    storage = DiskStorage(disk, now_ms=1)
    storage.load(voters_of(1))
    fill(disk)
    for offset in range(0, 200, 2):
        storage.append(data(offset, 2, 1), offset)
        sync(storage)
    assert disk.full
    recovered = DiskStorage(disk.after_kill(), now_ms=2).load(voters_of(1))
    assert recovered.log.end_offset == 200


async def test_truncation_on_a_full_disk_keeps_producer_sequences(autojump_clock) -> None:
    """Invariants 51 and 88: a repeated batch is acknowledged and stored once."""
    disk = SimDisk()

    def send(log: PartitionLog, sequence: int) -> None:
        value = b"%d" % sequence
        append(log, [value], producer_id=1, producer_epoch=0, base_sequence=sequence)

    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig())
        send(log, 0)
        fill(disk)
        disk.slow = True
        for sequence in (1, 2):
            send(log, sequence)
        await trio.sleep(5)
        assert (log.writer.written_offset, log.end_offset) == (1, 3)
        assert await logs.truncate(log, 2)
        disk.capacity = PLENTY
        for sequence in range(log.end_offset, 4):
            send(log, sequence)
            send(log, sequence)
        await trio.sleep(5)
        assert [value for _, value in content(log)] == [b"0", b"1", b"2", b"3"]
    await logs.close()


async def test_slow_directory_keeps_queued_batches_while_the_disk_is_full(autojump_clock) -> None:
    """Invariant 88: they are not acknowledged, and written with the first append that has room."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        append(log, [b"a"])
        fill(disk)
        disk.slow = True
        append(log, [b"b" * 50])
        await trio.sleep(5)
        assert (log.writer.written_offset, log.end_offset) == (1, 2)
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"c"])
        assert logs.directories[0].online
        disk.capacity = PLENTY
        append(log, [b"d"])
        await trio.sleep(5)
        assert [value for _, value in content(log)] == [b"a", b"b" * 50, b"d"]
    await logs.close()


async def _queue_on_a_full_disk(logs: LogManager, disk: SimDisk) -> PartitionLog:
    """Return a log of a slow directory, with a batch in the queue that met a full disk."""
    log = logs.create("t", ID, 0, CONFIG)
    for number in range(8):
        append(log, [b"%d" % number])
    log.high_watermark = log.end_offset
    await logs.flush(log)
    fill(disk)
    disk.fail_at("write", NO_ROOM, path=".log")  # A flush may give back the reserve just before.
    disk.slow = True
    append(log, [b"queued" * 50])
    await trio.sleep(5)
    assert (log.writer.written_offset, log.end_offset) == (8, 9)
    return log


async def test_queued_batches_are_written_once_there_is_room(autojump_clock) -> None:
    """Invariant 88: no append has to come; a follower sends none, nor an idempotent producer."""
    disk = SimDisk()
    written: list[int] = []
    async with running(disk) as logs:
        logs.subscribe(on_written=lambda log: written.append(log.writer.written_offset))
        log = await _queue_on_a_full_disk(logs, disk)
        await trio.sleep(100)
        assert not written
        disk.capacity = PLENTY
        await trio.sleep(5)
        assert written == [9]
        assert content(log)[-1] == (8, b"queued" * 50)
        assert logs.statistics()["full_directories"] == 0
    await logs.close()


async def test_nothing_wakes_up_once_the_queue_is_written(autojump_clock) -> None:
    """Invariant 88: only a queue that waits for room looks for it."""
    disk = SimDisk()
    async with running(disk) as logs:
        await _queue_on_a_full_disk(logs, disk)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline < 2
        disk.capacity = PLENTY
        await trio.sleep(70)  # Of the checkpoints of the last changes.
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 60


@pytest.mark.parametrize("act", ["delete", "truncate", "retain"])
async def test_log_whose_queue_waits_for_room_can_be_changed(autojump_clock, act: str) -> None:
    """Invariant 88: what makes room does not wait for room."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await _queue_on_a_full_disk(logs, disk)
        with trio.fail_after(3):
            if act == "delete":
                await logs.delete("t", 0)
                assert logs.get("t", 0) is None
            elif act == "truncate":
                assert await logs.truncate(log, 9 - 1)
                assert log.end_offset == 8
            else:
                log.config = LogConfig(retention_bytes=1, file_delete_delay_ms=1_000)
                assert await logs.retain(log)
        disk.capacity = PLENTY
        await trio.sleep(5)
        assert log.writer.written_offset == (8 if act != "retain" else 9)
    await logs.close()
