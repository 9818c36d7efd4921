"""The broker's log directories under trio, on simulated and real disks."""

import errno
from collections.abc import Callable

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.directory_lock import AlreadyLocked
from kwire.log.disk import RealDisk
from kwire.log.manager import LogManager, delete_unassigned, find_duplicates, retire_strays
from kwire.types import DirectoryId, TopicPartition
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import append, content
from tests.support.log.manager import ID, OTHER, config_of, create_log, manager, running


@pytest.fixture(params=["real", "simulated"])
def disks(request, tmp_path):
    """Return a function that opens the same two log directories at each call."""
    if request.param == "simulated":
        first, second = SimDisk(), SimDisk()
        return lambda: (first, second)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    return lambda: tuple(RealDisk(str(path)) for path in paths)


async def test_clean_stop_and_start_keep_all_state(disks, autojump_clock) -> None:
    """Invariants 39, 81 and 109."""
    first, second = disks()
    async with running(first, second) as logs:
        for partition in range(4):
            log = await create_log(logs, partition=partition)
            for _ in range(partition * 3):
                append(
                    log, [b"v"] * 2, producer_id=5, producer_epoch=0, base_sequence=log.end_offset
                )
            log.high_watermark = log.end_offset
        log.advance_log_start(3)
    await logs.close(broker_epoch=42)
    assert first.read(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    assert {e.name for e in first.entries()} >= {"t-0", "t-2", "recovery-point-offset-checkpoint"}
    assert {e.name for e in second.entries()} >= {"t-1", "t-3"}
    assert second.read("log-start-offset-checkpoint").startswith(b"0\n")
    names = {e.name for e in first.entries("t-0")}
    assert names == {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "partition.metadata",
    }
    third, fourth = disks()
    async with running(third, fourth) as logs:
        assert logs.previous_epoch == 42
        assert ".kafka_cleanshutdown" not in {e.name for e in third.entries()}
        for partition in range(4):
            log = await create_log(logs, partition=partition)
            assert log.topic_id == ID
            assert log.end_offset == log.high_watermark == partition * 6
            assert log.flush_state.recovery_point == partition * 6
        assert log.log_start == 3
        assert len(content(log)) == 15
        assert log.producers.get(5) is not None
    await logs.close()


async def test_logs_of_a_killed_broker_are_recovered(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for _ in range(7):
            append(log, [b"v"])
        log.high_watermark = 5
        await trio.sleep(100)
    after = disk.after_kill()
    async with running(after) as logs:
        log = await create_log(logs)
        assert (log.end_offset, log.high_watermark) == (7, 5)
        # Closed segments were synced.
        assert log.flush_state.recovery_point == log.segments.active.base_offset == 6


async def test_idle_logs_write_nothing(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        append(log, [b"v"])
        await trio.sleep(130)
        assert disk.read("replication-offset-checkpoint") == b"0\n1\nt 0 0\n"
        calls = len(disk.calls)
        await trio.sleep(3000)
        assert len(disk.calls) == calls


async def test_deleted_partition_is_removed_after_the_delay(autojump_clock) -> None:
    """Invariants 40 and 83."""
    disk = SimDisk()
    async with running(disk) as logs:
        append(await create_log(logs), [b"v"])
        await logs.delete("t", 0)
        assert logs.get("t", 0) is None
        [name] = [e.name for e in disk.entries() if e.is_directory]
        assert name.startswith("t-0.")
        assert name.endswith("-delete")
        again = logs.create("t", OTHER, 0, config_of("t"))
        assert again.end_offset == 0
        await trio.sleep(61)
        assert [e.name for e in disk.entries() if e.is_directory] == ["t-0"]
        await logs.delete("t", 0)
    async with running(disk.after_kill()) as logs:  # Killed before the delay was over.
        assert logs.get("t", 0) is None
        await trio.sleep(61)
        assert not [e for e in logs.directories[0].disk.entries() if e.is_directory]


async def test_recreated_topic_does_not_get_the_older_log(autojump_clock) -> None:
    """Invariant 40."""
    disk = SimDisk()
    async with running(disk) as logs:
        append(await create_log(logs), [b"old"])
    async with running(disk.after_kill()) as logs:
        log = logs.create("t", OTHER, 0, config_of("t"))
        assert (log.end_offset, log.topic_id) == (0, OTHER)


async def test_log_of_an_older_topic_is_not_deleted_during_its_flush(autojump_clock) -> None:
    """The new log would get the old one's files, and the thread would sync removed ones."""
    disk = SimDisk()
    syncing, finish = trio.Event(), trio.Event()

    async def sync_late(call: Callable[[], None]) -> None:
        syncing.set()
        await finish.wait()
        call()

    async with running(disk) as logs:
        logs.threads.stand_in = sync_late
        old = logs.create("t", OTHER, 0, config_of("t"))
        for _ in range(8):
            append(old, [b"old"])
        await syncing.wait()
        try:
            with pytest.raises(errors.KafkaStorageError):
                logs.create("t", ID, 0, config_of("t"))
        finally:
            finish.set()
        await trio.testing.wait_all_tasks_blocked()
        new = logs.create("t", ID, 0, config_of("t"))
        assert content(new) == []
        paths = {path for path in disk.files if path.startswith("t-0/")}
        assert not any(path.endswith(".snapshot") for path in paths)
    await logs.close()


async def test_stray_partitions_are_renamed(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        await create_log(logs, "t")
        await create_log(logs, "u")
        assert await retire_strays(logs, lambda p, _: p.topic == "t") == [TopicPartition("u", 0)]
        assert sum(e.name.endswith("-stray") for e in disk.entries()) == 1


async def test_disk_that_breaks_while_a_stray_is_retired_fails_alone(autojump_clock) -> None:
    """Invariant 89: the node goes on with its other log directory."""
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        for partition in range(2):
            await create_log(logs, "t", partition)
        first.fail_at("rename", OSError(errno.EIO, "broken"))
        await retire_strays(logs, lambda p, _: False)
        assert [directory.online for directory in logs.directories] == [False, True]
        assert any(entry.name.endswith("-stray") for entry in second.entries())


async def test_replica_that_moved_elsewhere_is_deleted_after_its_delay(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        await create_log(logs, "t")
        await create_log(logs, "u")
        assert await delete_unassigned(logs, lambda p, _: p.topic == "t") == [
            TopicPartition("u", 0)
        ]
        assert logs.get("u", 0) is None
        assert sum(e.name.endswith("-delete") for e in disk.entries()) == 1
        await trio.sleep(LogConfig().file_delete_delay_ms / 1000 + 1)
        assert [e.name for e in disk.entries() if e.name[:2] in ("t-", "u-")] == ["t-0"]


async def test_slow_directory_is_written_by_a_thread(autojump_clock) -> None:
    """Invariant 91."""
    disk = SimDisk()
    written: list[int] = []
    async with running(disk) as logs:
        logs.subscribe(on_written=lambda log: written.append(log.writer.written_offset))
        log = await create_log(logs)
        disk.slow = True
        for _ in range(3):
            append(log, [b"v"])
        assert log.writer.written_offset == 0
        await logs.delete("t", 1)
        while log.writer.queue:
            await trio.lowlevel.checkpoint()
        assert written == [3]
    await logs.close()


async def test_one_fsync_serves_all_waiting_flushes(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        append(log, [b"v"])
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(logs.flush, log)
        assert log.flush_state.recovery_point == 1
        assert disk.calls.count(("sync", "t-0/00000000000000000000.log")) == 1


async def test_flush_ms_counts_from_the_first_message(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(flush_ms=1000))
        await trio.sleep(10)
        append(log, [b"v"])
        await trio.sleep(0.9)
        assert log.flush_state.recovery_point == 0
        await trio.sleep(0.2)
        assert log.flush_state.recovery_point == 1


async def test_replica_of_an_offline_directory_gets_no_log_in_another(autojump_clock) -> None:
    """Invariant 89: its records are in the directory that failed, and may be the only ones."""
    broken, good = SimDisk(), SimDisk()
    async with running(broken, good) as logs:
        for directory, letter in zip(logs.directories, (b"a", b"b"), strict=True):
            directory.directory_id = letter * 16
        bad = await create_log(logs, "t")
        broken.fail_at("write", OSError(errno.EIO, "broken"))
        with pytest.raises(errors.KafkaStorageError):
            append(bad, [b"v"])
        with pytest.raises(errors.KafkaStorageError):
            logs.create("u", ID, 0, config_of("u"), b"a" * 16)
        assert logs.get("u", 0) is None
        for index, directory_id in enumerate((None, bytes(16), b"b" * 16)):  # Not known; this one.
            assert logs.create("v", ID, index, config_of("v"), directory_id).disk is good
    await logs.close()


@pytest.mark.parametrize("directory_id", [None, DirectoryId.UNASSIGNED, DirectoryId.LOST])
async def test_replica_whose_log_may_be_in_an_unread_directory_gets_no_empty_log(
    autojump_clock, directory_id: bytes | None
) -> None:
    """Invariant 89: an empty log elsewhere could lead, and the acknowledged records be lost."""
    broken, good = SimDisk(), SimDisk()
    async with running(broken, good) as logs:
        append(await create_log(logs, "t"), [b"v"])
    await logs.close()
    broken = broken.after_kill()
    broken.fail_at("entries", OSError(errno.EIO, "input/output error"))
    async with running(broken, good.after_kill()) as logs:
        for directory, letter in zip(logs.directories, (b"a", b"b"), strict=True):
            directory.directory_id = letter * 16
        with pytest.raises(errors.KafkaStorageError, match="dir0"):
            logs.create("t", ID, 0, config_of("t"), directory_id)
        new = logs.create("u", ID, 0, config_of("u"), directory_id, is_new=True)
        assert new.disk is logs.directories[1].disk
        named = logs.create("v", ID, 0, config_of("v"), b"b" * 16)
        assert named.disk is logs.directories[1].disk
    await logs.close()


async def test_failed_directory_goes_offline_and_others_stay(autojump_clock) -> None:
    """Invariant 89."""
    broken, good = SimDisk(), SimDisk()
    offline: list[LogDirectory] = []
    async with running(broken, good) as logs:
        logs.subscribe(on_offline=offline.append)
        bad, fine = await create_log(logs, "t"), await create_log(logs, "u")
        broken.fail_at("write", OSError(errno.EIO, "broken"))
        with pytest.raises(errors.KafkaStorageError):
            append(bad, [b"v"])
        assert [d.name for d in offline] == ["dir0"]
        append(fine, [b"v"])
        with pytest.raises(errors.KafkaStorageError):
            await create_log(logs, "t")
        for partition in range(1, 4):
            assert (await create_log(logs, "t", partition)).disk is good
        await trio.sleep(400)
    await logs.close()
    assert ".kafka_cleanshutdown" not in broken.files
    assert ".kafka_cleanshutdown" in good.files


async def test_retention_removes_old_segments_below_the_high_watermark(autojump_clock) -> None:
    """Invariant 86."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for _ in range(7):
            append(log, [b"v"])
        log.high_watermark = 3
        await trio.sleep(3_950)
        assert [s.base_offset for s in log.segments] == [2, 4, 6]  # Segment 2 ends above 3.
        assert any(e.name.endswith(".log.deleted") for e in disk.entries("t-0"))
        log.high_watermark = 7
        await trio.sleep(400)
        assert (log.log_start, log.end_offset, len(log.segments)) == (7, 7, 1)
        assert not any(e.name.endswith(".deleted") for e in disk.entries("t-0"))


async def test_second_broker_on_a_directory_is_refused(tmp_path) -> None:
    """Invariant 92."""
    logs = manager(RealDisk(str(tmp_path)))
    await logs.open(config_of)
    with pytest.raises(AlreadyLocked):
        manager(RealDisk(str(tmp_path))).directories[0].lock()
    await logs.close()
    again = manager(RealDisk(str(tmp_path)))
    again.directories[0].lock()
    again.directories[0].unlock()


async def test_service_runs_on_real_threads(tmp_path) -> None:
    """The service also works on a real disk with real threads."""
    logs = LogManager([LogDirectory(RealDisk(str(tmp_path)), "dir")], Clock())
    await logs.open(config_of)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        log = await create_log(logs)
        for _ in range(5):
            append(log, [b"v"])
        await logs.flush(log)
        assert log.flush_state.recovery_point == 5
        done = trio.Event()
        logs.subscribe(on_written=lambda _: done.set())
        log.disk.slow = True
        append(log, [b"w"])
        await done.wait()
        nursery.cancel_scope.cancel()
    await logs.close()
    assert len(content(log)) == 6


async def test_thousand_partitions_are_created_without_a_sync(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        for partition in range(1000):
            await create_log(logs, partition=partition)
        assert not [call for call in disk.calls if call[0].startswith("sync")]
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("markers", "expected"),
    [
        ((b'{"version":0,"brokerEpoch":42}', b'{"version":0,"brokerEpoch":42}'), 42),
        ((b'{"brokerEpoch":42,"version":0,"more":1}', b'{"version":0,"brokerEpoch":42}'), 42),
        ((b'{"version":0,"brokerEpoch":42}', b'{"version":0,"brokerEpoch":41}'), -1),
        ((b'{"version":0,"brokerEpoch":42}', None), -1),
        ((b"", b""), -1),  # Older releases wrote empty files.
    ],
)
async def test_previous_broker_epoch_needs_markers_that_agree(
    markers, expected, autojump_clock
) -> None:
    """The epoch is known only if all directories agree, which is Kafka's rule."""
    disks = SimDisk(), SimDisk()
    for disk, marker in zip(disks, markers, strict=True):
        if marker is not None:
            disk.write(".kafka_cleanshutdown", marker)
    async with running(*disks) as logs:
        assert logs.previous_epoch == expected


@pytest.mark.parametrize("call", ["write", "create"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
async def test_node_starts_after_a_failed_creation(autojump_clock, error: int, call: str) -> None:
    """Invariant 88: a creation failed halfway, and the next one chose another directory."""
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        first.fail_at(call, OSError(error, "refused"), path="t-0/", times=2)
        with pytest.raises(errors.KafkaStorageError):
            logs.create("t", ID, 0, LogConfig(), is_new=True)
        logs.moves.prefer(TopicPartition("t", 0), logs.directories[1])
        log = logs.create("t", ID, 0, LogConfig(), is_new=True)
        assert log.disk is second
        append(log, [b"value"])
        await logs.flush(log)
    async with running(first.after_kill(), second.after_kill()) as logs:
        assert not find_duplicates(logs.directories)
        remaining = logs.get("t", 0)
        assert remaining is not None
        assert [value for _, value in content(remaining)] == [b"value"]
