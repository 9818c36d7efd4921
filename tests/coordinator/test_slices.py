"""Long work of coordinators goes on in slices: other tasks get their turn in between."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.coordinator.decision import NOTHING, Decision, Step
from kwire.drive import Slices
from kwire.group.shard import GroupShard
from tests.support.coordinator.node import OLD, Node, committing, joining, node

GROUPS = 300


@attrs.define
class Turns:
    """A counter of the turns of another task."""

    count: int = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Every look at the clock takes a millisecond, so a slice ends after two items."""
    ticks = count()

    def sliced() -> Slices:
        return Slices(now=lambda: next(ticks) / 1000)

    monkeypatch.setattr("kwire.coordinator.service.Slices", sliced)
    monkeypatch.setattr("kwire.group.service.Slices", sliced)
    return Turns()


@asynccontextmanager
async def running(of: Node, turns: Turns) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(of.service.run)
        nursery.start_soon(turns.run)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


async def written() -> Node:
    """A node that leads one partition with the offsets of hundreds of groups."""
    one = node(offsets_topic_num_partitions=1)
    one.service.on_elected(0, 1)
    for number in range(GROUPS):
        await one.groups.commit(committing(number, f"g{number}"))
    return one


async def test_loading_gives_way(turns: Turns) -> None:
    one = await written()
    two = node(one.log, offsets_topic_num_partitions=1)
    async with running(two, turns):
        turns.count = 0
        two.service.on_elected(0, 2)
        await until(lambda: not two.service.loading)
        assert turns.count > GROUPS * 4 // 3, "replaying and waking the groups"
        assert len(await two.groups.list_groups([], [])) == GROUPS


class Steps(trio.abc.Instrument):
    """Counts the steps of the task that keeps the deadlines."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("_keep_deadlines")


async def test_a_deadline_that_passes_during_the_loading_waits_for_its_end(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 10: the service does not poll for the deadline during the loading."""

    def on_loaded(shard: GroupShard) -> Iterator[Step]:
        yield lambda moment: Decision(timers=((("expiry",), moment.now),))
        for _ in range(GROUPS):
            yield lambda moment: NOTHING

    one = await written()
    two = node(one.log, offsets_topic_num_partitions=1)
    monkeypatch.setattr(GroupShard, "on_loaded", on_loaded)
    steps = Steps()
    async with running(two, turns):
        trio.lowlevel.add_instrument(steps)
        two.service.on_elected(0, 2)
        await until(lambda: not two.service.loading)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count < 10
        timers = two.service._shards[0].timers
        await until(lambda: (timers.at(("expiry",)) or 0) > trio.current_time() + 1)


async def test_removing_a_topic_of_many_groups_gives_way(turns: Turns) -> None:
    one = await written()
    async with running(one, turns):
        turns.count = 0
        one.groups.on_topics_deleted({bytes(16): "t"})
        offsets = one.service._shards[0].machine.offsets
        await until(lambda: not offsets.count)
        assert turns.count > GROUPS // 4


async def test_deadlines_of_many_members_give_way(
    turns: Turns, mock_clock: trio.testing.MockClock
) -> None:
    one = node(offsets_topic_num_partitions=1)
    one.service.on_elected(0, 1)
    async with running(one, turns):
        for number in range(GROUPS):
            await one.groups.join(joining(group=f"g{number}"), OLD)
        turns.count = 0
        mock_clock.jump(10.1)
        groups = one.service._shards[0].machine.groups
        await until(lambda: not any(group.members for group in groups.values()))
        assert turns.count > GROUPS // 4


async def test_commits_are_possible_while_a_topic_is_removed(turns: Turns) -> None:
    """An offset committed during the removal stays if its own topic still exists."""
    one = await written()
    async with running(one, turns):
        one.groups.on_topics_deleted({bytes(16): "t"})
        request = committing(7, "g299")
        request.topics[0] = OffsetCommitRequest.OffsetCommitRequestTopic(
            name="u", partitions=request.topics[0].partitions
        )
        await one.groups.commit(request)
        offsets = one.service._shards[0].machine.offsets
        assert offsets.count > 1, "the removal has only begun"
        await until(lambda: offsets.count == 1)
        (topic,) = await one.groups.fetch("g299", None, require_stable=True)
        assert (topic.name, topic.partitions[0].committed_offset) == ("u", 7)


async def test_members_of_a_large_group_are_answered_some_a_turn(turns: Turns) -> None:
    """Each answer is encoded and sent by a task of its own: a thousand in one turn took 40 ms."""
    one = node(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=1000)
    one.service.on_elected(0, 1)
    answered: list[int] = []

    async def join() -> None:
        reply = await one.groups.join(joining(), OLD)
        assert (reply.error_code, reply.generation_id) == (0, 1)
        answered.append(turns.count)

    async with running(one, turns), trio.open_nursery() as nursery:
        for _ in range(GROUPS):
            nursery.start_soon(join)
        await until(lambda: len(answered) == GROUPS)
    assert max(Counter(answered).values()) <= 32


@pytest.mark.parametrize("topics", [None, [("t", range(6_000))]])
async def test_an_answer_of_thousands_of_offsets_is_made_in_slices(
    turns: Turns, topics: list[tuple[str, range]] | None
) -> None:
    """It is of one moment all the same: invariant 11."""
    one = node(offsets_topic_num_partitions=1)
    one.service.on_elected(0, 1)
    request = committing(7)
    spots = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    request.topics[0].partitions = [
        spots(partition_index=number, committed_offset=7, committed_metadata="")
        for number in range(6_000)
    ]
    await one.groups.commit(request)
    async with running(one, turns):
        read: list[int] = []

        async def fetch() -> None:
            (topic,) = await one.groups.fetch("g", topics, require_stable=True)
            read.extend(spot.committed_offset for spot in topic.partitions)

        async with trio.open_nursery() as nursery:
            turns.count = 0
            nursery.start_soon(fetch)
            await until(lambda: turns.count > 2)
            await one.groups.commit(committing(8))
        assert turns.count > 50
        assert read == [7] * 6_000
