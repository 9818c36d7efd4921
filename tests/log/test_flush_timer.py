"""``flush.ms``: each record is synced so long after its append."""

import errno
import gc
import weakref
from itertools import pairwise

import pytest
import trio

from kwire.log.config import LogConfig
from kwire.log.deadlines import Deadlines
from kwire.log.flush import Flush
from simulation.disk import SimDisk
from tests.support.log.batches import append
from tests.support.log.manager import ID, manager, running

CONFIG = LogConfig(flush_ms=300)


def test_flush_deadline_only_moves_earlier() -> None:
    timers: Deadlines[str] = Deadlines()
    assert timers.next == float("inf")
    for key, due in (("a", 5.0), ("b", 6.0), ("a", 9.0), ("a", 2.0)):
        timers.arm(key, due)
    assert timers.next == 2.0
    assert timers.take(1.9) == []
    assert timers.take(5.5) == ["a"]
    assert timers.take(6.0) == ["b"]
    assert (len(timers), timers.next) == (0, float("inf"))


async def test_flush_timers_drop_deleted_logs_before_their_deadlines(autojump_clock) -> None:
    """With a ``flush.ms`` of a day, deleted topics do not stay in memory for a day."""
    config = LogConfig(flush_ms=86_400_000)
    async with running(SimDisk()) as logs:
        references = []
        for number in range(100):
            log = logs.create(f"t{number}", ID, 0, config)
            append(log, [b"v"])
            references.append(weakref.ref(log))
            del log
            await logs.delete(f"t{number}", 0)
        gc.collect()
        assert sum(reference() is not None for reference in references) <= 20


async def test_every_record_is_synced_in_time(autojump_clock) -> None:
    """Checkpoints of the high watermarks, every 5 s, have no influence."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        for count in range(1, 11):
            append(log, [b"v"])
            await trio.sleep(0.29)
            assert log.flush_state.recovery_point == count - 1
            await trio.sleep(0.02)
            assert log.flush_state.recovery_point == count
            await trio.sleep(0.39)


async def test_flush_ms_counts_from_the_first_unsynced_record(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        append(log, [b"first"])
        await trio.sleep(0.2)
        append(log, [b"second"])
        await trio.sleep(0.15)
        assert log.flush_state.recovery_point == 2
        append(log, [b"third"])
        await trio.sleep(0.2)
        await logs.flush(log)  # A flush for another reason.
        append(log, [b"fourth"])
        await trio.sleep(0.29)
        assert log.flush_state.recovery_point == 3, "the timer of the third is not the fourth's"
        await trio.sleep(0.02)
        assert log.flush_state.recovery_point == 4


async def test_record_appended_during_a_sync_has_its_own_deadline(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)

        async def slowly(call) -> None:
            await trio.sleep(0.1)
            call()

        logs.threads.stand_in = slowly
        append(log, [b"first"])
        await trio.sleep(0.35)
        append(log, [b"second"])
        await trio.sleep(0.1)
        assert log.flush_state.recovery_point == 1
        await trio.sleep(0.31)
        assert log.flush_state.recovery_point == 2


@pytest.mark.parametrize("before", [(1 << 63) - 1, 60_000])
async def test_changed_flush_ms_applies_to_unsynced_records(autojump_clock, before) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(flush_ms=before))
        append(log, [b"v"])
        await trio.sleep(1)
        log.configure(LogConfig(flush_ms=1500))
        await trio.sleep(1.4 if before > 60_000 else 0.4)
        assert log.flush_state.recovery_point == 0
        await trio.sleep(0.2)
        assert log.flush_state.recovery_point == 1
        append(log, [b"v"])
        log.configure(LogConfig(flush_ms=before))
        await trio.sleep(50)
        assert log.flush_state.recovery_point == 1


async def test_records_unsynced_at_a_kill_are_synced_after_the_start(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        append(logs.create("t", ID, 0, LogConfig()), [b"v"])
    logs = manager(disk.after_kill())
    await logs.open(lambda topic: CONFIG)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        log = logs.get("t", 0)
        assert log is not None
        assert log.flush_state.recovery_point == 0
        await trio.sleep(0.31)
        assert log.flush_state.recovery_point == 1
        nursery.cancel_scope.cancel()


async def test_flush_that_cannot_open_its_file_is_retried(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        append(log, [b"v"])
        tries: list[float] = []

        async def no_descriptors(call) -> None:
            if isinstance(getattr(call, "__self__", None), Flush):
                tries.append(trio.current_time())
                if len(tries) < 4:
                    raise OSError(errno.EMFILE, "too many open files")
            call()

        logs.threads.stand_in = no_descriptors
        await trio.sleep(30)
        assert (log.flush_state.recovery_point, len(tries)) == (1, 4)
        assert all(after - before >= 1 for before, after in pairwise(tries))


async def test_idle_log_wakes_no_task(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        append(log, [b"v"])
        await trio.sleep(100)
        calls = len(disk.calls)
        await trio.sleep(1000)
        assert len(disk.calls) == calls
        assert not any(len(service.flusher.timers) for service in logs.services.values())
