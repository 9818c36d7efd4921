"""A follower whose repair fails leaves the ISR and copies its log anew, if that loses nothing."""

import attrs
import pytest
import trio

from kwire.log.config import LogConfig
from kwire.replica.partition import Recopy
from simulation.disk import SimDisk
from tests.support.log.batches import append
from tests.support.replica.damaged import CONFIG, Cluster, Image, State, Topic, cluster

FOLLOWER = State(leader=2, leader_epoch=5)
PATIENCE_S = 20


async def damage(c: Cluster, epoch: int = 7) -> int:
    """Let broker 1 follow, with damage whose batch no other broker has in its epoch; return it.

    The others were elected uncleanly once, as it were: a repair accepts none of their batches.
    """
    for other in c.others.values():
        other.log.truncate_to(10)
        for number in range(5, 40):
            append(other.log, [b"one of %d" % number, b"two of %d" % number], epoch=epoch)
        other.log.high_watermark = other.log.end_offset
    c.hosted.partition.follow(2, 5)
    c.rot(70)
    await c.scrub()
    return c.log.segments[1].base_offset


def see(c: Cluster, state: State) -> None:
    """Let broker 1 learn another state of its partition."""
    c.hosted.image = Image({c.hosted.partition.topic_id: Topic({0: state})}, c.hosted.image.brokers)


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
