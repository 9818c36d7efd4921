"""A controller on a quorum of one: the first boot, restarts, lost offices."""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.configs.listeners import Endpoint
from kwire.node.controller_requests import InProcessController
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.brokers import (
    decide_heartbeat,
    decide_register_controller,
    decide_unregister_broker,
)
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.service import Controller
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.publisher import MetadataPublisher, snapshot_contents
from kwire.raftmeta.service import RaftService
from kwire.raftmeta.storage.records import CommittedBatch
from kwire.raftmeta.storage.storage import MemoryStorage
from kwire.simulation.raft_quorums import TestClock, Watcher, config_of, voters_of
from kwire.storage_format.format import DEFAULT_FEATURES, feature_records
from tests.support.raftmeta.clusters import CLUSTER, node_config
from tests.support.raftmeta.controller_quorum import RecordedQuorum, ReplayClock
from tests.support.raftmeta.metadata_logs import load

ENDPOINTS = (Endpoint("PLAINTEXT", "localhost", 9092),)


class Node:
    """The metadata side of a combined node."""

    def __init__(self, storage: MemoryStorage, bootstrap: list[Any]) -> None:
        self.watcher = Watcher()
        self.quorum = RaftService(
            config_of(1),
            storage,
            clock=TestClock(),
            random=Random(1),
            configured=voters_of(1),
        )
        self.publisher = MetadataPublisher()
        state = ControllerState(
            config=node_config(),
            random=Random(2),
            cluster_id=CLUSTER,
            supported_features=dict(SUPPORTED),
        )
        self.controller = Controller(
            self.quorum, self.publisher, state, TestClock(), bootstrap=bootstrap, own_broker=1
        )
        self.periodic_tasks = PeriodicTasks(self.controller, TestClock())
        self.topic_creation = AutoTopicCreation(ActiveController(self.controller), self.publisher)
        self.quorum.add_listener(self.watcher)

    def broker(self, incarnation: bytes) -> BrokerLifecycle:
        return BrokerLifecycle(
            config=node_config(),
            cluster_id=CLUSTER,
            incarnation_id=incarnation * 16,
            endpoints=ENDPOINTS,
            features=SUPPORTED,
            log_dirs=[b"d" * 16],
            publisher=self.publisher,
            ask=InProcessController(self.controller).ask,
            clock=TestClock(),
            local=InProcessController(self.controller),
        )

    def written(self) -> list[Any]:
        return [record for batch in self.watcher.batches for record in batch.records]


@asynccontextmanager
async def node(
    storage: MemoryStorage | None = None, features: dict[str, int] | None = None
) -> AsyncIterator[Node]:
    made = Node(storage or MemoryStorage(), list(feature_records(features or DEFAULT_FEATURES)))
    async with trio.open_nursery() as nursery:
        await nursery.start(made.quorum.run)
        await nursery.start(made.periodic_tasks.run)
        yield made
        nursery.cancel_scope.cancel()


def create(name: str, partitions: int = 1) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=partitions, replication_factor=1)]
    )


async def test_first_boot_writes_what_kafka_writes() -> None:
    """With Kafka's features, the kinds of records and their order are those of its first boot."""
    features = {fact.name: fact.feature_level for fact in first_boot()[1:7]}
    async with node(features=features) as made:
        request = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
        await InProcessController(made.controller).ask(request)
        await made.broker(b"a").start()
        expected = first_boot()
        written = made.written()
        assert [type(x) for x in written] == [type(x) for x in expected]
        assert written[:9] == expected[:9], "the bootstrap transaction, to the letter"
        broker = written[10]
        assert broker.broker_epoch == made.watcher.batches[3].base_offset, "its own offset"
        assert broker.fenced
        assert written[11].fenced == -1
        assert written[12].cordoned_log_dirs == []


def first_boot() -> list[Any]:
    """The first records of the golden directory, without no-ops."""
    log = next(log for log in load() if log.name.startswith("clean"))
    return [x for _, x in log.records if not isinstance(x, r.NoOpRecord)][:13]


async def test_reply_comes_when_the_topic_is_published() -> None:
    async with node() as made:
        await made.broker(b"a").start()
        published: list[set[str]] = []
        made.publisher.subscribe(lambda image, delta: published.append(set(image.topic_ids)))
        reply = await made.controller.call(decide_create_topics, create("t"))
        assert reply.topics[0].error_code == 0
        assert published[-1] == {"t"}
        partition = made.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 0)
        assert made.controller.state.image.topics == made.publisher.image.topics


async def test_time_passes_while_there_is_news(autojump_clock: trio.testing.MockClock) -> None:
    """Followers get a record every half second, also while other records are written."""
    publisher = MetadataPublisher()
    quorum = RecordedQuorum([], publisher, ReplayClock(), math.inf, unseen=True)
    state = ControllerState(config=node_config(), random=Random(2))
    controller = Controller(quorum, publisher, state, TestClock())  # type: ignore[arg-type]
    asked = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        quorum.lead(LeaderAndEpoch(1, 1, is_active=True))
        for _ in range(3):
            await trio.sleep(0.4)
            await controller.call(decide_register_controller, asked)
        await trio.sleep(0.4)
        nursery.cancel_scope.cancel()
    written = [entry.kind.removesuffix("Record") for entry in quorum.log[2:]]
    own, nothing = "RegisterController", "NoOp"
    assert written == [own, nothing, own, nothing, own, nothing]


async def test_a_lone_node_is_idle(autojump_clock: trio.testing.MockClock) -> None:
    """It writes no no-op records, sends itself no heartbeats, and fences no broker for silence."""
    async with node() as made, trio.open_nursery() as nursery:
        broker = made.broker(b"a")
        await broker.start()
        await nursery.start(broker.run)
        count = len(made.watcher.batches)
        await trio.sleep(3600)
        assert len(made.watcher.batches) == count
        assert made.publisher.image.live_brokers()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["forgotten", "fenced"])
async def test_a_lone_node_serves_again(autojump_clock: trio.testing.MockClock, how: str) -> None:
    """It sends no heartbeats, but fenced or unregistered it contacts the controller again."""
    async with node() as made, trio.open_nursery() as nursery:
        broker = made.broker(b"a")
        await broker.start()
        await nursery.start(broker.run)
        if how == "forgotten":
            gone = UnregisterBrokerRequest(broker_id=1)
            await made.controller.call(decide_unregister_broker, gone)
        else:
            leave = BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=broker.epoch,
                current_metadata_offset=0,
                want_fence=True,
                want_shut_down=True,
            )
            await made.controller.call(decide_heartbeat, leave)
        assert not made.publisher.image.live_brokers()
        with trio.fail_after(10):
            await made.publisher.wait_for(lambda image: bool(image.live_brokers()))
        count = len(made.watcher.batches)
        await trio.sleep(3600)
        assert len(made.watcher.batches) == count, "and is idle again"
        assert made.publisher.image.live_brokers()
        nursery.cancel_scope.cancel()


async def test_controlled_shutdown_and_a_quick_return() -> None:
    storage = MemoryStorage()
    async with node(storage) as made:
        broker = made.broker(b"a")
        await broker.start()
        await made.controller.call(decide_create_topics, create("t"))
        await broker.stop()
        partition = made.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.isr, partition.leader_epoch) == (-1, (1,), 1)
        assert made.publisher.image.brokers[1].fenced
        epoch = broker.epoch
    async with node(storage) as made:
        await made.broker(b"b").start(previous_epoch=epoch)
        partition = made.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 2)
        assert [type(x) for x in made.written()].count(r.FeatureLevelRecord) == 1


async def test_return_after_kill_begins_two_leader_epochs() -> None:
    """The partition loses the dead incarnation as its leader and gets the new one, as in Kafka."""
    storage = MemoryStorage()
    async with node(storage) as made:
        await made.broker(b"a").start()
        await made.controller.call(decide_create_topics, create("t"))
    async with node(storage) as made:
        started = trio.current_time()
        await made.broker(b"b").start()
        assert trio.current_time() - started < 5, "no waiting for the dead one's session"
        partition = made.publisher.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 2, (1,))


async def test_start_from_a_snapshot() -> None:
    storage = MemoryStorage()
    async with node(storage) as made:
        await made.broker(b"a").start()
        await made.controller.call(decide_create_topics, create("t", 3))
        image = made.publisher.image
        end, epoch = image.applied.offset + 1, image.applied.epoch
        await made.quorum.snapshots.write(end, epoch, snapshot_contents(image), 0)
    async with node(storage) as made:
        await made.controller.wait_active()
        assert made.publisher.image.topics == image.topics
        assert made.publisher.image.features == image.features
        assert len(made.written()) == 0, "what the snapshot holds is not replayed"


async def test_internal_topic_is_created_once() -> None:
    async with node() as made, trio.open_nursery() as nursery:
        await made.broker(b"a").start()
        for _ in range(5):
            nursery.start_soon(made.topic_creation.ensure_topic, "__consumer_offsets")
        await made.topic_creation.ensure_topic("__consumer_offsets")
        topic = made.publisher.image.topic("__consumer_offsets")
        assert topic is not None
        assert len(topic.partitions) == 50
        assert dict(made.publisher.image.config(2, "__consumer_offsets")) == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert await made.topic_creation.ensure_topic("__consumer_offsets") is None


async def test_why_an_internal_topic_cannot_be_created_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as made:
        await made.controller.wait_active()
        for _ in range(3):
            await made.topic_creation.ensure_topic("__consumer_offsets")
        (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert told.startswith(
            "topic not created topic=__consumer_offsets reason=Unable to replicate"
        )
        assert "\n" not in told


async def test_topics_of_several_first_uses_at_once() -> None:
    """Each waits for all that others make, also for what another begins while it waits."""
    made = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    gates = [trio.Event() for _ in range(3)]

    async def apply(delta: Any) -> None:
        if delta.created_topics:
            await gates[len(delta.after.topic_ids)].wait()

    made.publisher.add_applier(apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.quorum.run)
        await nursery.start(made.publisher.run)
        await made.broker(b"a").start()
        for names in (["b"], ["a", "b"], ["a"]):
            nursery.start_soon(made.topic_creation.ensure_topics, names)
            await trio.testing.wait_all_tasks_blocked()
        gates[1].set()
        await trio.testing.wait_all_tasks_blocked()
        gates[2].set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(made.publisher.applied.topic_ids) == ["a", "b"]
        assert await made.topic_creation.ensure_topics(["a", "b"]) == {}
        nursery.cancel_scope.cancel()


async def test_no_office_no_decisions() -> None:
    async with node() as made:
        await made.broker(b"a").start()
        epoch = made.quorum.leader().epoch
        made.controller.on_leadership(made.quorum.leader().__class__(2, epoch + 1))
        with pytest.raises(errors.NotController):
            await made.controller.call(decide_create_topics, create("t"))
        assert made.controller.state.image is made.publisher.image


@pytest.mark.parametrize("cut_off", [False, True])
async def test_an_office_that_is_lost_before_it_is_heard_of(cut_off: bool) -> None:
    """The quorum may be in another epoch already; what the log lacks is for the next to write."""
    made = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    if cut_off:
        records = (*feature_records(DEFAULT_FEATURES), r.BeginTransactionRecord(name="unfinished"))
        made.publisher.on_commit([CommittedBatch(0, len(records) - 1, 1, 0, records)])
    made.controller.on_leadership(LeaderAndEpoch(1, 1, is_active=True))
    assert not made.controller.is_active
    with pytest.raises(errors.NotController):
        await made.controller.call(decide_create_topics, create("t"))


async def test_reply_waits_for_this_nodes_replicas() -> None:
    """A topic's logs are opened before its creation is answered (clients produce at once)."""
    made = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    opened: list[str] = []
    slow = trio.Event()

    async def apply(delta: Any) -> None:
        if delta.created_topics:
            await slow.wait()
            opened.extend(delta.after.topic_ids)

    made.publisher.add_applier(apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.quorum.run)
        await nursery.start(made.publisher.run)
        await made.broker(b"a").start()
        call = partial(made.controller.call, in_force=True)
        nursery.start_soon(call, decide_create_topics, create("t"))
        await trio.testing.wait_all_tasks_blocked()
        assert made.publisher.image.topic("t") is not None
        assert made.publisher.applied.topic("t") is None, "committed, but not in force here"
        slow.set()
        await call(decide_create_topics, create("t"))
        assert opened == ["t"]
        nursery.cancel_scope.cancel()


async def test_a_node_that_starts_registers_before_it_applies() -> None:
    made = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))

    async def apply(delta: Any) -> None:
        assert delta.after is not None

    made.publisher.add_applier(apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.quorum.run)
        request = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
        await InProcessController(made.controller).ask(request)
        assert not made.publisher.applied.controllers
        await nursery.start(made.publisher.run)
        await made.publisher.wait_applied(made.quorum.next_offset - 1)
        assert sorted(made.publisher.applied.controllers) == [1]
        nursery.cancel_scope.cancel()
