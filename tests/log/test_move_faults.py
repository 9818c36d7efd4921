"""Moves between log directories under disk errors and changes at unlucky times."""

import copy
import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import attrs
import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.move_rules import MoveRules
from kwire.log.flush import Flush
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import open_log
from simulation.disk import PAGE, SimDisk
from tests.support.log.batches import append, content
from tests.support.log.manager import ID
from tests.support.log.moving import (
    CONFIG,
    FIRST,
    SECOND,
    Limit,
    create,
    current,
    partitions,
    running,
)
from tests.support.log.threads import at_once


def name_of(call: Callable[[], None]) -> str:
    """Return the name of the function that a thread runs."""
    name: str = getattr(getattr(call, "func", call), "__name__", "")
    return name


async def copied_log(
    logs: LogManager,
    copied: trio.Event,
    *,
    epoch: int = 1,
    value: bytes = b"old",
    config: LogConfig = CONFIG,
) -> PartitionLog:
    """Return a log with 20 records in epochs 0 and ``epoch``, whose move waits for the event."""

    async def wait_assigned(log: PartitionLog, directory: LogDirectory) -> None:
        await copied.wait()

    logs.moves.rules = MoveRules(wait_assigned=wait_assigned)
    log = create(logs, config)
    for number in range(20):
        append(log, [value], epoch=number // 10 * epoch)
    logs.moves.request(log, logs.directories[1])
    await trio.sleep(1)
    (future,) = logs.directories[1].futures.values()
    assert future.end_offset == 20
    return log


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
async def test_records_that_the_target_cannot_cut_are_not_moved(autojump_clock, error: int) -> None:
    """A new leader's records replace the copied ones, while the target writes no checkpoint."""
    first, second, copied = SimDisk(), SimDisk(), trio.Event()
    async with running(first, second) as logs:
        log = await copied_log(logs, copied)
        second.fail_at("*", OSError(error, "refused"), path="checkpoint", times=30)
        await logs.truncate(log, 12)
        for number in range(12, 30):
            append(log, [b"new %d" % number], epoch=2)
        expected = content(log)
        copied.set()
        await trio.sleep(100)
        assert current(logs).disk is second
        assert content(current(logs)) == expected


async def test_batches_cut_from_a_future_replica_do_not_come_back_behind_newer_ones(
    autojump_clock,
) -> None:
    """Invariants 23 and 78: the power fails before a flush; the epochs of old batches are higher.

    An unclean election can put batches of an earlier epoch in the place of later ones.
    """
    first, second, copied = SimDisk(), SimDisk(), trio.Event()
    survivors: list[SimDisk] = []

    async def run_with_power_losses(call: Callable[[], None]) -> None:
        if isinstance(getattr(call, "__self__", None), Flush):
            survivors.extend(second.power_loss(Random(seed)) for seed in range(20))
        await at_once(call)

    config = attrs.evolve(CONFIG, segment_bytes=1 << 20)
    async with running(first, second, config=config) as logs:
        log = await copied_log(
            logs, copied, epoch=4, value=b"old" + bytes(PAGE - 72), config=config
        )
        (future,) = logs.directories[1].futures.values()
        await logs.services[second].flusher.flush(future, indexes=True)
        directory = future.segments.directory
        await logs.truncate(log, 10)
        for _ in range(2):
            append(log, [b"new" + bytes(PAGE - 72)], epoch=3)
        logs.threads.stand_in = run_with_power_losses
        copied.set()
        await trio.sleep(1)
        assert current(logs).disk is second
    for survivor in survivors:
        if directory in {entry.name for entry in survivor.entries()}:
            recovered = open_log(survivor, directory, log.partition, now_ms=0)
            values = [value or b"" for _, value in content(recovered)]
            assert values == sorted(values, reverse=True)


async def test_target_that_cannot_cut_is_not_tried_all_the_time(autojump_clock) -> None:
    first, second, copied = SimDisk(), SimDisk(), trio.Event()
    async with running(first, second) as logs:
        log = await copied_log(logs, copied)
        await logs.truncate(log, 12)
        second.fail_at("*", OSError(errno.ENOSPC, "full"), path="checkpoint", times=10_000)
        copied.set()
        before = len(second.calls)
        await trio.sleep(10)
        assert len(second.calls) - before < 1000


async def test_settings_changed_during_the_last_sync_apply_to_the_moved_log(
    autojump_clock,
) -> None:
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        append(log, [b"value"])
        service = logs.services[first]
        changed = attrs.evolve(CONFIG, retention_ms=1234)

        async def busy_thread(call: Callable[[], None]) -> None:
            await trio.lowlevel.checkpoint()
            if log in service.busy.cuts and service.directory.holds(log):
                if name_of(call) == "write_checkpoints":
                    append(log, [b"later"])
                    log.flush_state.flush()  # So the future replica needs another sync.
                elif name_of(call) == "run":
                    log.configure(changed)
            call()

        logs.threads.stand_in = busy_thread
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        assert current(logs).disk is second
        assert log.config is changed
        assert current(logs).config.retention_ms == 1234


@pytest.mark.parametrize("call", ["mkdir", "create", "write", "open"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
async def test_refused_moves_leave_nothing_behind(autojump_clock, error: int, call: str) -> None:
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        append(log, [b"value"])
        for _ in range(3):
            second.fail_at(call, OSError(error, "refused"), path="-future", times=2)
            with pytest.raises(KafkaStorageError):
                logs.moves.request(log, logs.directories[1])
            second.mend()
        await trio.sleep(100)
        assert partitions(second) == []
        assert not [file for file in second.opened if "t-0" in file.path]
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(100)
        assert current(logs).disk is second


async def test_log_moves_back_before_its_old_directory_is_renamed(autojump_clock) -> None:
    """The new name is synced slowly, and only then is the old directory renamed.

    The second move syncs nothing slowly: it would be ready before that. Until then the mark in
    the new directory must stay: after a kill it alone says which of the two is outdated.
    """
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log, slow_count = create(logs), 1
        append(log, [b"value"])

        async def slow_sync(call: Callable[[], None]) -> None:
            nonlocal slow_count
            await trio.lowlevel.checkpoint()
            is_second = name_of(call) == "sync_directory" and current(logs).disk is second
            if is_second and slow_count:
                slow_count -= 1
                await trio.sleep(5)
            call()

        logs.threads.stand_in = slow_sync
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        moved = current(logs)
        assert moved.disk is second
        append(moved, [b"meanwhile"])
        logs.moves.request(moved, logs.directories[0])
        await trio.sleep(3)
        survivors = copy.deepcopy((first.after_kill(), second.after_kill()))
        await trio.sleep(97)
        assert logs.directories[0].online
        assert current(logs).disk is first
        assert [value for _, value in content(current(logs))] == [b"value", b"meanwhile"]
    async with running(*survivors) as logs:
        assert logs.directories[0].online
        assert [value for _, value in content(current(logs))] == [b"value", b"meanwhile"]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
async def test_old_directory_goes_although_its_indexes_cannot_be_written(
    autojump_clock, error: int
) -> None:
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        append(log, [b"value"])
        first.fail_at("*", OSError(error, "refused"), path="-delete/0", times=4)
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(100)
        assert current(logs).disk is second
        assert partitions(first) == []
        assert not [file for file in first.opened if "t-0" in file.path]


async def test_move_ends_although_its_directory_has_vanished(
    autojump_clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, copied = SimDisk(), SimDisk(), trio.Event()
    async with running(first, second) as logs:
        log = await copied_log(logs, copied)
        (future,) = logs.directories[1].futures.values()
        second.remove_tree(future.segments.directory)
        copied.set()
        await trio.sleep(10)
        assert current(logs) is log
        assert len([r for r in caplog.records if "move delayed" in r.message]) < 3
        logs.moves.request(log, logs.directories[0])
        await trio.sleep(10)
        assert not [file for file in second.opened if "t-0" in file.path]
        assert "cannot remove future replica partition=t-0" in caplog.text
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        assert current(logs).disk is second


async def test_mark_of_an_earlier_move_is_not_believed(autojump_clock) -> None:
    """A move lacked descriptors at its end; the process dies at the end of the move back."""
    first, second = SimDisk(), SimDisk()
    killed: list[PartitionLog] = []

    def on_moved(old: PartitionLog, new: PartitionLog) -> None:
        if new.disk is first:
            second.fail_at("open", OSError(errno.EMFILE, "refused"), times=10_000)
        else:
            first.changes_left = 0
            append(new, [b"only here"])
            killed.append(new)

    with suppress(BaseExceptionGroup):
        async with running(first, second, rules=MoveRules(on_moved=on_moved)) as logs:
            log = logs.create("t", ID, 0, CONFIG, SECOND)
            append(log, [b"value"])
            await logs.flush(log)
            logs.moves.request(log, logs.directories[0])
            await trio.sleep(100)
            assert current(logs).disk is first
            second.mend()
            logs.moves.request(current(logs), logs.directories[1])
            await trio.sleep(100)
    assert killed
    first.changes_left = None
    async with running(first.after_kill(), second.after_kill()) as logs:
        assert [value for _, value in content(current(logs))] == [b"value", b"only here"]


async def test_start_keeps_one_of_two_future_replicas(autojump_clock) -> None:
    """The process dies right after a move was ended and requested again."""
    first, second = SimDisk(), SimDisk()
    async with running(first, second, rules=MoveRules(throttle=Limit(is_over=True))) as logs:
        log = create(logs)
        append(log, [b"value"])
        for number in (1, 0, 1):
            logs.moves.request(log, logs.directories[number])
        assert partitions(second) == ["t-0-future", "t-0-future"]
        disks = copy.deepcopy((first.after_kill(), second.after_kill()))
    async with running(*disks) as logs:
        log = logs.create("t", ID, 0, CONFIG, FIRST)
        await trio.sleep(200)
        assert [partitions(disk) for disk in disks] == [[], ["t-0"]]
        assert [value for _, value in content(current(logs))] == [b"value"]


async def test_outdated_log_is_not_used_in_place_of_one_that_cannot_be_opened(
    autojump_clock,
) -> None:
    """The process dies between the two renames; the next start cannot read the new directory."""
    first, second = SimDisk(), SimDisk()

    def on_moved(old: PartitionLog, new: PartitionLog) -> None:
        first.changes_left = 0
        append(new, [b"only here"])

    with suppress(BaseExceptionGroup):
        async with running(first, second, rules=MoveRules(on_moved=on_moved)) as logs:
            log = create(logs)
            append(log, [b"value"])
            logs.moves.request(log, logs.directories[1])
            await trio.sleep(100)
    first.changes_left = None
    disks = first.after_kill(), second.after_kill()
    disks[1].fail_at("entries", OSError(errno.EMFILE, "refused"), path="t-0", times=99)
    async with running(*disks) as logs:
        for _ in range(2):
            with pytest.raises(KafkaStorageError):
                logs.create("t", ID, 0, CONFIG, SECOND)
    async with running(*(disk.after_kill() for disk in disks)) as logs:
        log = logs.create("t", ID, 0, CONFIG, SECOND)
        assert [value for _, value in content(log)] == [b"value", b"only here"]
