"""A combined node without a data path, for admin requests: quorum, controller, handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import trio

from kwire.codec.apis import ListenerType
from kwire.configs.listeners import ListenerEndpoint
from kwire.configs.resource_types import BROKER
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.client_quotas import ClientQuotas
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.brokers import decide_on_broker, decide_register_controller
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.quorum import RaftService
from kwire.storage_format.format import feature_records
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, config_of, voters_of
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import CLUSTER, node_config
from tests.support.raftmeta.no_others import only_controller

ENDPOINTS = (ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092),)
CONTROLLERS = (ListenerEndpoint("CONTROLLER", "127.0.0.1", 9093),)


class AdminNode:
    """The node; ``for_connection`` answers frames."""

    def __init__(self, **settings: str) -> None:
        base = node_config(**settings)
        self.quorum = RaftService(
            config_of(1),
            MemoryStorage(),
            clock=TestClock(),
            random=Random(1),
            configured=voters_of(1),
        )
        self.publisher = MetadataPublisher()
        state = ControllerState(
            config=base,
            random=Random(2),
            cluster_id=CLUSTER,
            supported_features=dict(SUPPORTED),
        )
        self.controller = Controller(
            self.quorum,
            self.publisher,
            state,
            TestClock(),
            bootstrap=feature_records({name: high for name, (_, high) in SUPPORTED.items()}),
            own_broker=1,
        )
        self.active_controller = only_controller(self.controller)
        self.services = services_of(
            config=base,
            clock=TestClock(),
            image=self.publisher.image,
            active_controller=self.active_controller,
            topic_creation=AutoTopicCreation(self.active_controller, self.publisher),
            quorum=self.quorum,
            cluster_id=CLUSTER,
            supported_features=SUPPORTED,
            client_quotas=ClientQuotas(),
        )
        self.publisher.subscribe(self._on_image_published)
        self.broker = BrokerLifecycle(
            config=base,
            cluster_id=CLUSTER,
            incarnation_id=b"i" * 16,
            endpoints=ENDPOINTS,
            features=SUPPORTED,
            log_dirs=[b"d" * 16],
            publisher=self.publisher,
            ask=partial(self.active_controller.call, decide_on_broker),
            clock=TestClock(),
            local=self.controller,
        )

    def _on_image_published(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.services.current.image = image
        if delta.configs:
            base = self.broker.config
            own = image.config(BROKER, str(base.node_id))
            self.services.current.config = base.with_dynamic(image.config(BROKER, ""), own)

    def for_connection(self, side: ListenerType = ListenerType.BROKER) -> ConnectionRequests:
        listener = "PLAINTEXT" if side is ListenerType.BROKER else "CONTROLLER"
        return Dispatcher(self.services, side).for_connection(listener, "127.0.0.1")


@asynccontextmanager
async def admin_node(**settings: str) -> AsyncIterator[AdminNode]:
    """Run a node whose broker is registered and unfenced."""
    node = AdminNode(**settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(PeriodicTasks(node.controller, TestClock()).run)
        registration = controller_registration(
            node.broker.config, b"c" * 16, CONTROLLERS, SUPPORTED
        )
        await node.active_controller.call(decide_register_controller, registration)
        await node.broker.start()
        yield node
        nursery.cancel_scope.cancel()
