"""A large decision of the controller delays other decisions, and no other task."""

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.drive import STEPS_AT_ONCE
from kwire.raftmeta.controller import controller as controller_service
from kwire.raftmeta.controller.brokers import decide_fence_stale, decide_heartbeat
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.leader_updates import decide_leader_updates
from kwire.raftmeta.controller.partition_index import PartitionIndex
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.metadata.publisher import AT_ONCE
from kwire.records import build
from simulation.raft.quorums import TestClock
from tests.support.raftmeta.clusters import Cluster, cluster_of
from tests.support.raftmeta.metadata_node import running_node
from tests.support.raftmeta.one_leader import OneLeader, active_controller
from tests.support.raftmeta.requests import beat, create


async def test_others_have_turns_while_a_large_topic_is_created() -> None:
    """Packing and applying are cut into slices of at most 250 records (invariant 101)."""
    async with running_node() as node:
        await node.broker(b"a").start()
        before = node.controller.state.image
        turns, created = 0, False

        async def create_large() -> None:
            nonlocal created
            await node.controller.call(decide_create_topics, create("t", 2000))
            created = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create_large)
            while not created:
                await trio.lowlevel.checkpoint()
                turns += node.controller.state.image is before
        assert turns >= 2 * 2000 // 250, "so many slices before the controller has it"
        topic = node.publisher.image.topic("t")
        assert topic is not None
        assert len(topic.partitions) == 2000


class Pieces(trio.abc.Instrument):
    """The largest number of calls of some functions between two turns of the scheduler."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.calls.clear()

    def count_calls(self, name: str, function: Any) -> Any:
        """Return the function with its calls counted."""

        def count(*args: Any, **named: Any) -> Any:
            self.calls[name] += 1
            self.largest[name] = max(self.largest[name], self.calls[name])
            return function(*args, **named)

        return count


async def test_no_piece_of_a_large_decision_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on each of 2,000 partitions is done for at most 250 of them in a turn.

    Only the decision itself, in the first turn, goes over all of them.
    """
    pieces = Pieces()
    async with running_node() as node:
        await node.broker(b"a").start()
        for name, owner in (("pack", controller_service), ("encode_record", build)):
            monkeypatch.setattr(owner, name, pieces.count_calls(name, getattr(owner, name)))
        add = pieces.count_calls("index", PartitionIndex._add)
        monkeypatch.setattr(PartitionIndex, "_add", add)
        trio.lowlevel.add_instrument(pieces)
        await node.controller.call(decide_create_topics, create("t", 2000))
        trio.lowlevel.remove_instrument(pieces)
        largest = dict(pieces.largest)
        assert node.controller.state.index == PartitionIndex.of(node.controller.state.image)
    assert largest.keys() == {"pack", "encode_record", "index"}
    assert max(largest.values()) <= AT_ONCE, largest


async def test_a_decision_waits_for_a_large_one_that_is_under_way() -> None:
    """The second sees the first's topic, and nothing comes between a decision and its records."""
    async with running_node() as node:
        await node.broker(b"a").start()
        codes = []

        async def ask(partitions: int) -> None:
            reply = await node.controller.call(decide_create_topics, create("t", partitions))
            codes.append(reply.topics[0].error_code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, 1000)
        assert sorted(codes) == [0, *[errors.TopicAlreadyExists.code] * 2]
        assert node.controller.state.image.topics == node.publisher.image.topics


@pytest.mark.parametrize("turn", [1, 3, 5, 7])
async def test_leadership_lost_during_a_large_decision_fails_it(turn: int) -> None:
    """The client gets NOT_CONTROLLER; the state is what is committed, not a mixture."""
    async with running_node() as node:
        await node.broker(b"a").start()
        refusals = []

        async def create_large() -> None:
            with pytest.raises(errors.NotController):
                await node.controller.call(decide_create_topics, create("t", 1000))
            refusals.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create_large)
            for _ in range(turn):
                await trio.lowlevel.checkpoint()
            assert not node.controller.state.image.topics
            node.controller.on_leadership(LeaderAndEpoch(2, node.quorum.leader().epoch + 1))
            image = node.controller.state.image
        assert refusals
        assert node.controller.state.image is image


async def test_a_large_decision_is_made_again_when_its_offsets_are_taken() -> None:
    """Records of a change of the voters may come between a decision and its own records."""
    async with running_node() as node:
        await node.broker(b"a").start()
        offsets = []

        def decide(state: ControllerState, request: CreateTopicsRequest) -> Any:
            offsets.append(state.next_offset)
            return decide_create_topics(state, request)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.controller.call, decide, create("t", 1000))
            while not offsets:
                await trio.lowlevel.checkpoint()
            node.quorum.append_nowait([r.NoOpRecord()], node.quorum.leader().epoch)
        assert offsets == [offsets[0], offsets[0] + 1]
        assert node.watcher.batches[-1].base_offset == offsets[1]
        assert node.controller.state.image.topics == node.publisher.image.topics


async def test_heartbeats_that_waited_for_a_large_decision_come_before_the_fencing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 44: a decision that takes a whole session fences no broker that sent heartbeats."""
    quorum = OneLeader(at_once=True)
    controller = active_controller(quorum, Cluster(range(1, 9)))
    brokers = controller.state.image.brokers.values()

    def decide_slowly(*_: Any) -> Steps[ControllerDecision[None]]:
        for number in range(100 * STEPS_AT_ONCE):
            if number == 50 * STEPS_AT_ONCE:
                mock_clock.jump(10)
            yield
        return ControllerDecision((), None)

    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        for _ in range(10):
            async with trio.open_nursery() as calls:
                calls.start_soon(controller.call, decide_slowly, None)
                while controller._large_decision is None:
                    await trio.lowlevel.checkpoint()
                for request in [beat(broker.id, broker.epoch) for broker in brokers]:
                    calls.start_soon(controller.call, decide_heartbeat, request)
        nursery.cancel_scope.cancel()
    assert [type(record).__name__ for record in quorum.written] == []


async def with_offsets_taken(quorum: OneLeader, controller: Controller, decide: Any) -> bool:
    """Run a decider of the controller's own; the quorum writes a record while it is packed."""
    replies = []

    async def ask() -> None:
        replies.append(await controller.call(decide, None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while controller._large_decision is None:
            await trio.lowlevel.checkpoint()
        quorum.next_offset += 1
    (reply,) = replies
    assert isinstance(reply, bool)
    return reply


async def test_silent_broker_is_fenced_and_loses_its_leaderships_though_offsets_are_taken() -> None:
    """Invariant 44: what a decision noted before it was made again must not hide partitions."""
    quorum = OneLeader(at_once=True)
    controller = active_controller(quorum, cluster_of(1400))
    state = controller.state
    await controller.wait_ready()
    session = state.sessions.get(2)
    assert session is not None
    session.heartbeat_at -= 10
    await controller.call(decide_fence_stale, None)
    assert state.image.brokers[2].fenced
    assert state.leader_update_queue
    assert await with_offsets_taken(quorum, controller, decide_leader_updates)
    while await controller.call(decide_leader_updates, None):
        pass
    topic = state.image.topic("large")
    assert topic is not None
    assert {partition.leader for partition in topic.partitions.values()} == {1}
