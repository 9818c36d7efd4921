"""The loop and its threads in random orders, with kills and losses of power."""

import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from kwire.log.config import LogConfig
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from simulation.disk import SimDisk
from simulation.log.sim import COMPACTED, LogSimFailure, Model, judge, simulate
from simulation.scheduler import deterministic_trio
from tests.support.log.batches import append, content
from tests.support.log.manager import ID, OTHER, config_of, create_deleted_from, create_log, running

SEEDS = int(os.environ.get("KWIRE_SIM_SEEDS", "40"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_acknowledged_record_is_lost(seed: int) -> None:
    """Invariants 39, 40, 51, 64, 78, 82, 83 and 85."""
    logging.disable(logging.CRITICAL)
    try:
        simulate(seed)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_compaction_loses_no_key_beside_everything_else(seed: int) -> None:
    """Invariants 20, 83 and 87: passes beside appends, cuts, deletions and losses of power."""
    logging.disable(logging.CRITICAL)
    try:
        simulate(seed, steps=800, config=COMPACTED)
    finally:
        logging.disable(logging.NOTSET)


def simulate_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed, steps=800, config=COMPACTED)


def test_truncation_that_does_not_claim_its_log_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was a run without an end: who waits for such a cut waits for nothing."""

    claimed = BusyLogs.claim

    @asynccontextmanager
    async def claim(
        busy: BusyLogs, log: PartitionLog, *, by_compaction: bool = False
    ) -> AsyncIterator[None]:
        if by_compaction:
            async with claimed(busy, log, by_compaction=True):
                yield
        else:
            yield

    monkeypatch.setattr(BusyLogs, "claim", claim)
    with pytest.raises(LogSimFailure, match=r"seed \d, .*is cut without a claim"):
        simulate_all(range(10))  # Two in three show it.


def test_seed_replays_the_same_run() -> None:
    """Invariant 110: a failure can be reproduced."""
    from simulation.log import sim as log_sim

    runs = []
    for _ in range(2):
        clock = trio.testing.MockClock()
        sim = log_sim.LogSim(7, clock)
        with deterministic_trio(7):
            trio.run(sim.run, 100, clock=clock)
        runs.append((sim.trace, sim.disk.calls))
    assert runs[0] == runs[1]


async def test_recreated_topic_ignores_the_checkpoints_of_the_older_one(autojump_clock) -> None:
    """Invariants 40 and 82: the checkpoints still have the offsets of the older topic."""
    disk = SimDisk()
    async with running(disk) as logs:
        await create_deleted_from(logs, log_start=3, end_offset=5)
        await trio.sleep(100)
        await logs.delete("t", 0)
        again = logs.create("t", OTHER, 0, config_of("t"))
        for _ in range(5):
            append(again, [b"new"])
    async with running(disk.after_kill()) as logs:
        log = logs.create("t", OTHER, 0, config_of("t"))
        assert content(log) == [(n, b"new") for n in range(5)]
        assert log.flush_state.recovery_point == 0


@pytest.mark.parametrize("wait_s", [0, 100])
async def test_records_deleted_from_a_recreated_topic_stay_deleted(
    autojump_clock, wait_s: int
) -> None:
    """Invariant 39."""
    disk = SimDisk()
    survivors = []
    async with running(disk) as logs:
        append(await create_log(logs), [b"old"])
        await trio.sleep(100)
        await logs.delete("t", 0)
        log = logs.create("t", OTHER, 0, config_of("t"))
        for _ in range(5):
            append(log, [b"new"])
        log.high_watermark = 5
        await trio.sleep(wait_s)
        log.advance_log_start(2)
        assert not await logs.keep_starts([log])
        survivors = [disk.power_loss(Random(seed)) for seed in range(10)]
    for survivor in (*survivors, disk.after_kill()):
        async with running(survivor) as logs:
            log = logs.create("t", OTHER, 0, config_of("t"))
            assert content(log) == [(n, b"new") for n in range(2, 5)]
            await trio.sleep(100)
            assert names.NAMED_AGAIN not in {e.name for e in survivor.entries("t-0")}


@pytest.mark.parametrize("is_requested_after_cut", [True, False])
async def test_simulation_expects_no_deletion_of_records_that_replace_cut_ones(
    autojump_clock, is_requested_after_cut: bool
) -> None:
    """An acknowledgement for cut records says nothing about the records appended after the cut."""
    async with running(SimDisk()) as logs:
        log = await create_log(logs)
        model = Model(log, ID)
        earlier_cuts = len(model.cuts)
        model.start = 2
        model.cut(0)
        if is_requested_after_cut:
            earlier_cuts = len(model.cuts)
        for n in range(5):
            append(log, [b"0:new%d" % n])
            model.wrote(n, [b"0:new%d" % n])
        model.start = 4  # A later request, which is not acknowledged yet.
        model.acknowledge_deletion(2, earlier_cuts)
        if is_requested_after_cut:
            with pytest.raises(LogSimFailure, match="starts at 0 again"):
                judge(0, model, log, 0)
        else:
            judge(0, model, log, 0)


async def test_log_without_its_topic_id_becomes_a_stray(autojump_clock) -> None:
    """Invariant 40: it may belong to an older topic, deleted just before the power loss."""
    disk = SimDisk()
    async with running(disk) as logs:
        append(await create_log(logs), [b"old"])
    disk = disk.after_kill()
    disk.write("t-0/partition.metadata", bytes(40))
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig())
        assert log.end_offset == 0
        await trio.sleep(100)
        stray, current = sorted((e.name for e in disk.entries() if e.is_directory), key=len)[::-1]
        assert stray.endswith("-stray")
        assert current == "t-0"


async def test_rename_of_a_deleted_log_is_synced_before_its_files_are_removed(
    autojump_clock,
) -> None:
    """Invariant 83: else a power loss could leave a part of the log under its old name."""
    disk = SimDisk()
    async with running(disk) as logs:
        for partition in range(3):
            append(await create_log(logs, partition=partition), [b"v"])
            await logs.delete("t", partition)
        calls = len(disk.calls)
        await trio.sleep(100)
    kinds = [
        (kind, path) for kind, path in disk.calls[calls:] if kind in ("remove", "sync_directory")
    ]
    first = next(n for n, (kind, path) in enumerate(kinds) if kind == "remove")
    assert kinds[first - 1] == ("sync_directory", "")
    assert kinds.count(("sync_directory", "")) <= 4
