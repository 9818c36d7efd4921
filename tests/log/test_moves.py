"""Logs move between the log directories of a broker, and lose nothing at any crash."""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import attrs
import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.move_rules import MoveRules
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.segments.segment import plan_cut
from simulation.disk import SimDisk
from tests.support.log.batches import append, content
from tests.support.log.manager import ID
from tests.support.log.moving import (
    CONFIG,
    FIRST,
    SECOND,
    Limit,
    create,
    current,
    disk_of,
    partitions,
    running,
)


def fill(log: PartitionLog, count: int = 30, epoch: int = 0) -> None:
    for number in range(count):
        append(log, [b"value %d" % number], epoch=epoch)
    log.high_watermark = log.end_offset


async def test_moved_log_has_the_same_bytes_in_the_same_segments(autojump_clock) -> None:
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        fill(log)
        fill(log, epoch=3)
        log.advance_log_start(5)
        before = content(log)
        files = {
            segment.base_offset: first.read(segment.files.path(names.LOG))[: segment.size]
            for segment in log.segments
        }
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        moved = current(logs)
        assert moved.disk is second
        assert content(moved) == before
        assert (moved.log_start, moved.end_offset, moved.high_watermark) == (5, 60, 60)
        assert moved.epochs.entries() == log.epochs.entries()
        assert {
            segment.base_offset: second.read(segment.files.path(names.LOG))[: segment.size]
            for segment in moved.segments
        } == files
        assert partitions(first) == ["t-0-delete"]
        assert partitions(second) == ["t-0"]
        await trio.sleep(100)
        assert partitions(first) == []
        assert names.MOVED_HERE not in [e.name for e in second.entries("t-0")]
    async with running(first.after_kill(), second.after_kill()) as logs:
        assert content(current(logs)) == before


CHANGES = range(70)


@pytest.mark.parametrize("is_target", [False, True], ids=["source", "target"])
@pytest.mark.parametrize("changes", CHANGES)
async def test_crash_at_any_step_of_a_move_loses_nothing(
    autojump_clock, changes: int, is_target: bool
) -> None:
    """The process dies at a rename, removal or sync in either directory, or the power fails."""
    first, second = SimDisk(), SimDisk()
    crashing = second if is_target else first
    with suppress(BaseExceptionGroup):
        async with running(first, second) as logs:
            log = create(logs)
            fill(log, 12)
            await logs.flush(log, indexes=True)
            await trio.sleep(100)
            before = content(log)
            crashing.changes_left = changes
            logs.moves.request(log, logs.directories[1])
            await trio.sleep(200)
    is_complete = (crashing.changes_left or 0) > 0
    first.changes_left = second.changes_left = None
    survivors = [(first.after_kill(), second.after_kill())]
    survivors += [(first.power_loss(Random(n)), second.power_loss(Random(n))) for n in range(6)]
    for disks in survivors:
        async with running(*disks) as logs:
            log = current(logs)
            assert content(log) == before
            assert log is logs.create("t", log.topic_id, 0, CONFIG, None)
            append(log, [b"one more"])
            await trio.sleep(200)
            log = current(logs)
            assert content(log)[:-1] == before
            assert len(content(log)) == len(before) + 1
            assert not [name for name in partitions(disks[1]) if name.endswith("-future")]
            assert not [name for name in partitions(disks[0]) if name.endswith("-future")]
    assert is_complete or changes < CHANGES[-1]


async def test_future_replica_that_is_not_wanted_is_removed_after_its_flush(
    autojump_clock,
) -> None:
    """The thread would find no indexes to write, and files with other names."""
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        fill(log)
        logs.moves.request(log, logs.directories[1])
        future = logs.directories[1].futures[log.partition]
        while len(future.segments) < 3:
            await trio.lowlevel.checkpoint()
        killed = first.after_kill(), second.after_kill()

    ended = trio.Event()

    async def flush() -> None:
        with suppress(KafkaStorageError):
            await logs.flush(future, indexes=True)
        ended.set()

    async with running(*killed) as logs:
        future = logs.directories[1].futures[log.partition]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush)
            # The thread may be done before this task runs again.
            while future not in logs.services[killed[1]].busy and not ended.is_set():
                await trio.lowlevel.checkpoint()
            logs.moves.cancel(future.partition)
        assert log.partition not in logs.directories[1].futures
        await trio.sleep(100)
        assert partitions(killed[1]) == []


async def test_records_appended_during_a_move_are_moved(autojump_clock) -> None:
    async with running(SimDisk(), SimDisk()) as logs:
        log = create(logs)
        fill(log)
        logs.moves.request(log, logs.directories[1])
        for number in range(200):
            append(current(logs), [b"later %d" % number])
            await trio.lowlevel.checkpoint()
        await trio.sleep(10)
        moved = current(logs)
        assert moved.disk is logs.directories[1].disk
        assert [value for _, value in content(moved)[30:]] == [b"later %d" % n for n in range(200)]


@pytest.mark.parametrize("seed", range(20))
async def test_records_appended_and_synced_during_the_switch_are_moved(
    autojump_clock, seed: int
) -> None:
    """Whenever a thread works for the switch, records are appended, and perhaps synced."""
    random, first, second = Random(seed), SimDisk(), SimDisk()
    durable_ends: list[tuple[int, int]] = []

    def on_moved(old: PartitionLog, new: PartitionLog) -> None:
        durable_ends.append((old.flush_state.recovery_point, new.flush_state.recovery_point))

    async with running(first, second, rules=MoveRules(on_moved=on_moved)) as logs:
        log = create(logs)
        fill(log)
        count = 30

        async def busy_thread(call: Callable[[], None]) -> None:
            nonlocal count
            await trio.lowlevel.checkpoint()
            service = logs.services[first]
            if count < 200 and log in service.busy.cuts and service.directory.holds(log):
                for _ in range(random.randrange(4)):
                    append(log, [b"later %d" % count])
                    count += 1
                if log.flush_state.running is None and random.randrange(2):
                    log.flush_state.flush()
            call()

        logs.threads.stand_in = busy_thread
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        assert current(logs).disk is second
        assert [value for _, value in content(current(logs))[30:]] == [
            b"later %d" % number for number in range(30, count)
        ]
        ((old_end, new_end),) = durable_ends
        assert new_end >= old_end


async def test_records_that_the_switch_cannot_copy_at_once_are_moved(autojump_clock) -> None:
    """Many records are appended, but not synced, during the last sync of the future replica."""
    config = attrs.evolve(CONFIG, segment_bytes=1 << 20)
    async with running(SimDisk(), SimDisk(), config=config) as logs:
        log, values = create(logs, config), list[bytes]()
        busy, target = logs.services[log.disk].busy, logs.directories[1]
        sync_count = 0

        def add(count: int) -> None:
            for _ in range(count):
                values.append(b"%4000d" % len(values))
                append(log, values[-1:])

        async def run(call: Callable[[], None]) -> None:
            nonlocal sync_count
            await trio.lowlevel.checkpoint()
            future = target.futures.get(log.partition)
            if future is not None and log in busy.cuts:
                if call == getattr(future.flush_state.running, "run", None):
                    sync_count += 1
                    add(1 if sync_count == 1 else 10 if sync_count == 2 else 0)
                    if sync_count == 1:  # So that the future replica is synced once more.
                        log.flush_state.flush()
                elif len(values) == 3:
                    add(1)
            call()

        add(3)
        logs.threads.stand_in = run
        logs.moves.request(log, target)
        await trio.sleep(10)
        assert len(values) == 15
        assert current(logs).disk is target.disk
        assert [value for _, value in content(current(logs))] == values


@pytest.mark.parametrize("seed", range(60))
async def test_moved_log_equals_the_log_after_any_changes(autojump_clock, seed: int) -> None:
    """Truncations by a new leader, deletions, rolls and appends go on during the copy."""
    random, limit = Random(seed), Limit(limit_bytes=0)
    first, second = SimDisk(), SimDisk()
    async with running(first, second, rules=MoveRules(throttle=limit)) as logs:
        log, epoch = create(logs), 0
        fill(log, random.randrange(40))
        model = content(log)
        logs.moves.request(log, logs.directories[1])
        for step in range(random.randrange(40, 120)):
            log = current(logs)
            action = random.randrange(12)
            if action == 0:
                epoch += 1
                offset = random.randrange(log.log_start, log.end_offset + 1)
                await logs.truncate(log, offset)
                log = current(logs)
                model = [pair for pair in model if pair[0] < log.end_offset]
                if log.end_offset > offset:
                    continue
            elif action == 1 and log.end_offset > log.log_start:
                log.high_watermark = log.end_offset
                log.advance_log_start(random.randrange(log.log_start, log.end_offset))
                assert not await logs.keep_starts([log])
            elif action == 2:
                log.roll(0)
            elif action == 3:
                log.high_watermark = log.end_offset
                await logs.retain(log)
            elif action == 4 and not random.randrange(3):
                epoch += 1
                if await logs.restart_at(log, log.end_offset + 5):
                    model = []
            log = current(logs)
            for number in range(random.randrange(4)):
                model.append((log.end_offset, b"step %d %d" % (step, number)))
                append(log, [b"step %d %d" % (step, number)], epoch=epoch)
            limit.limit_bytes += random.randrange(150)
            await trio.sleep(random.choice([0, 0, 0.2]))
        limit.limit_bytes = 1 << 60
        await trio.sleep(10)
        moved = current(logs)
        assert moved.disk is second
        expected = [pair for pair in model if pair[0] >= moved.log_start]
        assert content(moved) == expected
        start, end, entries = moved.log_start, moved.end_offset, moved.epochs.entries()
        await logs.flush(moved, indexes=True)
        assert not await logs.keep_starts([moved])
        survivors = [second.power_loss(Random(n)) for n in range(3)] + [second.after_kill()]
    for survivor in survivors:
        async with running(SimDisk(), survivor) as logs:
            log = current(logs)
            assert (log.log_start, log.end_offset) == (start, end)
            assert content(log) == expected
            assert log.epochs.entries() == entries or end == start


@pytest.mark.parametrize("seed", range(40))
async def test_power_loss_during_a_move_keeps_what_was_synced(autojump_clock, seed: int) -> None:
    """With ``flush.messages=1`` every acknowledged record survives, in whichever directory."""
    random = Random(seed)
    first, second = SimDisk(), SimDisk()
    config = attrs.evolve(CONFIG, flush_messages=1)
    crashing = random.choice([first, second])
    synced: list[tuple[int, bytes | None]] = []
    with suppress(BaseExceptionGroup):
        async with running(first, second, config=config) as logs:
            log = create(logs, config)
            fill(log, 5)
            await logs.flush(log)
            synced = content(log)
            crashing.changes_left = random.randrange(60)
            logs.moves.request(log, logs.directories[1])
            for number in range(60):
                log = current(logs)
                append(log, [b"later %d" % number])
                log.high_watermark = log.end_offset
                with suppress(KafkaStorageError):
                    await logs.flush(log)
                    synced = content(current(logs))
                for _ in range(random.randrange(5)):
                    await trio.lowlevel.checkpoint()
            await trio.sleep(100)
    first.changes_left = second.changes_left = None
    for number in range(4):
        disks = first.power_loss(Random(number)), second.power_loss(Random(number))
        async with running(*disks, config=config) as logs:
            assert content(current(logs))[: len(synced)] == synced


async def test_move_to_the_own_directory_ends_the_move(autojump_clock) -> None:
    limit = Limit(is_over=True)
    async with running(SimDisk(), SimDisk(), rules=MoveRules(throttle=limit)) as logs:
        log = create(logs)
        fill(log)
        first, second = logs.directories
        logs.moves.request(log, second)
        await trio.sleep(1)
        assert list(second.futures.values()) != []
        logs.moves.request(log, second)
        assert partitions(disk_of(second)) == ["t-0-future"]
        logs.moves.request(log, first)
        assert not second.futures
        await trio.sleep(1)
        assert partitions(disk_of(second)) == ["t-0-delete"]
        await trio.sleep(100)
        assert partitions(disk_of(second)) == []
        assert current(logs) is log


async def test_request_for_a_third_directory_replaces_the_move(autojump_clock) -> None:
    limit = Limit(is_over=True)
    async with running(SimDisk(), SimDisk(), SimDisk(), rules=MoveRules(throttle=limit)) as logs:
        log = create(logs)
        fill(log)
        before = content(log)
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        logs.moves.request(log, logs.directories[2])
        await trio.sleep(1)
        assert [bool(d.futures) for d in logs.directories] == [False, False, True]
        limit.is_over = False
        await trio.sleep(100)
        assert current(logs).disk is logs.directories[2].disk
        assert content(current(logs)) == before
        assert partitions(disk_of(logs.directories[1])) == []


async def test_deleted_partition_takes_its_future_replica_along(autojump_clock) -> None:
    async with running(SimDisk(), SimDisk(), rules=MoveRules(throttle=Limit(True))) as logs:
        log = create(logs)
        fill(log)
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        logs.delete_soon(log)
        await trio.sleep(100)
        assert partitions(disk_of(logs.directories[0])) == []
        assert partitions(disk_of(logs.directories[1])) == []


async def test_restart_resumes_a_move(autojump_clock) -> None:
    first, second = SimDisk(), SimDisk()
    limit = Limit()
    async with running(first, second, rules=MoveRules(throttle=limit)) as logs:
        log = create(logs)
        fill(log)
        before = content(log)
        limit.limit_bytes = 500
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        (future,) = logs.directories[1].futures.values()
        copied = future.end_offset
        assert 0 < copied < log.end_offset
        await logs.flush(future)
    async with running(first.after_kill(), second.after_kill()) as logs:
        (future,) = logs.directories[1].futures.values()
        assert future.end_offset == copied
        assert content(current(logs)) == before
        log = logs.create("t", ID, 0, CONFIG, SECOND)
        assert log.disk is logs.directories[0].disk, "the current replica has more records"
        await trio.sleep(100)
        assert current(logs).disk is logs.directories[1].disk
        assert content(current(logs)) == before


@pytest.mark.parametrize("assigned", [FIRST, SECOND])
async def test_abandoned_future_replica_is_used_where_the_metadata_assign_it(
    autojump_clock, assigned: bytes
) -> None:
    first, second = SimDisk(), SimDisk()
    limit = Limit()
    async with running(first, second, rules=MoveRules(throttle=limit)) as logs:
        log = create(logs)
        fill(log)
        limit.limit_bytes = 500
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        (future,) = logs.directories[1].futures.values()
        copied = content(future)
    replaced, target = SimDisk(), second.after_kill()
    async with running(replaced, target) as logs:
        log = logs.create("t", ID, 0, CONFIG, assigned)
        assert content(log) == (copied if assigned == SECOND else [])
        assert (log.disk is target) == (assigned == SECOND)
        await trio.sleep(100)
        assert current(logs).disk is target, "the move goes on"
        assert partitions(target) == ["t-0"]


@pytest.mark.parametrize("is_target", [False, True], ids=["source", "target"])
async def test_failed_directory_ends_the_move(autojump_clock, is_target: bool) -> None:
    first, second = SimDisk(), SimDisk()
    limit = Limit(is_over=True)
    async with running(first, second, rules=MoveRules(throttle=limit)) as logs:
        failures: list[str] = []
        logs.subscribe(on_offline=lambda directory: failures.append(directory.name))
        log = create(logs)
        fill(log)
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        failing = logs.directories[is_target]
        failing.disk.fail(OSError(errno.EIO, "broken"))
        failing.note_failure()
        limit.is_over = False
        await trio.sleep(100)
        assert failures == [failing.name]
        assert bool(logs.directories[1].futures) == (not is_target)
        assert current(logs) is log
        if is_target:
            append(log, [b"goes on"])
            with pytest.raises(KafkaStorageError):
                logs.moves.request(log, logs.directories[1])


async def test_full_target_delays_the_move(autojump_clock) -> None:
    first, second = SimDisk(), SimDisk(capacity=3_000)
    async with running(first, second) as logs:
        log = create(logs)
        fill(log, 60)
        before = content(log)
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(30)
        assert current(logs) is log
        append(log, [b"goes on"])
        second.capacity = 1 << 30
        await trio.sleep(30)
        assert current(logs).disk is second
        assert content(current(logs))[:-1] == before


async def test_log_moves_to_a_slow_directory(autojump_clock) -> None:
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        fill(log)
        before = content(log)
        second.slow = True
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(30)
        assert current(logs).disk is second
        assert content(current(logs)) == before


async def test_moved_log_still_rejects_a_repeated_batch(autojump_clock) -> None:
    """The producer's batch is deleted; only a snapshot has its sequence number."""
    async with running(SimDisk(), SimDisk()) as logs:
        log = create(logs)
        sent = append(log, [b"idempotent"], producer_id=7, producer_epoch=0, base_sequence=0)
        fill(log)
        log.advance_log_start(20)
        await logs.retain(log)
        assert log.segments[0].base_offset > sent.last_offset
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        moved = current(logs)
        again = append(moved, [b"idempotent"], producer_id=7, producer_epoch=0, base_sequence=0)
        assert again.is_duplicate
        await logs.flush(moved, indexes=True)
        survivor = disk_of(logs.directories[1]).after_kill()
    async with running(SimDisk(), survivor) as logs:
        log = current(logs)
        again = append(log, [b"idempotent"], producer_id=7, producer_epoch=0, base_sequence=0)
        assert again.is_duplicate


async def test_controller_knows_the_target_before_the_switch(autojump_clock) -> None:
    assigned, moved, given_up = trio.Event(), list[bool](), list[PartitionLog]()

    async def wait_assigned(log: PartitionLog, directory: LogDirectory) -> None:
        await assigned.wait()

    rules = MoveRules(
        wait_assigned=wait_assigned,
        on_moved=lambda old, new: moved.append(assigned.is_set()),
        on_given_up=given_up.append,
    )
    async with running(SimDisk(), SimDisk(), rules=rules) as logs:
        log = create(logs)
        fill(log)
        first, second = logs.directories
        logs.moves.request(log, second)
        assert logs.moves.directory_of(log) is first
        await trio.sleep(10)
        assert current(logs) is log
        assert logs.moves.directory_of(log) is second
        logs.moves.request(log, first)
        await trio.sleep(1)
        assert logs.moves.directory_of(log) is first
        assert given_up == [log]
        logs.moves.request(log, second)
        await trio.sleep(10)
        append(log, [b"meanwhile"])
        assigned.set()
        await trio.sleep(10)
        assert moved == [True]
        assert len(content(current(logs))) == 31
        assert given_up == [log]


async def test_no_pass_cleans_a_log_during_its_move(autojump_clock) -> None:
    async with running(SimDisk(), SimDisk(), rules=MoveRules(throttle=Limit(True))) as logs:
        log = create(logs)
        fill(log)
        states = logs.services[log.disk].busy.cleaning
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(1)
        assert not states.may_clean(log)
        logs.moves.request(log, logs.directories[0])
        await trio.sleep(1)
        assert states.may_clean(log)


async def test_cleaned_part_and_gap_at_its_end_are_moved(autojump_clock) -> None:
    """Compaction may remove the last batches before the active segment."""
    config = attrs.evolve(CONFIG, cleanup_compact=True, cleanup_delete=False)
    first, second = SimDisk(), SimDisk()
    async with running(first, second, config=config) as logs:
        log = create(logs, config)
        fill(log, 12)
        log.roll(0)
        last = log.segments[-2]
        position = last.locate(log.end_offset - 1)
        assert position is not None
        last.file.truncate(position[0])
        last.cut(plan_cut(last, position[0], log.end_offset - 1))
        log.clean_state.clean_end = log.end_offset
        before = content(log)
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        moved = current(logs)
        assert moved.disk is second
        assert (content(moved), moved.end_offset) == (before, 12)
        append(moved, [b"next"])
        assert content(moved)[-1] == (12, b"next")
        assert moved.clean_state.clean_end == 12
    async with running(SimDisk(), second.after_kill(), config=config) as logs:
        assert current(logs).clean_state.clean_end == 12


async def test_move_does_not_begin_in_the_middle_of_a_swap_of_segments(autojump_clock) -> None:
    """Invariant 87: a copied value would not get the tombstone that the swap removes."""
    async with running(SimDisk(), SimDisk()) as logs:
        log = create(logs)
        fill(log)
        before = content(log)
        async with logs.services[log.disk].busy.claim(log, by_compaction=True):
            logs.moves.request(log, logs.directories[1])
            await trio.sleep(5)
            (future,) = logs.directories[1].futures.values()
            assert future.end_offset == 0
        await trio.sleep(10)
        assert current(logs) is future
        assert content(future) == before
