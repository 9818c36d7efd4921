"""A log directory whose disk does not answer: it delays no other directory."""

import threading

import pytest
import trio
import trio.testing

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.threads import THREADS, DiskThreads
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, append
from tests.support.log.manager import ID, OTHER
from tests.support.log.threads import HangingThreads

CONFIG = LogConfig(segment_bytes=200, retention_ms=3_600_000, file_delete_delay_ms=1_000)


async def test_calls_of_a_hung_disk_use_no_thread_of_another_disk() -> None:
    """Invariant 91: each disk has threads of its own, whose number is limited."""
    hung, good = SimDisk(), SimDisk()
    threads = DiskThreads()
    lock = threading.Lock()
    most, running, release = 0, 0, threading.Event()

    def hang() -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        release.wait()
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(2 * THREADS):
            nursery.start_soon(threads.run, hung, hang)
        await trio.testing.wait_all_tasks_blocked()
        try:
            with trio.fail_after(60):
                assert await threads.run(good, lambda: "done") == "done"
        finally:
            release.set()
    assert most <= THREADS


async def test_other_directories_are_maintained_while_one_hangs(autojump_clock) -> None:
    """Invariant 91: syncs, checkpoints, retention, deletion of topics, and the stop go on."""
    hung, good = SimDisk(), SimDisk()
    threads = HangingThreads()
    logs = LogManager(
        [LogDirectory(hung, "hung"), LogDirectory(good, "good")], Clock(), threads=threads
    )
    await logs.open(lambda topic: CONFIG)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        created = [logs.create("t", ID, partition, CONFIG) for partition in range(4)]
        assert [log.disk for log in created] == [hung, good, hung, good]
        await logs.delete("t", 2)
        await logs.delete("t", 3)
        threads.hung = hung
        for log in created[:2]:
            for _ in range(7):
                append(log, [b"v"])
            log.high_watermark = log.end_offset
            log.advance_log_start(3)
        await trio.sleep(100)
        assert created[0].flush_state.recovery_point == 0, "its disk does not answer"
        assert created[1].flush_state.recovery_point == created[1].segments.active.base_offset == 6
        assert good.read("replication-offset-checkpoint") == b"0\n1\nt 1 7\n"
        assert good.read("recovery-point-offset-checkpoint") == b"0\n1\nt 1 6\n"
        assert good.read("log-start-offset-checkpoint") == b"0\n1\nt 1 3\n"
        assert [entry.name for entry in good.entries() if entry.is_directory] == ["t-1"]
        await trio.sleep(4_000)
        assert created[1].log_start == 7, "its records are too old"
        logs.create("u", OTHER, 0, CONFIG)
        nursery.cancel_scope.cancel()
        threads.released.set()
    await logs.close()
    assert ".kafka_cleanshutdown" in good.files


async def test_stop_of_one_directory_waits_for_no_other(autojump_clock) -> None:
    """Invariants 91 and 109."""
    hung, good = SimDisk(), SimDisk()
    threads = HangingThreads(hung=hung)
    logs = LogManager(
        [LogDirectory(hung, "hung"), LogDirectory(good, "good")], Clock(), threads=threads
    )
    await logs.open(lambda topic: CONFIG)
    for partition in range(2):
        append(logs.create("t", ID, partition, CONFIG), [b"v"], now_ms=TIME_MS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.close)
        await trio.testing.wait_all_tasks_blocked()
        assert ".kafka_cleanshutdown" in good.files
        assert ".kafka_cleanshutdown" not in hung.files
        threads.released.set()
    assert ".kafka_cleanshutdown" in hung.files


@pytest.mark.parametrize("ends", ["the disk answers", "stop"])
async def test_deleted_log_on_a_hung_disk_is_removed_when_the_disk_answers(
    autojump_clock, ends: str
) -> None:
    """Invariants 40 and 91: no request waits for it, and no topic gets it, not even its own."""
    disk = SimDisk()
    threads = HangingThreads(hung=disk)
    logs = LogManager([LogDirectory(disk, "hung")], Clock(), threads=threads)
    await logs.open(lambda topic: CONFIG)
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            await nursery.start(logs.run)
            log = logs.create("t", ID, 0, CONFIG)
            append(log, [b"v"])
            outer.start_soon(logs.flush, log)
            await trio.testing.wait_all_tasks_blocked()
            try:
                logs.delete_soon(log)
                with pytest.raises(KafkaStorageError):
                    logs.create("t", ID, 0, CONFIG)
            except BaseException:
                threads.released.set()  # The flush cannot be cancelled.
                raise
            if ends == "stop":
                nursery.cancel_scope.cancel()
            else:
                threads.released.set()
                await trio.testing.wait_all_tasks_blocked()
                assert logs.get("t", 0) is None
                assert logs.create("t", ID, 0, CONFIG).end_offset == 0
                assert [entry.name for entry in disk.entries() if "-delete" in entry.name]
                await trio.sleep(2)
                assert [entry.name for entry in disk.entries() if entry.is_directory] == ["t-0"]
                nursery.cancel_scope.cancel()
        threads.released.set()
    await logs.close()
    if ends == "stop":
        assert [entry.name[-7:] for entry in disk.entries() if entry.is_directory] == ["-delete"]
