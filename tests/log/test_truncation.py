"""A log that is cut while its directory is in service, and what is left after a crash."""

import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from kwire.errors import KafkaStorageError
from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import open_log
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import ID, OTHER, create_deleted_from, create_log, running
from tests.support.log.slices import turns, unopened_manager

CONFIG = LogConfig(retention_ms=-1)
SMALL = LogConfig(retention_ms=-1, segment_bytes=20_000)


async def test_records_appended_below_a_former_log_start_survive_a_kill(autojump_clock) -> None:
    """Invariant 82: the start offset on disk is not above the end of the cut log."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_deleted_from(logs, log_start=5, end_offset=6)
        assert await logs.truncate(log, 3)
        append(log, [b"new"], epoch=1)
        await logs.flush(log)
    async with running(disk.after_kill()) as logs:
        assert content(await create_log(logs)) == [(3, b"new")]


async def test_emptied_log_keeps_its_new_records_after_a_kill(autojump_clock) -> None:
    """Invariant 82: also if the log start that was stored before is above them."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_deleted_from(logs, log_start=5, end_offset=6)
        assert await logs.restart_at(log, 2)
        append(log, [b"new"], epoch=1)
        await logs.flush(log)
    async with running(disk.after_kill()) as logs:
        assert content(await create_log(logs)) == [(2, b"new")]


@pytest.mark.parametrize("is_stored_again", [False, True])
async def test_log_that_was_emptied_by_a_cut_keeps_its_start_offset(
    autojump_clock, is_stored_again: bool
) -> None:
    """Invariant 39: the power is lost before the name of its new segment is durable.

    The checkpoints may be written again before the next flush syncs that name.
    """
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        assert await logs.restart_at(log, 9)
        append(log, [b"v"])
        await logs.flush(log)
        await trio.sleep(130)
        assert await logs.truncate(log, 7)
        if is_stored_again:
            assert not await logs.keep_starts([log])
        survivors = [disk.power_loss(Random(seed)) for seed in range(20)]
    for survivor in survivors:
        async with running(survivor) as logs:
            log = await create_log(logs)
            assert log.log_start in (7, 9)


async def test_segment_that_a_cut_ends_at_the_recovery_point_is_found_by_time(
    autojump_clock,
) -> None:
    """Invariant 78: of an index that is not synced, a loss of power may leave a file of zeros."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, SMALL)
        assert isinstance(log, PartitionLog)
        for number in range(6):
            append(log, [b"v"], timestamp_ms=TIME_MS + number)
        await logs.flush(log)
        assert await logs.truncate(log, 5)
        log.roll(TIME_MS)
        append(log, [b"v"], timestamp_ms=TIME_MS + 9)
        survivor = disk.after_kill()
    survivor.write(f"t-0/{names.stem(0)}{names.TIME_INDEX}", bytes(12))
    async with running(survivor) as logs:
        log = await create_log(logs)
        for number in range(5):
            spot = timestamp_search.run(timestamp_search.first_at_least(log, TIME_MS + number))
            assert spot == timestamp_search.OffsetAndTimestamp(number, TIME_MS + number)


async def test_removed_segment_that_comes_back_hides_no_torn_batch(autojump_clock) -> None:
    """Invariant 78: the power is lost before a flush syncs the cut and what follows it."""
    disk, first, second = SimDisk(), f"t-0/{names.stem(0)}.log", f"t-0/{names.stem(6)}.log"
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, SMALL)
        assert isinstance(log, PartitionLog)
        for number in range(6):
            append(log, [b"%d" % number])
        log.roll(TIME_MS)
        append(log, [b"old"])
        await logs.flush(log)
        synced = {path: disk.read(path) for path in (first, second)}
        assert await logs.truncate(log, 6)
        append(log, [b"new"], epoch=1)
        await trio.sleep(130)  # The checkpoints are written regularly.
        survivor = disk.after_kill()
    survivor.write(first, synced[first] + bytes(70))
    survivor.write(second, synced[second])
    async with running(survivor) as logs:
        expected = [(number, b"%d" % number) for number in range(6)]
        assert content(await create_log(logs))[:6] == expected


@pytest.mark.parametrize("is_stored_again", [False, True])
async def test_removed_segment_that_comes_back_replaces_no_new_record(
    autojump_clock, is_stored_again: bool
) -> None:
    """Invariant 78: the segment after it begins at the offset where the removed one ended.

    The recovery point on disk is from before the cut, unless the checkpoints are written again.
    """
    disk, second = SimDisk(), f"t-0/{names.stem(6)}.log"
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, SMALL)
        assert isinstance(log, PartitionLog)
        for number in range(6):
            append(log, [b"%d" % number])
        log.roll(TIME_MS)
        append(log, [b"old"])
        await logs.flush(log)
        removed = disk.read(second)
        assert await logs.truncate(log, 6)
        if is_stored_again:
            await trio.sleep(130)
        append(log, [b"new"], epoch=1)
        log.roll(TIME_MS)
        append(log, [b"newest"], epoch=1)
        survivor = disk.after_kill()
    survivor.write(second, removed)
    async with running(survivor) as logs:
        assert content(await create_log(logs))[6:] == [(6, b"new")]


async def start_after_kill(disk: SimDisk) -> int:
    """Return the log start offset that a broker finds after a kill."""
    async with running(disk.after_kill()) as logs:
        return (await create_log(logs)).log_start


@asynccontextmanager
async def cutting_below_the_start(
    is_wanted: Callable[[], bool], flush_s: float
) -> AsyncIterator[tuple[SimDisk, LogManager, PartitionLog, trio.CancelScope]]:
    """Yield when a cut has lowered a start offset of 3 on disk to 1 and waits for a flush.

    The rest of the flush takes ``flush_s``.
    """
    disk, scope = SimDisk(), trio.CancelScope()
    async with running(disk) as logs, trio.open_nursery() as nursery:
        log = await create_deleted_from(logs, log_start=3, end_offset=5)
        append(log, [b"v"])
        await trio.sleep(130)

        async def run_slowly(call: Callable[[], None]) -> None:
            is_flush = call == getattr(log.flush_state.running, "run", None)
            with trio.CancelScope(shield=True):
                await trio.sleep(0.7 + flush_s if is_flush else 1)
            call()

        async def truncate() -> None:
            with scope:
                assert not await logs.truncate(log, 1, is_wanted)

        logs.threads.stand_in = run_slowly
        nursery.start_soon(truncate)
        await trio.sleep(0.5)
        nursery.start_soon(logs.flush, log)
        await trio.sleep(0.7)
        assert await start_after_kill(disk) == 1
        yield disk, logs, log, scope


async def test_records_deleted_during_a_cut_that_is_given_up_stay_deleted(autojump_clock) -> None:
    """Invariant 39: the broker became the leader while the truncation waited."""
    is_follower = True
    async with cutting_below_the_start(lambda: is_follower, 1) as (disk, logs, log, _):
        is_follower = False
        log.high_watermark = 5
        log.advance_log_start(4)
        assert not await logs.keep_starts([log])
        assert await start_after_kill(disk) == 4


async def test_start_offset_is_stored_again_when_a_cut_below_it_is_given_up(
    autojump_clock,
) -> None:
    """Invariant 39: at once, not at the next interval of the checkpoints."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_deleted_from(logs, log_start=3, end_offset=4)
        assert not await logs.truncate(log, 1, lambda: log.flush_state.recovery_point == 4)
        assert await start_after_kill(disk) == 3


async def test_start_offset_is_stored_again_after_a_cancelled_cut_below_it(autojump_clock) -> None:
    """Invariant 39: a broker that becomes the leader cancels its fetcher."""
    async with cutting_below_the_start(lambda: True, 1000) as (disk, _, log, scope):
        scope.cancel()
        await trio.sleep(130)
        assert log.end_offset == 6
        assert await start_after_kill(disk) == 3


async def test_truncation_that_removes_nothing_writes_no_checkpoint(autojump_clock) -> None:
    """After a preferred election that is every idle partition of the new followers."""
    disk = SimDisk()
    async with running(disk) as logs:
        created = [await create_log(logs, partition=partition) for partition in range(20)]
        for log in created:
            append(log, [b"v"])
            await logs.flush(log)
        await trio.sleep(130)
        calls = len(disk.calls)
        for log in created:
            append(log, [b"v"])
            assert not await logs.truncate(log, 2)
        assert [path for _, path in disk.calls[calls:] if "checkpoint" in path] == []
        assert all(len(content(log)) == 2 for log in created)


async def test_truncations_that_wait_for_one_disk_share_its_checkpoint_writes(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        created = [await create_log(logs, partition=partition) for partition in range(50)]
        for log in created:
            append(log, [b"v"])
            append(log, [b"v"])
            await logs.flush(log)
        await trio.sleep(130)
        calls = len(disk.calls)
        async with trio.open_nursery() as nursery:
            for log in created:
                nursery.start_soon(logs.truncate, log, 1)
        assert all(len(content(log)) == 1 for log in created)
        renamed = [path for kind, path in disk.calls[calls:] if kind == "rename"]
        checkpoint = names.RECOVERY_POINTS + ".tmp"
        assert 1 <= renamed.count(checkpoint) <= 2, "one for the first, one for all others"
    async with running(disk.after_kill()) as logs:
        for partition in range(50):
            assert len(content(await create_log(logs, partition=partition))) == 1


async def test_truncation_is_stored_when_the_one_that_wrote_for_it_is_cancelled(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        first, second, third = [await create_log(logs, partition=number) for number in range(3)]
        for log in (first, second, third):
            append(log, [b"v"])
            append(log, [b"v"])
            await logs.flush(log)

        async def write_slowly(call: Callable[[], None]) -> None:
            await trio.sleep(1)
            call()

        logs.threads.stand_in = write_slowly
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def truncate(log: PartitionLog, scope: trio.CancelScope) -> None:
                with scope:
                    await logs.truncate(log, 1)

            nursery.start_soon(truncate, first, trio.CancelScope())
            await trio.sleep(0.1)
            nursery.start_soon(truncate, second, scope)
            await trio.sleep(0.1)
            nursery.start_soon(truncate, third, trio.CancelScope())
            await trio.sleep(1.3)
            scope.cancel()
        assert [log.end_offset for log in (first, second, third)] == [1, 2, 1]


@asynccontextmanager
async def producing(
    batch_count: int, config: LogConfig = CONFIG
) -> AsyncIterator[tuple[LogManager, PartitionLog]]:
    """Yield a manager with one log of batches of ten producers, on a clock that runs."""
    logs = unopened_manager(SimDisk(), step=0.001)
    await logs.open(lambda topic: config)
    log = logs.create("t", ID, 0, config)
    for number in range(batch_count):
        producer_id, sequence = number % 10, number // 10
        append(log, [b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    log.flush_state.flush()
    yield logs, log


def sequences(log: PartitionLog) -> dict[int, int]:
    return {producer.producer_id: producer.last_sequence for producer in log.producers.all()}


async def test_other_tasks_run_while_the_producers_of_a_cut_log_are_replayed(
    autojump_clock,
) -> None:
    async with producing(3000) as (logs, log), turns() as others:
        assert await logs.truncate(log, 2995)
    assert others.count >= 70, "40 of 3000 batches take a slice of this clock"
    assert sequences(log) == {number: 299 if number < 5 else 298 for number in range(10)}


async def test_log_that_gets_a_leader_role_during_a_replay_is_not_cut(autojump_clock) -> None:
    async with producing(3000) as (logs, log):
        before, is_follower = sequences(log), True

        async def become_leader() -> None:
            nonlocal is_follower
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            is_follower = False
            append(log, [b"new"], producer_id=0, producer_epoch=0, base_sequence=300, epoch=1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(become_leader)
            assert not await logs.truncate(log, 2995, lambda: is_follower)
    assert log.end_offset == 3001
    assert sequences(log) == before | {0: 300}


async def test_log_that_is_deleted_during_a_replay_is_not_cut(autojump_clock) -> None:
    """Invariant 40: and the log of a new topic of that name is another one."""
    async with producing(3000) as (logs, log), trio.open_nursery() as nursery:
        await nursery.start(logs.run)

        async def delete() -> None:
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            logs.delete_soon(log)
            with pytest.raises(KafkaStorageError):
                logs.create("t", OTHER, 0, CONFIG)

        nursery.start_soon(delete)
        assert not await logs.truncate(log, 2995)
        await trio.testing.wait_all_tasks_blocked()
        assert logs.get("t", 0) is None
        assert logs.create("t", OTHER, 0, CONFIG).end_offset == 0
        nursery.cancel_scope.cancel()


async def test_log_is_flushed_and_kept_from_retention_during_a_replay(autojump_clock) -> None:
    async with producing(3000, SMALL) as (logs, log):
        for offset in log.snapshots.offsets[1:]:
            log.snapshots.remove(offset)
        log.high_watermark = 1000
        log.advance_log_start(1000)
        segment_count = len(log.segments)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.truncate, log, 2995)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(logs.retain, log)
            append(log, [b"v"], producer_id=77, producer_epoch=0, base_sequence=0)
            await logs.flush(log)
            assert log.flush_state.recovery_point == 3001
            assert len(log.segments) == segment_count
        assert len(log.segments) < segment_count
        assert (log.end_offset, log.flush_state.recovery_point) == (2995, 2995)
        assert log.producers.get(77) is None


async def test_truncations_at_the_same_time_share_the_writes_of_checkpoints(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the cost of truncating thousands of logs grows with the square of their number."""
    built = list[str]()
    build = LogDirectory.lines

    def lines(directory: LogDirectory, name: str) -> Iterator[str]:
        built.append(name)
        return build(directory, name)

    async with running(SimDisk()) as logs:
        cut = [await create_log(logs, partition=number) for number in range(100)]
        for log in cut:
            append(log, [b"stays"])
            append(log, [b"goes"])
        monkeypatch.setattr(LogDirectory, "lines", lines)
        async with trio.open_nursery() as nursery:
            for log in cut:
                nursery.start_soon(logs.truncate, log, 1)
        assert {log.end_offset for log in cut} == {1}
        assert 0 < len(built) < 20


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("count", [1, 30], ids=["one segment", "several segments"])
@pytest.mark.parametrize("offset", [0, 100])
def test_log_that_cannot_be_emptied_keeps_its_newest_segment(
    tmp_path: Path, number: int, count: int, offset: int
) -> None:
    """Invariant 83: its next records must not go to a file that the next start removes.

    Neither may they follow a gap, although nothing can be read for lack of descriptors.
    """

    class Disk(RealDisk):
        is_short = False

        def descriptor(self, path: str, flags: int) -> int:
            creates_log = flags & os.O_CREAT and path.endswith(names.LOG)
            if self.is_short and (number == errno.EMFILE or creates_log):
                raise OSError(number, os.strerror(number))
            return super().descriptor(path, flags)

    def open_again() -> PartitionLog:
        partition, config = TopicPartition("t", 0), LogConfig(segment_bytes=1000)
        return open_log(disk, "t-0", partition, now_ms=TIME_MS, config=config)

    disk = Disk(str(tmp_path))
    disk.make_directory("t-0")
    log = open_again()
    for value in range(count):
        append(log, [b"%d" % value])
    before = content(log)
    disk.is_short = True
    with pytest.raises(KafkaStorageError):
        log.truncate_fully_at(offset)
    disk.is_short = False
    remaining = content(log)
    assert remaining == before[log.log_start :] != []
    assert log.end_offset == log.writer.written_offset == count
    append(log, [b"next"])
    again = open_again()
    assert content(again) == [*remaining, (count, b"next")]
    again.truncate_fully_at(offset)
    assert again.end_offset == again.log_start == offset
    assert content(again) == []
