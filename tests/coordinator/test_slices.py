"""Long work of a coordinator is done in slices; other tasks run in between."""

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
from kwire.drive import SLICE_SECONDS, Slices
from kwire.group.shard import GroupShard
from tests.support.coordinator.node import (
    CLIENT,
    CommitPartition,
    Node,
    commit_request,
    join_request,
    make_node,
    wait_result,
)

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
    """A clock that advances a millisecond each time it is read: a slice ends after two items."""
    ticks = count()

    def make_slices(seconds: float = SLICE_SECONDS) -> Slices:
        return Slices(lambda: next(ticks) / 1000, seconds)

    monkeypatch.setattr("kwire.coordinator.runtime.Slices", make_slices)
    monkeypatch.setattr("kwire.coordinator.loading.Slices", make_slices)
    monkeypatch.setattr("kwire.coordinator.steps.Slices", make_slices)
    monkeypatch.setattr("kwire.group.coordinator.Slices", make_slices)
    return Turns()


@asynccontextmanager
async def running(node: Node, turns: Turns) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        nursery.start_soon(turns.run)
        yield
        nursery.cancel_scope.cancel()


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


async def make_node_with_offsets() -> Node:
    """Return a node that leads one partition with the offsets of hundreds of groups."""
    node = make_node(offsets_topic_num_partitions=1)
    node.service.on_elected(0, 1)
    for number in range(GROUPS):
        await wait_result(node.groups.commit(commit_request(number, f"g{number}")))
    return node


async def test_other_tasks_run_while_a_partition_is_loaded(turns: Turns) -> None:
    node = await make_node_with_offsets()
    successor = make_node(node.log, offsets_topic_num_partitions=1)
    async with running(successor, turns):
        turns.count = 0
        successor.service.on_elected(0, 2)
        await wait_until(lambda: not successor.service.loading)
        assert turns.count > GROUPS * 4 // 3, "both the replay and the start of sessions"
        assert len(await successor.groups.list_groups([], [])) == GROUPS


class DeadlineTaskSteps(trio.abc.Instrument):
    """A counter of the steps of the task that keeps the deadlines."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("_keep_deadlines")


async def test_deadline_that_passes_during_a_load_fires_after_it(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 10: the service does not poll for the deadline during the loading."""

    def on_loaded(shard: GroupShard) -> Iterator[Step]:
        yield lambda moment: Decision(timers=((("expiry",), moment.now),))
        for _ in range(GROUPS):
            yield lambda moment: NOTHING

    node = await make_node_with_offsets()
    successor = make_node(node.log, offsets_topic_num_partitions=1)
    monkeypatch.setattr(GroupShard, "on_loaded", on_loaded)
    steps = DeadlineTaskSteps()
    async with running(successor, turns):
        trio.lowlevel.add_instrument(steps)
        successor.service.on_elected(0, 2)
        await wait_until(lambda: not successor.service.loading)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count < 10
        timers = successor.service._shards[0].timers
        await wait_until(lambda: (timers.at(("expiry",)) or 0) > trio.current_time() + 1)


async def test_other_tasks_run_while_offsets_of_a_deleted_topic_are_removed(turns: Turns) -> None:
    node = await make_node_with_offsets()
    async with running(node, turns):
        turns.count = 0
        node.groups.on_topics_deleted({bytes(16): "t"})
        offsets = node.service._shards[0].machine.offsets
        await wait_until(lambda: not offsets.count)
        assert turns.count > GROUPS // 4


async def test_other_tasks_run_while_many_sessions_expire(
    turns: Turns, mock_clock: trio.testing.MockClock
) -> None:
    node = make_node(offsets_topic_num_partitions=1)
    node.service.on_elected(0, 1)
    async with running(node, turns):
        for number in range(GROUPS):
            await node.groups.join(join_request(group=f"g{number}"), CLIENT)
        turns.count = 0
        mock_clock.jump(10.1)
        groups = node.service._shards[0].machine.groups
        await wait_until(lambda: not any(group.members for group in groups.values()))
        assert turns.count > GROUPS // 4


async def test_offsets_can_be_committed_while_those_of_a_deleted_topic_are_removed(
    turns: Turns,
) -> None:
    """An offset committed during the removal stays if its own topic still exists."""
    node = await make_node_with_offsets()
    async with running(node, turns):
        node.groups.on_topics_deleted({bytes(16): "t"})
        request = commit_request(7, "g299")
        request.topics[0] = OffsetCommitRequest.OffsetCommitRequestTopic(
            name="u", partitions=request.topics[0].partitions
        )
        await wait_result(node.groups.commit(request))
        offsets = node.service._shards[0].machine.offsets
        assert offsets.count > 1, "the removal has only begun"
        await wait_until(lambda: offsets.count == 1)
        (topic,) = await node.groups.fetch("g299", None, require_stable=True)
        assert (topic.name, topic.partitions[0].committed_offset) == ("u", 7)


async def test_members_of_a_large_group_are_answered_a_few_at_a_time(turns: Turns) -> None:
    """A task of its own encodes and sends each answer: a thousand without a pause took 40 ms."""
    node = make_node(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=1000)
    node.service.on_elected(0, 1)
    answer_turns: list[int] = []

    async def join() -> None:
        reply = await node.groups.join(join_request(), CLIENT)
        assert (reply.error_code, reply.generation_id) == (0, 1)
        answer_turns.append(turns.count)

    async with running(node, turns), trio.open_nursery() as nursery:
        for _ in range(GROUPS):
            nursery.start_soon(join)
        await wait_until(lambda: len(answer_turns) == GROUPS)
    assert max(Counter(answer_turns).values()) <= 32


@pytest.mark.parametrize("topics", [None, [("t", range(6_000))]])
async def test_fetch_of_thousands_of_offsets_is_answered_in_slices(
    turns: Turns, topics: list[tuple[str, range]] | None
) -> None:
    """Invariant 11: all its offsets are of one moment."""
    node = make_node(offsets_topic_num_partitions=1)
    node.service.on_elected(0, 1)
    request = commit_request(7)
    request.topics[0].partitions = [
        CommitPartition(partition_index=number, committed_offset=7, committed_metadata="")
        for number in range(6_000)
    ]
    await wait_result(node.groups.commit(request))
    async with running(node, turns):
        offsets: list[int] = []

        async def fetch() -> None:
            (topic,) = await node.groups.fetch("g", topics, require_stable=True)
            offsets.extend(partition.committed_offset for partition in topic.partitions)

        async with trio.open_nursery() as nursery:
            turns.count = 0
            nursery.start_soon(fetch)
            await wait_until(lambda: turns.count > 2)
            await wait_result(node.groups.commit(commit_request(8)))
        assert turns.count > 50
        assert offsets == [7] * 6_000
