"""The memory of a deleted log is freed without the garbage collector.

A node rarely runs a full collection (docs/decisions/0030), so neither cycles nor waiting tasks may
keep what a log has in memory.
"""

import gc
from collections.abc import Iterator

import attrs
import pytest
import trio

from kwire.log.epochs import LeaderEpochs
from kwire.log.log_writer import LogWriter
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.segments.segment import Segment
from simulation.disk import SimDisk
from tests.support.log.batches import append
from tests.support.log.manager import ID, config_of, running

PARTS = (PartitionLog, LogWriter, LeaderEpochs, Segment)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def existing() -> list[str]:
    return [type(part).__name__ for part in gc.get_objects() if isinstance(part, PARTS)]


def fill(log: PartitionLog) -> None:
    for number in range(10):
        append(log, [b"%d" % number], epoch=number)
    assert len(log.segments) > 1


async def use(logs: LogManager, topic: str) -> None:
    """Let every task of the directory work on a new log."""
    config = attrs.evolve(config_of(topic), flush_ms=1_000, cleanup_compact=topic == "compacted")
    log = logs.create(topic, ID, 0, config)
    fill(log)
    await logs.flush(log)
    await logs.truncate(log, log.end_offset - 1)
    append(log, [b"last"], epoch=10)


@pytest.mark.parametrize("topic", ["t", "compacted"])
@pytest.mark.parametrize("is_checkpointed", [True, False])
async def test_deleted_log_is_freed(
    autojump_clock, no_collector, topic: str, is_checkpointed: bool
) -> None:
    before = existing()
    async with running(SimDisk()) as logs:
        await use(logs, topic)
        await trio.sleep(100 if is_checkpointed else 0)
        await logs.delete(topic, 0)
        await trio.sleep(100)
        assert existing() == before


async def test_log_of_an_earlier_run_is_freed(autojump_clock, no_collector) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        await use(logs, "t")
    gc.collect()
    before = existing()
    async with running(disk.after_kill()) as logs:
        assert len(existing()) > len(before)
        await logs.delete("t", 0)
        await trio.sleep(100)
        assert existing() == before
