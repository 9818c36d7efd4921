"""Proposals of ISRs, and what becomes of them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.log.partition_log import create
from kwire.replica.completion import Completion
from kwire.replica.fetch_waits import FetchWaits
from kwire.replica.isr_changes import REQUEST_PARTITIONS, IsrChanges
from kwire.replica.leader import FollowerProgress, PartitionLeader
from kwire.replica.partition import Partition
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.handlers.broker import one_batch

TOPIC = b"t" * 16
LAG_MAX_S = 4.0
TopicAnswer = AlterPartitionResponse.TopicData
Answer = TopicAnswer.PartitionData


def refusal(code: int) -> Answer:
    return Answer(
        partition_index=0, error_code=code, leader_id=0, leader_epoch=0, partition_epoch=0
    )


def commit_of(isr: list[int], partition_epoch: int) -> Answer:
    return Answer(
        partition_index=0, leader_id=1, leader_epoch=7, isr=isr, partition_epoch=partition_epoch
    )


@attrs.define(eq=False)
class World:
    """A leader of one partition, and a controller that answers what a test says."""

    changes: IsrChanges
    partition: Partition
    leader: PartitionLeader
    proposals: list[set[int]]
    answer: Callable[[], Answer]

    def fetch(self, node: int, offset: int) -> None:
        now = trio.current_time()
        self.leader.on_fetched(node, offset=offset, log_start=0, now=now, broker_epoch=node)
        self.changes.on_fetched(self.partition, node)

    def publish(self) -> None:
        """Let the leader's metadata have its last change of the ISR."""
        leader = self.leader
        leader.on_isr_committed(leader.isr, leader.partition_epoch, trio.current_time())


def led_partition(
    isr: set[int], replicas: set[int], number: int = 0
) -> tuple[Partition, PartitionLeader]:
    disk, name = SimDisk(), f"t-{number}"
    disk.make_directory(name)
    log = create(disk, name, TopicPartition("t", number), now_ms=1)
    partition = Partition("t", number, TOPIC, log)
    leader = PartitionLeader.take_over(
        node=1,
        leader_epoch=7,
        partition_epoch=5,
        replicas=replicas,
        isr=isr,
        log=log,
        log_end=0,
        min_isr=1,
        now=trio.current_time(),
        lag_max=LAG_MAX_S,
    )
    partition.lead(leader, trio.current_time())
    return partition, leader


@asynccontextmanager
async def leading(isr: set[int], replicas: set[int]) -> AsyncIterator[World]:
    partition, leader = led_partition(isr, replicas)
    proposals: list[set[int]] = []

    async def alter(request: AlterPartitionRequest) -> AlterPartitionResponse:
        await trio.sleep(0.01)
        (data,) = request.topics[0].partitions
        assert (request.broker_id, request.broker_epoch) == (1, 70)
        proposals.append({member.broker_id for member in data.new_isr_with_epochs})
        return AlterPartitionResponse(
            topics=[TopicAnswer(topic_id=TOPIC, partitions=[world.answer()])]
        )

    completion = Completion(trio.current_time, FetchWaits(trio.current_time))
    changes = IsrChanges(1, lambda: 70, alter, completion, trio.current_time, LAG_MAX_S)
    world = World(changes, partition, leader, proposals, lambda: commit_of([1, 2, 3], 6))
    async with trio.open_nursery() as nursery:
        await nursery.start(changes.run)
        changes.on_role_changed(partition)
        yield world
        nursery.cancel_scope.cancel()


def append(world: World) -> None:
    data = one_batch()
    world.partition.log.append_follower(data, 1)
    world.leader.on_appended(world.partition.log.end_offset, trio.current_time())


async def test_follower_that_caught_up_joins(autojump_clock: trio.testing.MockClock) -> None:
    """Invariant 35."""
    async with leading({1, 2}, {1, 2, 3}) as world:
        world.fetch(3, 0)
        await trio.sleep(0.1)
        assert world.proposals == [{1, 2, 3}]
        assert world.leader.isr == {1, 2, 3}
        assert world.leader.pending_isr is None


async def test_late_follower_leaves(autojump_clock: trio.testing.MockClock) -> None:
    """Invariant 35: its leader commits without it, once the controller has agreed."""
    async with leading({1, 2, 3}, {1, 2, 3}) as world:
        world.answer = lambda: commit_of([1, 2], 6)
        append(world)
        for _ in range(100):
            world.fetch(2, 1)
            await trio.sleep(0.1)
        assert world.proposals == [{1, 2}]
        world.publish()
        assert world.partition.high_watermark == 1


async def test_answer_that_overtakes_a_new_minimum_commits_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 22: by min.insync.replicas=2, the controller makes 2 eligible as it leaves."""
    async with leading({1, 2}, {1, 2}) as world:
        world.answer = lambda: commit_of([1], 6)
        append(world)
        await trio.sleep(60)
        assert world.leader.isr == {1}
        assert world.partition.high_watermark == 0
        world.leader.min_isr = 2
        world.publish()
        assert world.partition.high_watermark == 0


@pytest.mark.parametrize(
    "code", [errors.InvalidRequest.code, errors.IneligibleReplica.code, errors.NotController.code]
)
async def test_refused_proposal_does_not_freeze_the_isr(
    code: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 35: a removed replica was proposed; later another one hangs and has to leave."""
    async with leading({1, 2}, {1, 2, 3}) as world:
        world.answer = lambda: refusal(code)
        world.fetch(3, 0)
        await trio.sleep(1)
        world.leader.on_replicas_changed({1, 2})
        world.answer = lambda: commit_of([1], 7)
        append(world)
        await trio.sleep(60)
        assert world.leader.isr == {1}
        world.publish()
        assert world.partition.high_watermark == 1


async def test_answers_that_say_try_again_are_not_tried_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with leading({1, 2}, {1, 2, 3}) as world:
        world.answer = lambda: refusal(errors.NotController.code)
        world.fetch(3, 0)
        await trio.sleep(5)
        assert 50 < len(world.proposals) < 150


async def test_refused_member_holds_up_no_high_watermark(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 31: a follower that was joining is fenced while a producer waits."""
    async with leading({1}, {1, 3}) as world:
        is_fenced = False
        world.leader.is_eligible = lambda node, epoch: not is_fenced
        world.answer = lambda: refusal(errors.IneligibleReplica.code)
        world.fetch(3, 0)
        append(world)
        is_fenced = True
        await trio.sleep(0.1)
        assert world.partition.high_watermark == 1


async def test_fenced_broker_holds_up_no_high_watermark(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with leading({1}, {1, 3}) as world:
        is_fenced = False
        world.leader.is_eligible = lambda node, epoch: not is_fenced
        world.leader.followers[3] = FollowerProgress(log_end=0, caught_up_at=trio.current_time())
        append(world)
        assert world.partition.high_watermark == 0
        is_fenced = True
        world.changes.on_brokers_changed({3})
        await trio.sleep(0.1)
        assert world.partition.high_watermark == 1


async def test_change_of_brokers_checks_the_partitions_of_these_followers(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 35: the timer still looks for late followers in all partitions."""
    checked: list[PartitionLeader] = []
    laggards = PartitionLeader.laggards

    def note_checked(leader: PartitionLeader, now: float) -> frozenset[int]:
        checked.append(leader)
        return laggards(leader, now)

    monkeypatch.setattr(PartitionLeader, "laggards", note_checked)
    async with leading({1, 2}, {1, 2}) as world:
        other, other_leader = led_partition({1, 4}, {1, 4}, 1)
        world.changes.on_role_changed(other)
        await trio.sleep(0.1)
        checked.clear()
        world.changes.on_brokers_changed({3, 4})
        await trio.sleep(0.1)
        assert checked == [other_leader]
        checked.clear()
        for _ in range(int(LAG_MAX_S * 10)):
            world.changes.on_brokers_changed({5})
            await trio.sleep(0.1)
        assert checked.count(world.leader) == checked.count(other_leader) == 2


async def test_metadata_of_the_same_epoch_does_not_end_a_proposal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 30: the controller may have committed the proposal already."""
    async with leading({1, 2}, {1, 2, 3}) as world:
        world.fetch(3, 0)
        world.leader.on_isr_committed({1, 2}, 5, trio.current_time())
        assert world.leader.maximal_isr == {1, 2, 3}
        world.leader.on_isr_committed({1, 2}, 6, trio.current_time())
        assert world.leader.maximal_isr == {1, 2}


async def isrs_after_return(count: int, lost: int = 0) -> tuple[list[int], set[frozenset[int]]]:
    """Let a follower of ``count`` partitions return; the first ``lost`` requests get no answer.

    Return how many partitions each request had, and the partitions' ISRs.
    """
    sizes: list[int] = []

    async def alter(request: AlterPartitionRequest) -> AlterPartitionResponse:
        await trio.sleep(0.01)
        (topic,) = request.topics
        sizes.append(len(topic.partitions))
        if len(sizes) <= lost:
            raise errors.RequestTimedOut
        answers = []
        for data in topic.partitions:
            answer = commit_of([1, 2], 6)
            answer.partition_index = data.partition_index
            answers.append(answer)
        return AlterPartitionResponse(topics=[TopicAnswer(topic_id=TOPIC, partitions=answers)])

    completion = Completion(trio.current_time, FetchWaits(trio.current_time))
    changes = IsrChanges(1, lambda: 70, alter, completion, trio.current_time, LAG_MAX_S)
    led = [led_partition({1}, {1, 2}, number) for number in range(count)]
    async with trio.open_nursery() as nursery:
        await nursery.start(changes.run)
        for partition, leader in led:
            leader.on_fetched(2, offset=0, log_start=0, now=trio.current_time())
            changes.on_fetched(partition, 2)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return sizes, {leader.isr for _, leader in led}


async def test_many_partitions_take_several_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 35: the partitions of a request that got no answer are proposed again."""
    limit = REQUEST_PARTITIONS
    sizes, isrs = await isrs_after_return(2 * limit + 1, lost=1)
    assert isrs == {frozenset({1, 2})}
    assert sizes == [limit, limit, limit, 1]


async def test_late_follower_leaves_before_others_join(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Producers wait for the partition, and joins alone would fill several requests."""
    requests: list[set[int]] = []

    async def alter(request: AlterPartitionRequest) -> AlterPartitionResponse:
        await trio.sleep(0.01)
        (topic,) = request.topics
        requests.append({data.partition_index for data in topic.partitions})
        raise errors.RequestTimedOut

    completion = Completion(trio.current_time, FetchWaits(trio.current_time))
    changes = IsrChanges(1, lambda: 70, alter, completion, trio.current_time, LAG_MAX_S)
    waiting, leader = led_partition({1, 2}, {1, 2})
    waiting.log.append_follower(one_batch(), 1)
    leader.on_appended(waiting.log.end_offset, trio.current_time())
    await trio.sleep(2 * LAG_MAX_S)
    async with trio.open_nursery() as nursery:
        for number in range(1, 2 * REQUEST_PARTITIONS):
            partition, joined = led_partition({1}, {1, 2}, number)
            joined.on_fetched(2, offset=0, log_start=0, now=trio.current_time())
            changes.on_fetched(partition, 2)
        changes.on_role_changed(waiting)
        changes.on_brokers_changed({2})
        await nursery.start(changes.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [0 in partitions for partitions in requests[:2]] == [False, True]
    assert {len(partitions) for partitions in requests} == {REQUEST_PARTITIONS}


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (2, ["ISR changed partition=t-0 isr=[1, 2]", "ISR changed partition=t-1 isr=[1, 2]"]),
        (50, ["ISRs changed partition_count=50 joined={2: 50} left={}"]),
    ],
)
async def test_many_changes_of_one_response_share_a_log_line(
    count: int,
    lines: list[str],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "kwire.replica.isr_changes")
    await isrs_after_return(count)
    assert caplog.messages == lines
