"""A controller on a quorum of one: the first boot, restarts, lost leadership."""

import logging
import math
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.brokers import (
    decide_heartbeat,
    decide_register_controller,
    decide_unregister_broker,
)
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.publisher import MetadataPublisher, snapshot_contents
from kwire.raftmeta.storage.records import CommittedBatch
from kwire.storage_format.format import DEFAULT_FEATURES, feature_records
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock
from tests.support.raftmeta.clusters import ENDPOINTS, node_config
from tests.support.raftmeta.controller_quorum import RecordedQuorum, ReplayClock
from tests.support.raftmeta.metadata_logs import load
from tests.support.raftmeta.metadata_node import Node, running_node
from tests.support.raftmeta.requests import beat, create


async def test_first_boot_writes_what_kafka_writes() -> None:
    """With Kafka's features, the kinds of records and their order are those of its first boot."""
    features = {fact.name: fact.feature_level for fact in first_boot()[1:7]}
    async with running_node(features=features) as node:
        request = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
        await node.active_controller.call(decide_register_controller, request)
        await node.broker(b"a").start()
        expected = first_boot()
        records = node.records()
        assert [type(x) for x in records] == [type(x) for x in expected]
        assert records[:9] == expected[:9], "the bootstrap transaction, to the letter"
        broker = records[10]
        assert broker.broker_epoch == node.watcher.batches[3].base_offset, "its own offset"
        assert broker.fenced
        assert records[11].fenced == -1
        assert records[12].cordoned_log_dirs == []


def first_boot() -> list[Any]:
    """Return the first records of the golden directory, without no-ops."""
    log = next(log for log in load() if log.name.startswith("clean"))
    return [x for _, x in log.records if not isinstance(x, r.NoOpRecord)][:13]


async def test_heartbeat_is_refused_by_a_controller_that_may_have_been_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 34: after a pause it does not know the brokers that its successor fenced."""
    async with running_node() as node:
        await node.broker(b"a").start()
        epoch = node.controller.state.image.brokers[1].epoch
        request = beat(1, epoch)
        monkeypatch.setattr(node.quorum, "may_be_replaced", lambda now: True)
        with pytest.raises(errors.NotController):
            await node.active_controller.call(decide_heartbeat, request)
        monkeypatch.undo()
        assert not (await node.active_controller.call(decide_heartbeat, request)).is_fenced


async def test_controller_that_may_have_been_replaced_does_not_refuse_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 48: its successor may have deleted the topic, and registered the broker."""
    async with running_node() as node:
        await node.broker(b"a").start()
        broker = node.controller.state.image.brokers[1].epoch
        await node.controller.call(decide_create_topics, create("t"))
        monkeypatch.setattr(node.quorum, "may_be_replaced", lambda now: True)
        with pytest.raises(errors.NotController):
            await node.controller.call(decide_create_topics, create("t"))
        with pytest.raises(errors.NotController):
            await node.controller.call(decide_heartbeat, beat(1, broker + 1))
        monkeypatch.undo()
        (again,) = (await node.controller.call(decide_create_topics, create("t"))).topics
        assert again.error_code == errors.TopicAlreadyExists.code
        with pytest.raises(errors.StaleBrokerEpoch):
            await node.controller.call(decide_heartbeat, beat(1, broker + 1))


async def test_reply_comes_when_the_topic_is_published() -> None:
    async with running_node() as node:
        await node.broker(b"a").start()
        published: list[set[str]] = []
        node.publisher.subscribe(lambda image, delta: published.append(set(image.topic_ids)))
        reply = await node.controller.call(decide_create_topics, create("t"))
        assert reply.topics[0].error_code == 0
        assert published[-1] == {"t"}
        partition = node.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 0)
        assert node.controller.state.image.topics == node.publisher.image.topics


async def test_no_op_records_are_written_beside_other_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Followers get a record every half second, also while other records are written."""
    publisher = MetadataPublisher()
    quorum = RecordedQuorum([], publisher, ReplayClock(), math.inf, unseen=True)
    state = ControllerState(config=node_config(), random=Random(2))
    controller = Controller(quorum, publisher, state, TestClock())  # type: ignore[arg-type]
    request = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        quorum.lead(LeaderAndEpoch(1, 1, is_active=True))
        for _ in range(3):
            await trio.sleep(0.4)
            await controller.call(decide_register_controller, request)
        await trio.sleep(0.4)
        nursery.cancel_scope.cancel()
    written = [entry.kind.removesuffix("Record") for entry in quorum.log[2:]]
    own, nothing = "RegisterController", "NoOp"
    assert written == [own, nothing, own, nothing, own, nothing]


async def test_a_lone_node_is_idle(autojump_clock: trio.testing.MockClock) -> None:
    """It writes no no-op records, sends itself no heartbeats, and fences no broker for silence."""
    async with running_node() as node, trio.open_nursery() as nursery:
        broker = node.broker(b"a")
        await broker.start()
        await nursery.start(broker.run)
        count = len(node.watcher.batches)
        await trio.sleep(3600)
        assert len(node.watcher.batches) == count
        assert node.publisher.image.live_brokers()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["unregistered", "fenced"])
async def test_lone_node_that_was_fenced_or_unregistered_serves_again(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """It sends no heartbeats, but fenced or unregistered it contacts the controller again."""
    async with running_node() as node, trio.open_nursery() as nursery:
        broker = node.broker(b"a")
        await broker.start()
        await nursery.start(broker.run)
        if how == "unregistered":
            request = UnregisterBrokerRequest(broker_id=1)
            await node.controller.call(decide_unregister_broker, request)
        else:
            leave = BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=broker.epoch,
                current_metadata_offset=0,
                want_fence=True,
                want_shut_down=True,
            )
            await node.controller.call(decide_heartbeat, leave)
        assert not node.publisher.image.live_brokers()
        with trio.fail_after(10):
            await node.publisher.wait_for(lambda image: bool(image.live_brokers()))
        count = len(node.watcher.batches)
        await trio.sleep(3600)
        assert len(node.watcher.batches) == count, "and is idle again"
        assert node.publisher.image.live_brokers()
        nursery.cancel_scope.cancel()


async def test_controlled_shutdown_and_a_quick_return() -> None:
    storage = MemoryStorage()
    async with running_node(storage) as node:
        broker = node.broker(b"a")
        await broker.start()
        await node.controller.call(decide_create_topics, create("t"))
        await broker.stop()
        partition = node.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (-1, 1)
        assert (partition.isr, partition.elr) == ((), (1,))
        assert node.publisher.image.brokers[1].fenced
        epoch = broker.epoch
    async with running_node(storage) as node:
        await node.broker(b"b").start(previous_epoch=epoch)
        partition = node.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 2)
        assert [type(x) for x in node.records()].count(r.FeatureLevelRecord) == len(
            DEFAULT_FEATURES
        )


async def test_return_after_kill_begins_two_leader_epochs() -> None:
    """The partition loses the dead incarnation as its leader and gets the new one, as in Kafka."""
    storage = MemoryStorage()
    async with running_node(storage) as node:
        await node.broker(b"a").start()
        await node.controller.call(decide_create_topics, create("t"))
    async with running_node(storage) as node:
        started = trio.current_time()
        await node.broker(b"b").start()
        assert trio.current_time() - started < 5, "no waiting for the dead one's session"
        partition = node.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 2, (1,))


async def test_start_from_a_snapshot() -> None:
    storage = MemoryStorage()
    async with running_node(storage) as node:
        await node.broker(b"a").start()
        await node.controller.call(decide_create_topics, create("t", 3))
        image = node.publisher.image
        end, epoch = image.applied.offset + 1, image.applied.epoch
        await node.quorum.snapshots.write(end, epoch, snapshot_contents(image), 0)
    async with running_node(storage) as node:
        await node.controller.wait_active()
        assert node.publisher.image.topics == image.topics
        assert node.publisher.image.features == image.features
        assert len(node.records()) == 0, "what the snapshot holds is not replayed"


async def test_internal_topic_is_created_once() -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        await node.broker(b"a").start()
        for _ in range(5):
            nursery.start_soon(node.topic_creation.ensure_topic, "__consumer_offsets")
        await node.topic_creation.ensure_topic("__consumer_offsets")
        topic = node.publisher.image.topic("__consumer_offsets")
        assert topic is not None
        assert len(topic.partitions) == 50
        assert dict(node.publisher.image.config(2, "__consumer_offsets")) == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert await node.topic_creation.ensure_topic("__consumer_offsets") is None


async def test_failed_creation_of_an_internal_topic_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_node() as node:
        await node.controller.wait_active()
        for _ in range(3):
            await node.topic_creation.ensure_topic("__consumer_offsets")
        (message,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert message.startswith(
            "topic not created topic=__consumer_offsets reason=Unable to replicate"
        )
        assert message.endswith("Start more brokers, or lower offsets.topic.replication.factor.")
        assert "\n" not in message


async def test_concurrent_first_uses_wait_for_each_others_topics() -> None:
    """Each call waits for all topics that others create, also for those begun while it waits."""
    node = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    gates = [trio.Event() for _ in range(3)]

    async def wait_gate(delta: Any) -> None:
        if delta.created_topics:
            await gates[len(delta.after.topic_ids)].wait()

    node.publisher.add_applier(wait_gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(node.publisher.run)
        await node.broker(b"a").start()
        for names in (["b"], ["a", "b"], ["a"]):
            nursery.start_soon(node.topic_creation.ensure_topics, names)
            await trio.testing.wait_all_tasks_blocked()
        gates[1].set()
        await trio.testing.wait_all_tasks_blocked()
        gates[2].set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(node.publisher.applied.topic_ids) == ["a", "b"]
        assert await node.topic_creation.ensure_topics(["a", "b"]) == {}
        nursery.cancel_scope.cancel()


async def test_decision_without_leadership_is_refused() -> None:
    async with running_node() as node:
        await node.broker(b"a").start()
        epoch = node.quorum.leader().epoch
        node.controller.on_leadership(node.quorum.leader().__class__(2, epoch + 1))
        with pytest.raises(errors.NotController):
            await node.controller.call(decide_create_topics, create("t"))
        assert node.controller.state.image is node.publisher.image


@pytest.mark.parametrize("cut_off", [False, True])
async def test_leadership_that_ended_before_its_notification_is_not_taken(cut_off: bool) -> None:
    """The quorum may be in another epoch already; then its leader writes what the log lacks."""
    node = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    if cut_off:
        records = (*feature_records(DEFAULT_FEATURES), r.BeginTransactionRecord(name="unfinished"))
        node.publisher.on_commit([CommittedBatch(0, len(records) - 1, 1, 0, records)])
    node.controller.on_leadership(LeaderAndEpoch(1, 1, is_active=True))
    assert not node.controller.is_active
    with pytest.raises(errors.NotController):
        await node.controller.call(decide_create_topics, create("t"))


async def test_local_reply_waits_until_this_nodes_logs_are_open() -> None:
    """A topic's logs are opened before its creation is answered (clients produce at once)."""
    node = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    opened: list[str] = []
    slow = trio.Event()

    async def apply(delta: Any) -> None:
        if delta.created_topics:
            await slow.wait()
            opened.extend(delta.after.topic_ids)

    node.publisher.add_applier(apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(node.publisher.run)
        await node.broker(b"a").start()
        call = partial(node.controller.call, in_force=True)
        nursery.start_soon(call, decide_create_topics, create("t"))
        await trio.testing.wait_all_tasks_blocked()
        assert node.publisher.image.topic("t") is not None
        assert node.publisher.applied.topic("t") is None, "committed, but not in force here"
        slow.set()
        await call(decide_create_topics, create("t"))
        assert opened == ["t"]
        nursery.cancel_scope.cancel()


async def test_a_node_that_starts_registers_before_it_applies() -> None:
    node = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))

    async def apply(delta: Any) -> None:
        assert delta.after is not None

    node.publisher.add_applier(apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        request = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
        await node.active_controller.call(decide_register_controller, request)
        assert not node.publisher.applied.controllers
        await nursery.start(node.publisher.run)
        await node.publisher.wait_applied(node.quorum.next_offset - 1)
        assert sorted(node.publisher.applied.controllers) == [1]
        nursery.cancel_scope.cancel()
