"""A follower whose repair fails leaves the ISR and copies its log anew, if that loses nothing."""

import attrs
import pytest
import trio

from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog
from kwire.replica.partition import Partition, Recopy
from simulation.disk import SimDisk
from tests.support.log.batches import append
from tests.support.log.manager import ID, OTHER
from tests.support.replica.damaged import (
    CONFIG,
    Cluster,
    Image,
    State,
    Topic,
    cluster,
    fill,
    filled_log,
)

FOLLOWER = State(leader=2, leader_epoch=5)
PATIENCE_S = 20


def replace_epochs(log: PartitionLog) -> None:
    """Replace most records by others of a later epoch."""
    log.truncate_to(10)
    for number in range(5, 40):
        append(log, [b"one of %d" % number, b"two of %d" % number], epoch=7)
    log.high_watermark = log.end_offset


async def damage(c: Cluster) -> int:
    """Let broker 1 follow, with damage whose batch no other broker has in its epoch; return it.

    The others were elected uncleanly once, as it were: a repair accepts none of their batches.
    """
    for other in c.others.values():
        replace_epochs(other.log)
    c.hosted.partition.follow(2, 5)
    c.rot(70)
    await c.scrub()
    return c.log.segments[1].base_offset


def see(c: Cluster, *states: State) -> None:
    """Let broker 1 learn other states of its partitions."""
    topics = {topic: Topic({0: state}) for topic, state in zip((ID, OTHER), states, strict=False)}
    c.hosted.image = Image(topics, c.hosted.image.brokers)


async def test_follower_that_cannot_be_repaired_leaves_the_isr_first(autojump_clock) -> None:
    """Invariant 22: it may remove records once no clean election can choose it."""
    async with cluster(state=FOLLOWER) as c:
        offset = await damage(c)
        await trio.sleep(1)
        assert c.hosted.partition.recopy is None
        await trio.sleep(PATIENCE_S)
        plan = c.hosted.partition.recopy
        assert isinstance(plan, Recopy)
        assert (plan.offset, plan.may_cut) == (offset, False)
        see(c, attrs.evolve(FOLLOWER, isr=(2, 3), elr=(1,)))
        await trio.sleep(5)
        assert not plan.may_cut
        see(c, attrs.evolve(FOLLOWER, isr=(2, 3)))
        await trio.sleep(5)
        assert plan.may_cut
        assert c.hosted.partition.recopy is plan


@pytest.mark.parametrize(
    ("state", "config"),
    [
        pytest.param(attrs.evolve(FOLLOWER, leader=1), CONFIG, id="the leader"),
        pytest.param(attrs.evolve(FOLLOWER, isr=(1, 2)), CONFIG, id="one other in-sync replica"),
        pytest.param(attrs.evolve(FOLLOWER, leader_epoch=6), CONFIG, id="another leader epoch"),
        pytest.param(
            FOLLOWER, attrs.evolve(CONFIG, min_insync_replicas=3), id="min.insync.replicas"
        ),
    ],
)
async def test_replica_that_is_needed_keeps_its_log(
    autojump_clock, state: State, config: LogConfig
) -> None:
    async with cluster(config, state=state) as c:
        await damage(c)
        await trio.sleep(PATIENCE_S)
        assert c.hosted.partition.recopy is None


async def test_follower_keeps_its_log_if_the_leader_is_damaged_too(autojump_clock) -> None:
    async with cluster(state=FOLLOWER) as c:
        offset = await damage(c)
        other = c.others[2].log
        segment = other.segments[other.segments.index_of(offset)]
        located = segment.locate(offset)
        assert located is not None
        assert isinstance(other.disk, SimDisk)
        other.disk.rot(segment.file.path, located[0] + 70)
        await trio.sleep(PATIENCE_S)
        assert c.hosted.partition.recopy is None


async def test_plan_is_dropped_when_another_replica_falls_out_of_sync(autojump_clock) -> None:
    async with cluster(state=FOLLOWER) as c:
        await damage(c)
        await trio.sleep(PATIENCE_S)
        assert c.hosted.partition.recopy is not None
        see(c, attrs.evolve(FOLLOWER, isr=(1, 2)))
        await trio.sleep(5)
        assert c.hosted.partition.recopy is None


async def test_one_partition_at_a_time_is_copied_anew(autojump_clock) -> None:
    """The next one waits until this broker is in sync again."""
    async with cluster(state=FOLLOWER) as c:
        log = c.logs.create("u", OTHER, 0, CONFIG)
        fill(log)
        other = Partition("u", 0, OTHER, log, is_confirmed=True)
        other.follow(2, 5)
        c.hosted.more["u"] = other
        for number, broker in c.others.items():
            broker.more[OTHER] = filled_log(f"u{number}")
            replace_epochs(broker.more[OTHER])
        c.rot(70, log=log)
        await damage(c)
        see(c, FOLLOWER, FOLLOWER)
        await trio.sleep(PATIENCE_S)
        plans = [partition for partition in (c.hosted.partition, other) if partition.recopy]
        assert len(plans) == 1
        is_first = plans[0] is c.hosted.partition
        out = attrs.evolve(FOLLOWER, isr=(2, 3))
        see(c, *((out, FOLLOWER) if is_first else (FOLLOWER, out)))
        plans[0].recopy = None  # The fetcher has cut the log.
        await c.logs.truncate(plans[0].log, plans[0].log.segments[1].base_offset)
        second = other if is_first else c.hosted.partition
        await trio.sleep(600)
        assert second.recopy is None
        see(c, FOLLOWER, FOLLOWER)
        await trio.sleep(600)
        assert second.recopy is not None
