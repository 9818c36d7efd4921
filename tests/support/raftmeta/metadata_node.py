"""The metadata side of a combined node, on a quorum of one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import trio

from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.brokers import decide_on_broker
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.quorum import RaftService
from kwire.storage_format.format import DEFAULT_FEATURES, feature_records
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, Watcher, config_of, voters_of
from tests.support.raftmeta.clusters import CLUSTER, ENDPOINTS, node_config
from tests.support.raftmeta.no_others import only_controller


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
        self.active_controller = only_controller(self.controller)
        self.topic_creation = AutoTopicCreation(self.active_controller, self.publisher)
        self.watcher.watch(self.quorum)

    def broker(self, incarnation: bytes) -> BrokerLifecycle:
        return BrokerLifecycle(
            config=node_config(),
            cluster_id=CLUSTER,
            incarnation_id=incarnation * 16,
            endpoints=ENDPOINTS,
            features=SUPPORTED,
            log_dirs=[b"d" * 16],
            publisher=self.publisher,
            ask=partial(self.active_controller.call, decide_on_broker),
            clock=TestClock(),
            local=self.controller,
        )

    def records(self) -> list[Any]:
        return [record for batch in self.watcher.batches for record in batch.records]


@asynccontextmanager
async def running_node(
    storage: MemoryStorage | None = None, features: dict[str, int] | None = None
) -> AsyncIterator[Node]:
    """Run the quorum and the periodic tasks of a node for the length of the block."""
    node = Node(storage or MemoryStorage(), list(feature_records(features or DEFAULT_FEATURES)))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(node.periodic_tasks.run)
        yield node
        nursery.cancel_scope.cancel()
