"""Flushed data after the loss of power: records, indexes, epochs, producers and names are whole."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import attrs
import pytest
import trio

from kwire.log.aborted_transactions import find_aborted
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.flush import Flush
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import Killed, SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import (
    TIME_MS,
    append,
    content,
    end_transaction,
    max_timestamp,
    offset_for_timestamp,
)
from tests.support.log.manager import ID
from tests.support.log.threads import at_once

SEEDS = range(12)
CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=100,
    flush_messages=1,
    retention_ms=-1,
    producer_id_expiration_ms=1 << 50,
)


@attrs.define
class LogState:
    """The observable state of a log."""

    records: list[tuple[int, bytes | None]]
    epochs: list[tuple[int, int]]
    producers: list[tuple[int, int, int, int]]
    aborted: list[AbortedTxn]
    times: list[tuple[int, int] | None]
    youngest: tuple[int, int]
    starts: list[int]


def state_of(log: PartitionLog) -> LogState:
    return LogState(
        content(log),
        log.epochs.entries(),
        sorted((p.producer_id, p.epoch, p.last_sequence, p.open_from) for p in log.producers.all()),
        find_aborted(log.segments, 0, log.end_offset),
        [offset_for_timestamp(log, TIME_MS + n) for n in range(0, 70, 3)],
        max_timestamp(log),
        [segment.base_offset for segment in log.segments],
    )


async def fill(logs: LogManager, log: PartitionLog, steps: int, first: int = 0) -> None:
    """Append transactions of three producers in new epochs; sync after each if it is due."""
    for step in range(first, first + steps):
        producer, epoch = step % 3, 1 + step // 9
        if step % 5 == 4 and log.producers.get(producer) is not None:
            end_transaction(log, producer, commit=step % 10 == 4, epoch=epoch)
        else:
            state = log.producers.get(producer)
            append(
                log,
                [b"%d" % step] * 2,
                epoch=epoch,
                timestamp_ms=TIME_MS + (step * 7) % 64,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0 if state is None else state.last_sequence + 1,
                transactional=True,
            )
        if log.must_flush:
            await logs.flush(log, log.end_offset)


@attrs.define
class Broker:
    """Runs logs on a disk, whose power may fail."""

    disk: SimDisk
    config: LogConfig = CONFIG

    async def run(
        self, work: Callable[[LogManager], object], *, stop: bool, settle_s: float = 0.0
    ) -> None:
        logs = LogManager([LogDirectory(self.disk, "dir")], Clock(), threads=DiskThreads(at_once))
        await logs.open(lambda topic: self.config)
        async with trio.open_nursery() as nursery:
            await nursery.start(logs.run)
            result = work(logs)
            if result is not None:
                await result  # type: ignore[misc]
            await trio.sleep(settle_s)
            nursery.cancel_scope.cancel()
        if stop:
            await logs.close()

    def lose_power(self, seed: int) -> "Broker":
        return Broker(self.disk.power_loss(Random(seed)), self.config)

    async def read_state(self) -> LogState:
        """Start a broker on the disk, and return the state of its log."""
        states: list[LogState] = []
        broker = Broker(self.disk, self.config)

        def read(logs: LogManager) -> None:
            log = logs.get("t", 0)
            assert log is not None
            states.append(state_of(log))

        await broker.run(read, stop=False)
        return states[0]


async def delayed_flushes(call: Callable[[], None]) -> None:
    """Call like a thread, but flush only after a long time."""
    if isinstance(getattr(call, "__self__", None), Flush):
        await trio.sleep(1000)
    await at_once(call)


@pytest.mark.parametrize("steps", [20, 60])
@pytest.mark.parametrize(
    ("stop", "settle_s"),
    [
        pytest.param(True, 0.0, id="after a clean stop"),
        pytest.param(False, 100.0, id="with checkpoints"),
        pytest.param(False, 0.0, id="without checkpoints"),
    ],
)
async def test_log_that_syncs_each_record_loses_none_with_the_power(
    autojump_clock, steps: int, stop: bool, settle_s: float
) -> None:
    """Invariants 78, 64, 51 and 85: the test loses every page that the log did not sync."""
    broker = Broker(SimDisk())
    before: list[LogState] = []

    async def work(logs: LogManager) -> None:
        log = logs.create("t", ID, 0, CONFIG)
        await fill(logs, log, steps)
        assert log.flush_state.recovery_point == log.end_offset
        before.append(state_of(log))

    await broker.run(work, stop=stop, settle_s=settle_s)
    for seed in SEEDS:
        assert await broker.lose_power(seed).read_state() == before[0], seed


async def test_power_loss_after_a_clean_restart_without_changes(autojump_clock) -> None:
    """Invariants 78 and 81: without the marker a recovery reads the records that were synced."""
    broker = Broker(SimDisk())
    before: list[LogState] = []

    async def work(logs: LogManager) -> None:
        log = logs.create("t", ID, 0, CONFIG)
        await fill(logs, log, 45)
        before.append(state_of(log))

    await broker.run(work, stop=True)
    await broker.run(lambda logs: None, stop=False, settle_s=100)
    for seed in SEEDS:
        assert await broker.lose_power(seed).read_state() == before[0], seed
    broker = Broker(broker.disk.after_kill())
    await broker.run(lambda logs: None, stop=True)
    for seed in SEEDS:
        assert await broker.lose_power(seed).read_state() == before[0], seed


async def test_clean_stop_syncs_unflushed_records(autojump_clock) -> None:
    """Invariant 78: the marker of a clean stop covers every file."""
    broker = Broker(SimDisk(), attrs.evolve(CONFIG, flush_messages=1 << 40))
    before: list[LogState] = []

    async def work(logs: LogManager) -> None:
        log = logs.create("t", ID, 0, broker.config)
        await fill(logs, log, 45)
        before.append(state_of(log))

    await broker.run(work, stop=True)
    for seed in SEEDS:
        assert await broker.lose_power(seed).read_state() == before[0], seed


async def test_clean_stop_leaves_no_file_to_the_page_cache(autojump_clock) -> None:
    """Invariants 78 and 81: a start after it rebuilds no index, whatever the power took."""
    broker = Broker(SimDisk(), attrs.evolve(CONFIG, flush_messages=1 << 40))

    async def work(logs: LogManager) -> None:
        await fill(logs, logs.create("t", ID, 0, broker.config), 45)

    def files(disk: SimDisk) -> dict[str, bytes]:
        return {e.name: disk.read(f"t-0/{e.name}") for e in disk.entries("t-0")}

    await broker.run(work, stop=True)
    before = files(broker.disk)
    assert any(name.endswith(".index") and content for name, content in before.items())
    for seed in SEEDS:
        assert files(broker.lose_power(seed).disk) == before, seed


@pytest.mark.parametrize("changes", range(10))
async def test_power_loss_while_the_indexes_of_a_closed_segment_are_written(
    autojump_clock, changes: int
) -> None:
    """Invariants 64 and 78: every record was synced and checkpointed before the roll."""
    disk = SimDisk()
    before: list[LogState] = []
    survivors: list[SimDisk] = []

    async def work(logs: LogManager) -> None:
        log = logs.create("t", ID, 0, CONFIG)
        await fill(logs, log, 30)
        await trio.sleep(100)
        logs.threads.stand_in = delayed_flushes
        assert log.segments.active.indexes.aborted.entries()
        log.roll(TIME_MS)
        before.append(state_of(log))
        flush = log.flush_state.start()
        assert flush is not None
        disk.changes_left = changes
        with suppress(Killed):
            flush.run()
        disk.changes_left = None
        survivors.extend(disk.power_loss(Random(seed)) for seed in range(40))
        log.flush_state.end(flush)

    await Broker(disk).run(work, stop=False)
    for survivor in survivors:
        actual = await Broker(survivor).read_state()
        before[0].starts = actual.starts  # The new segment was empty.
        assert actual == before[0]


async def test_epochs_after_a_restart_survive_power_loss(autojump_clock) -> None:
    """Invariant 85: the epoch file of the first run is whole, but out of date."""
    broker = Broker(SimDisk())
    before: list[LogState] = []

    async def work(logs: LogManager) -> None:
        log = logs.get("t", 0) or logs.create("t", ID, 0, CONFIG)
        await fill(logs, log, 30, first=0 if not log.end_offset else 30)
        before.append(state_of(log))

    await broker.run(work, stop=True)
    broker = Broker(broker.disk.after_kill())
    broker.disk.inode("t-0/leader-epoch-checkpoint").sync()  # The kernel may do so at any time.
    await broker.run(work, stop=False, settle_s=100)
    assert len(before[1].epochs) > len(before[0].epochs)
    for seed in SEEDS:
        assert await broker.lose_power(seed).read_state() == before[1], seed


@pytest.mark.parametrize("synced", [True, False])
async def test_deleted_segments_stay_deleted_after_power_loss(autojump_clock, synced: bool) -> None:
    """Invariants 39 and 83: the DeleteRecords was answered and its segments removed."""
    disk = SimDisk()
    survivors: list[SimDisk] = []
    start = 0

    async def work(logs: LogManager) -> None:
        nonlocal start
        log = logs.create("t", ID, 0, CONFIG)
        await fill(logs, log, 60)
        log.high_watermark = log.end_offset
        await trio.sleep(1)  # All flushes have ended.
        if not synced:
            logs.threads.stand_in = delayed_flushes
        log.advance_log_start(log.segments[3].base_offset)
        assert not await logs.keep_starts([log])
        start = log.log_start
        assert await logs.retain(log) == 3
        if synced:
            await trio.sleep(1)
        assert not await logs.keep_starts([log])
        survivors.extend(disk.power_loss(Random(seed)) for seed in SEEDS)

    await Broker(disk).run(work, stop=False)
    for survivor in survivors:
        assert (await Broker(survivor).read_state()).records[0][0] == start


async def test_stale_epoch_file_is_corrected_by_recovery(autojump_clock) -> None:
    """Invariant 85: a follower truncated an epoch and appended an older one."""
    disk = SimDisk()
    broker = Broker(disk)

    async def work(logs: LogManager) -> None:
        log = logs.create("t", ID, 0, CONFIG)
        for epoch in (1, 1, 3):
            append(log, [b"v"], epoch=epoch)
        await logs.flush(log)
        await logs.truncate(log, 1)
        for epoch in (2, 4):
            append(log, [b"w"], epoch=epoch)
        await logs.flush(log)
        assert log.epochs.entries() == [(1, 0), (2, 1), (4, 2)]
        disk.write("t-0/leader-epoch-checkpoint", b"0\n2\n1 0\n3 2\n")

    await broker.run(work, stop=False)
    actual = await Broker(disk.after_kill()).read_state()
    assert actual.epochs == [(1, 0), (2, 1), (4, 2)]


async def test_recovery_reads_records_appended_after_a_truncation(autojump_clock) -> None:
    """Invariants 78 and 82: no checkpoint covers the offsets of the truncated records."""
    disk = SimDisk()
    config = attrs.evolve(CONFIG, flush_messages=1 << 40)
    survivors: list[SimDisk] = []
    appended: set[tuple[int, bytes | None]] = set()

    async def work(logs: LogManager) -> None:
        log = logs.create("t", ID, 0, config)
        for n in range(40):
            append(log, [b"old %d" % n + b"." * 60])
        await logs.flush(log)
        await trio.sleep(100)
        appended.update(content(log))
        assert await logs.truncate(log, 5)
        logs.threads.stand_in = delayed_flushes
        for n in range(35):
            append(log, [b"new %d" % n + b"." * 60])
        appended.update(content(log))
        survivors.extend(disk.power_loss(Random(seed)) for seed in SEEDS)

    await Broker(disk, config).run(work, stop=False)
    for survivor in survivors:
        actual = (await Broker(survivor, config).read_state()).records
        assert len(actual) >= 5
        assert [offset for offset, _ in actual] == list(range(len(actual)))
        assert appended.issuperset(actual)
