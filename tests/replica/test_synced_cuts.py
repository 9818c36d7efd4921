"""A follower that loses power after a truncation keeps no truncated batch behind newer ones.

The follower holds batches of epoch 4 that its leader lacks. The leader has batches of epoch 3 there
instead, so epochs would grow if old batches came back behind the new ones: neither recovery nor a
comparison of the last epoch with the leader's would find them.
"""

from random import Random

import pytest
import trio
import trio.testing

from kwire.log.config import LogConfig
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.replica.fetcher.leader_fetcher import LeaderFetcher
from kwire.replica.partition import Partition
from simulation.disk import PAGE, SimDisk
from tests.support.log.batches import append, content, encode
from tests.support.log.restart import reopen
from tests.support.replica.leader import Answer, Leader, following

SEEDS = range(40)
VALUE = b"." * (PAGE - 72)
"""A value whose batch fills a page, so that each batch survives a power loss or not."""
OLD, NEW = b"old" + VALUE, b"new" + VALUE
CONFIG = LogConfig()
ROLLING = LogConfig(segment_bytes=2 * PAGE)


def truncate_to(epoch: int, end_offset: int) -> Answer:
    """Return the answer to a follower whose log diverges from the leader's."""
    diverging = Answer.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return Answer(partition_index=0, high_watermark=0, diverging_epoch=diverging, records=b"")


def new_records(offset: int) -> Answer:
    """Return an answer with one record of epoch 3."""
    records = encode([NEW], base_offset=offset, leader_epoch=3)
    return Answer(partition_index=0, high_watermark=0, records=records)


def answer(offset: int) -> Answer | None:
    """Answer a follower: the leader has the offsets below 2 in epoch 1, and offsets 2 to 3 in 3."""
    return truncate_to(3, 4) if offset >= 6 else new_records(offset) if 2 <= offset < 4 else None


async def fill(log: PartitionLog, logs: LogManager) -> None:
    """Append six records, the last four in epoch 4, and make them durable."""
    for offset in range(6):
        append(log, [OLD], epoch=1 if offset < 2 else 4)
    await logs.flush(log, indexes=True)


def check_survivors(disk: SimDisk, config: LogConfig) -> None:
    """Check the log after losses of power, which keep any of the unsynced pages."""
    for seed in SEEDS:
        log = reopen(disk.power_loss(Random(seed)), config)
        values = [value or b"" for _, value in content(log)]
        assert values == sorted(values, reverse=True), seed


def names_in(log: PartitionLog) -> list[bytes]:
    """Return how each record's value begins."""
    return [(value or b"")[:3] for _, value in content(log)]


def fetch_again(partition: Partition, fetcher: LeaderFetcher) -> None:
    """Let the fetcher begin anew, as after a change of the partition's role."""
    fetcher.remove(partition)
    fetcher.add(partition)


@pytest.mark.parametrize("config", [CONFIG, ROLLING], ids=["one segment", "several segments"])
async def test_truncated_batches_do_not_come_back_behind_newer_ones(
    autojump_clock: trio.testing.MockClock, config: LogConfig
) -> None:
    """Invariants 23 and 78: the truncation is durable before anything is appended behind it."""
    disk, leader = SimDisk(), Leader(lambda offset: None)
    async with following(leader, config, disk=disk) as (partition, fetcher, logs):
        await fill(partition.log, logs)
        leader.answer = answer
        fetch_again(partition, fetcher)
        await trio.sleep(2)
        assert names_in(partition.log) == [b"old"] * 2 + [b"new"] * 2
        check_survivors(disk, config)


async def test_batches_cut_by_a_recovery_do_not_come_back_behind_newer_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariants 23 and 78: the broker is killed, so what its log lost may be on the disk still."""
    disk = SimDisk()
    async with following(Leader(lambda offset: None), disk=disk) as (partition, _, logs):
        await fill(partition.log, logs)
        await trio.sleep(100)  # The checkpoints are written.
        partition.log.truncate_to(2)
    disk = disk.after_kill()
    async with following(Leader(answer), disk=disk) as (partition, _, _):
        await trio.sleep(2)
        assert names_in(partition.log) == [b"old"] * 2 + [b"new"] * 2
        check_survivors(disk, CONFIG)


async def test_log_that_begins_inside_a_batch_syncs_what_it_removed_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariants 23 and 78: the removed segment's name could come back with the power."""
    batch = encode([b"new"] * 10, leader_epoch=3)
    inside = Answer(partition_index=0, high_watermark=10, log_start_offset=5, records=batch)
    disk = SimDisk()
    leader = Leader(lambda offset: inside if offset == 5 else None, earliest=5)
    async with following(leader, disk=disk) as (partition, _, logs):
        assert await logs.restart_at(partition.log, 5)
        await logs.flush(partition.log, indexes=True)
        before = len(disk.calls)
        await trio.sleep(2)
        assert (partition.log.log_start, partition.log.end_offset) == (5, 10)
        writes = [n for n, call in enumerate(disk.calls) if call == ("write", f"t-0/{0:020}.log")]
        assert ("sync_directory", "t-0") in disk.calls[before : writes[0]]
