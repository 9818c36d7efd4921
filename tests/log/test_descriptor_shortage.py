"""A log directory of a process without free descriptors: some calls fail, the rest goes on."""

import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.log.config import LogConfig
from kwire.log.descriptors import FILES_MAX, FILES_MIN, Descriptors, files_limit
from kwire.log.disk import RealDisk
from kwire.log.disk_health import DiskErrorKind, classify
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog, create
from kwire.log.threads import StandIn
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content, encode
from tests.support.log.manager import ID, OTHER, config_of, create_log, manager, running
from tests.support.log.restart import reopen

SCARCE = OSError(errno.EMFILE, "too many open files")
OFTEN = 10_000


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EMFILE, DiskErrorKind.NO_DESCRIPTORS),
        (errno.ENFILE, DiskErrorKind.NO_DESCRIPTORS),
        (errno.ENOSPC, DiskErrorKind.NO_ROOM),
        (errno.EDQUOT, DiskErrorKind.NO_ROOM),
        (errno.ENOENT, DiskErrorKind.WRONG_NAME),
        (errno.ENOTEMPTY, DiskErrorKind.WRONG_NAME),
        (errno.EEXIST, DiskErrorKind.WRONG_NAME),
        (errno.EIO, DiskErrorKind.BROKEN),
        (errno.EROFS, DiskErrorKind.BROKEN),
        (None, DiskErrorKind.BROKEN),
    ],
)
def test_error_number_decides_whether_the_directory_goes_offline(
    number: int | None, expected: DiskErrorKind
) -> None:
    assert classify(OSError(number, "refused") if number else OSError("refused")) is expected


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_failed_sync_takes_the_directory_offline_whatever_its_error(number: int) -> None:
    """Invariant 89: with delayed allocation also a full disk fails a sync, and pages are lost."""
    disk = SimDisk()
    disk.write("a", b"1")
    disk.fail_at("sync", OSError(number, "refused"))
    with pytest.raises(OSError, match="refused"):
        disk.sync("a")
    assert disk.failed is not None


def test_unreadable_sector_takes_the_directory_offline() -> None:
    """Invariant 89."""
    disk = SimDisk()
    disk.write("a", b"1")
    disk.fail_at("read", OSError(errno.EIO, "unreadable"))
    with pytest.raises(OSError, match="unreadable"):
        disk.open("a").read(0, 1)
    assert disk.failed is not None


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [(64, FILES_MIN), (256, 64), (1024, 256), (4096, 1024), (1 << 20, FILES_MAX)],
)
def test_share_of_descriptors_for_log_files(descriptors: int, expected: int) -> None:
    assert files_limit(descriptors) == expected


def test_directories_of_a_node_share_one_descriptor_limit(tmp_path) -> None:
    descriptors = Descriptors(4)
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        disk = RealDisk(str(tmp_path / name), descriptors=descriptors)
        files += [disk.open(str(n), create=True) for n in range(5)]
    for file in files:
        file.write([b"x"], 0)
    assert [file.fileno() >= 0 for file in files] == [False] * 6 + [True] * 4


async def test_worker_threads_close_no_files(tmp_path, monkeypatch) -> None:
    """The number of a descriptor that a thread closes could be reused while the loop uses it."""
    disk = RealDisk(str(tmp_path))
    files = [disk.open(str(n), create=True) for n in range(4)]
    for file in files:
        file.write([b"x"], 0)
    real_open = os.open

    def open_file(path, flags, mode=0o777, **more):
        if str(path).endswith("/0") or str(path).endswith(".tmp"):
            raise SCARCE
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", open_file)
    for call in (lambda: disk.sync("0"), lambda: disk.replace("0", b"", sync=True)):
        with pytest.raises(OSError, match="too many"):
            await trio.to_thread.run_sync(call)
        assert all(file.fileno() >= 0 for file in files)
    with pytest.raises(OSError, match="too many"):
        disk.read("0")
    assert not any(file.fileno() >= 0 for file in files), "the loop does make room"
    assert disk.failed is None


async def test_file_opened_by_a_thread_is_closed_after_its_call(tmp_path) -> None:
    disk = RealDisk(str(tmp_path))
    disk.write("index", b"12")

    def search() -> bytes:
        file = disk.open("index")
        try:
            return file.read(0, 2)
        finally:
            file.close()

    assert await trio.to_thread.run_sync(search) == b"12"
    assert len(disk.descriptors) == 0


async def test_loop_closes_idle_files_for_a_thread_without_descriptors(autojump_clock) -> None:
    """Invariant 90: idle files are closed for a checkpoint, which is then written."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        append(log, [b"v"])
        assert len(disk.descriptors)
        disk.fail_at("open", SCARCE, path="replication-offset-checkpoint")
        logs.threads.stand_in = _in_thread_of(disk)
        await trio.sleep(6)
        assert disk.read("replication-offset-checkpoint") == b"0\n1\nt 0 0\n"
        assert logs.directories[0].online
    await logs.close()


def _in_thread_of(disk: SimDisk) -> StandIn:
    """Return a stand-in that runs calls at once, as a thread that may close no files."""

    async def run(call: Callable[[], None]) -> None:
        await trio.lowlevel.checkpoint()
        disk.descriptors._thread = -1
        try:
            call()
        finally:
            disk.descriptors.claim()

    return run


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_closed_segment_is_synced_once_descriptors_are_free(
    autojump_clock, number: int
) -> None:
    """Invariant 90: no other event causes a flush, and the next roll may be a week away."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        for _ in range(2):
            append(log, [b"v"])
        log.roll(1)
        log.segments[0].file.close()
        disk.fail_at("open", OSError(number, "too many open files"), times=OFTEN)
        await trio.sleep(30)
        assert log.flush_state.recovery_point == 0
        disk.mend()
        await trio.sleep(2)
        assert log.flush_state.recovery_point == log.segments.active.base_offset == 2
    await logs.close()


async def test_closed_segment_of_a_deleted_log_is_not_synced(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        append(log, [b"v"])
        log.roll(1)
        log.segments[0].file.close()
        disk.fail_at("open", SCARCE, times=OFTEN)
        await trio.sleep(30)
        disk.mend()
        await logs.delete("t", 0)
        calls = len(disk.calls)
        await trio.sleep(30)
        assert not [path for kind, path in disk.calls[calls:] if kind == "sync" and "t-0" in path]


def _append_to_closed(logs: LogManager, log: PartitionLog) -> None:
    log.segments.active.file.close()
    with pytest.raises(errors.KafkaStorageError):
        append(log, [b"w"])


def _roll(logs: LogManager, log: PartitionLog) -> None:
    with pytest.raises(errors.KafkaStorageError):
        log.roll(1)


def _create(logs: LogManager, log: PartitionLog) -> None:
    with pytest.raises(errors.KafkaStorageError):
        logs.create("u", OTHER, 0, config_of("u"))


async def _retain(logs: LogManager, log: PartitionLog) -> None:
    log.segments.active.first_timestamp = log.segments.active.max_timestamp = -2
    assert await logs.retain(log) == 0


def _write_behind(logs: LogManager, log: PartitionLog) -> None:
    log.segments.active.file.close()
    log.disk.slow = True
    append(log, [b"w"])


@pytest.mark.parametrize("act", [_append_to_closed, _roll, _create, _retain, _write_behind])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_directory_without_descriptors_stays_online(
    autojump_clock, act: Callable[[LogManager, PartitionLog], Awaitable[None] | None], number: int
) -> None:
    """Invariant 90: each action opens a file, and so do flushes and checkpoints meanwhile."""
    disk = SimDisk()
    async with running(disk) as logs:
        config = LogConfig(segment_bytes=200, flush_ms=500, file_delete_delay_ms=1_000)
        log = logs.create("t", ID, 0, config)
        for _ in range(5):
            append(log, [b"v"])
        log.high_watermark = log.end_offset
        for segment in log.segments:
            segment.file.close()
        disk.fail_at("open", OSError(number, "too many open files"), times=OFTEN)
        waiting = act(logs, log)
        if waiting is not None:
            await waiting
        await trio.sleep(700)
        with pytest.raises(errors.KafkaStorageError):
            await logs.flush(log)
        assert logs.directories[0].online
        disk.mend()
        disk.slow = False
        await trio.sleep(10)
        before = log.end_offset
        append(log, [b"again"])
        await trio.sleep(10)
        assert (log.flush_state.recovery_point, log.end_offset) == (before + 1, before + 1)
        assert len(content(log)) == before + 1
        assert disk.read("replication-offset-checkpoint") == b"0\n1\nt 0 5\n"
        logs.create("u", OTHER, 0, config_of("u"))
    await logs.close()
    assert ".kafka_cleanshutdown" in disk.files


@pytest.mark.parametrize("seed", range(20))
async def test_scarce_descriptors_lose_no_acknowledged_record(autojump_clock, seed: int) -> None:
    """Invariant 90: the opening of any file may fail."""
    disk = SimDisk(descriptors=Descriptors(2))
    random = Random(seed)
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(segment_bytes=200, flush_ms=700))
        disk.fail_sometimes("open", SCARCE, random, 0.15)
        acknowledged = []
        for number in range(40):
            disk.slow = random.random() < 0.3
            value = b"%d" % number
            try:
                append(log, [value])
                acknowledged.append(value)
            except errors.KafkaStorageError:
                pass
            await trio.sleep(random.random())
        assert logs.directories[0].online
        assert len(acknowledged) > 5
        disk.mend()
        await trio.sleep(100)
        assert [value for _, value in content(log)] == acknowledged
        assert log.flush_state.recovery_point == log.end_offset
    async with running(disk.after_kill()) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        assert [value for _, value in content(log)] == acknowledged


@attrs.define(eq=False)
class FewDescriptors(SimDisk):
    """A disk in a process that may have few files open."""

    limit: int = 20

    def need_descriptor(self, path: str) -> None:
        while len(self.opened) >= self.limit:
            if not self.descriptors.shed():
                raise SCARCE
        super().need_descriptor(path)


async def test_clean_stop_with_more_unsynced_logs_than_descriptors(autojump_clock) -> None:
    """Invariant 90: the stop syncs every log, and writes its marker."""
    disk = FewDescriptors()
    async with running(disk) as logs:
        for partition in range(100):
            append(logs.create("t", ID, partition, config_of("t")), [b"v"])
    await logs.close()
    assert ".kafka_cleanshutdown" in disk.files
    async with running(disk.power_loss(Random(1))) as logs:
        for partition in range(100):
            log = logs.create("t", ID, partition, config_of("t"))
            assert [value for _, value in content(log)] == [b"v"]


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_log_with_more_unsynced_segments_than_descriptors_is_flushed(
    autojump_clock, is_stopped: bool
) -> None:
    """Invariant 90: a recovery leaves all segments of a log to be synced."""
    config = LogConfig(segment_bytes=100)
    killed = SimDisk()
    log = create_in(killed, config)
    for _ in range(300):
        append(log, [b"v"])
    assert len(log.segments) == 300
    disk = FewDescriptors(root=killed.root, limit=100)
    logs = manager(disk)
    await logs.open(lambda _: config)
    opened = logs.get("t", 0)
    assert opened is not None
    if is_stopped:
        await logs.close()
        assert ".kafka_cleanshutdown" in disk.files
    else:
        await logs.flush(opened, indexes=True)
        assert opened.flush_state.recovery_point == opened.flush_state.indexed_end + 1 == 300
    survivor = reopen(disk.power_loss(Random(1)), config)
    assert [value for _, value in content(survivor)] == [b"v"] * 300


def create_in(disk: SimDisk, config: LogConfig) -> PartitionLog:
    disk.make_directory("t-0")
    return create(disk, "t-0", TopicPartition("t", 0), now_ms=0, config=config)


@pytest.mark.parametrize("call", ["scandir", "read"])
async def test_start_goes_on_without_an_unreadable_directory(
    tmp_path, monkeypatch, autojump_clock, call: str
) -> None:
    """Invariant 89: a bad sector in a checkpoint, or in the directory itself."""
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir()
        (root / "recovery-point-offset-checkpoint").write_bytes(b"0\n0\n")
    bad = os.stat(roots[0]), os.stat(roots[0] / "recovery-point-offset-checkpoint")
    real = getattr(os, call)

    def refuse(place: int | str, *more: int) -> object:
        if any(os.path.samestat(os.stat(place), each) for each in bad):
            raise OSError(errno.EIO, "unreadable")
        return real(place, *more)

    logs = manager(*(RealDisk(str(root)) for root in roots))
    monkeypatch.setattr(os, call, refuse)
    await logs.open(config_of)
    assert [directory.online for directory in logs.directories] == [False, True]
    await logs.close()


def test_full_disk_of_unknown_size_refuses_records(tmp_path, monkeypatch) -> None:
    """Invariant 88: the error is KafkaStorageError, which producers retry."""
    disk = RealDisk(str(tmp_path))
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=1)
    disk.full = True

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "unreadable")

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    with pytest.raises(errors.KafkaStorageError):
        append(log, [b"v"])


@pytest.mark.parametrize("call", ["remove", "open"])
async def test_deleted_files_are_removed_once_there_are_descriptors(
    autojump_clock, call: str
) -> None:
    """Invariant 90: the room of a deleted topic does not wait for a restart."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(file_delete_delay_ms=1_000))
        append(log, [b"v"])
        await logs.delete("t", 0)
        disk.fail_at(call, OSError(errno.EMFILE, "too many open files"), times=OFTEN)
        await trio.sleep(30)
        assert any(entry.name.endswith("-delete") for entry in disk.entries())
        disk.mend()
        await trio.sleep(5)
        assert not any(entry.name.endswith("-delete") for entry in disk.entries())
    await logs.close()


@pytest.mark.parametrize("offset", [1, 3, 5, 6])
@pytest.mark.parametrize("number", range(8))
def test_truncation_that_finds_no_descriptor_leaves_a_whole_log(number: int, offset: int) -> None:
    """Invariants 83 and 90: one attempt to open a file fails, at each step of the truncation."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk)
    for value in range(7):
        append(log, [b"old %d" % value])
    log.flush_state.flush()
    log.finish()
    log.flush_state.flush()
    log = reopen(disk.after_kill(), clean=True, recovery_point=7)
    disk = log.disk  # type: ignore[assignment]
    before = content(log)
    assert len(log.segments) > 2
    log.segments.release()
    disk.fail_at("open", SCARCE, after=number, times=1)
    with suppress(errors.KafkaStorageError):
        log.truncate_to(offset)
    disk.mend()
    assert content(log) == before[: log.end_offset]
    active = log.segments.active
    assert active.size == active.file.size()
    append(log, [b"new"], epoch=1)
    expected = content(log)
    log.flush_state.flush()
    assert content(reopen(disk.after_kill())) == expected
    log.truncate_to(offset)
    assert content(log) == before[:offset]


@pytest.mark.parametrize("kind", ["open", "entries"])
async def test_start_waits_for_descriptors(autojump_clock, kind: str) -> None:
    """Invariant 90: otherwise the partition would stay offline until the next start."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for number in range(6):
            append(log, [b"v"])
            if number % 2:
                log.roll(TIME_MS)
        log.high_watermark = 6
    for after in range(40):
        restarted = disk.after_kill()
        restarted.fail_at(kind, SCARCE, path="t-0", after=after, times=3)
        async with running(restarted) as logs:
            assert len(content(await create_log(logs))) == 6


async def test_deleted_segment_is_removed_although_its_epochs_cannot_be_written(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(segment_bytes=300, retention_ms=1000))
        while len(log.segments) < 6:
            append(log, [b"old"], timestamp_ms=TIME_MS)
        log.high_watermark = log.end_offset
        await logs.flush(log, indexes=True)
        disk.fail_at("write", SCARCE, path=f"t-0/{names.EPOCHS_FILE}", times=1)
        await trio.sleep(1000)
        assert len(log.segments) == 1
        assert [entry.name for entry in disk.entries("t-0") if names.DELETED in entry.name] == []


def two_epochs() -> bytes:
    """Return a batch of epoch 0 and two of epoch 1, from offset 1 on."""
    batches = [encode([b"new %d" % n], base_offset=1 + n, leader_epoch=min(n, 1)) for n in range(3)]
    return b"".join(batches)


def test_follower_appends_batches_whose_epochs_cannot_be_written() -> None:
    """Invariant 85: the next flush or the clean stop writes the epochs."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, LogConfig())
    append(log, [b"old"])
    disk.fail_at("open", SCARCE, path=names.EPOCHS_FILE, times=OFTEN)
    log.append_follower(two_epochs())
    disk.mend()
    append(log, [b"newest"], epoch=2)
    values = [b"old", b"new 0", b"new 1", b"new 2", b"newest"]
    assert content(log) == list(enumerate(values))
    log.close()
    again = reopen(disk.after_kill(), LogConfig(), clean=True, recovery_point=5)
    assert content(again) == list(enumerate(values))
    assert again.epochs.entries() == [(0, 0), (1, 2), (2, 4)]


def test_truncation_whose_epochs_cannot_be_written_is_complete() -> None:
    """Invariants 51 and 85: the producers, too, are those before the cut."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, LogConfig())
    for number in range(2):
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": number}
        append(log, [b"%d" % number], epoch=number, **producer)
    disk.fail_at("open", SCARCE, path=names.EPOCHS_FILE, times=OFTEN)
    assert log.truncate_to(1)
    disk.mend()
    state = log.producers.get(1)
    assert state is not None
    assert state.last_sequence == 0
    log.flush_state.flush()
    again = reopen(disk.after_kill(), LogConfig(), clean=True, recovery_point=1)
    assert again.epochs.entries() == [(0, 0)]
