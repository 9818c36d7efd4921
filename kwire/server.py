"""Builds every part of one node, starts them in order and stops them in order.  No logic.

Rules: a node is an object, without globals or signal handlers, so that several live in one
process; "ready" is said when every request would be answered; a part that fails takes the node
down with a clear last line.
"""

import logging
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import trio

from kwire import wiring
from kwire.clock import SystemClock
from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.configs.broker import BrokerConfig
from kwire.coordinator.groups import GROUPS_TOPIC, GroupCoordinator
from kwire.formatting import CannotOpenError, Identity, format_node, identify, random_id
from kwire.handlers import Side
from kwire.handlers.dispatch import Dispatcher, Services
from kwire.log.config import LogConfig
from kwire.log.directory import LogDirectory
from kwire.log.disk import AlreadyLocked, RealDisk, raise_descriptor_limit
from kwire.log.service import LogManager
from kwire.net.service import Address, NetService
from kwire.raftmeta.broker_lifecycle import BrokerLifecycle, controller_registration, directly
from kwire.raftmeta.controller import ControllerState
from kwire.raftmeta.controller_features import SUPPORTED
from kwire.raftmeta.controller_service import Controller
from kwire.raftmeta.disk_storage import DiskStorage
from kwire.raftmeta.format import BOOTSTRAP, read_bootstrap
from kwire.raftmeta.image_change import MetadataDelta
from kwire.raftmeta.publisher import MetadataPublisher
from kwire.raftmeta.service import Quorum
from kwire.raftmeta.snapshotter import Snapshotter
from kwire.raftmeta.voters import Endpoint
from kwire.replica.coordinator_log import CoordinatorLog
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.log_config import log_config
from kwire.replica.producer_ids import ProducerIds
from kwire.replica.service import ReplicaService
from kwire.types import TopicPartition, uuid_text

__all__ = ["CannotOpenError", "Server", "format_node", "run_until_signal"]

log = logging.getLogger(__name__)

TOPIC: Final = 2
BROKER: Final = 4
"""Types of config resources."""
SESSION_EVICTION_S: Final = 120.0
HAND_OVER_SECONDS: Final = 10.0
"""How long handing over leaderships may take in a stop."""


class Server:
    """One node that is broker and controller."""

    def __init__(self, config: BrokerConfig, cluster_id: str | None = None) -> None:
        """Claim directories and addresses; CannotOpenError or OSError says what is wrong."""
        raise_descriptor_limit()
        self.config = config
        self.identity = identity = identify(config, cluster_id)
        self.clock = SystemClock()
        self.random = random.Random(os.urandom(16))
        self.services = Services(
            config=config,
            clock=self.clock,
            cluster_id=identity.cluster_id,
            supported_features=SUPPORTED,
        )
        self._stop = trio.Event()
        self.logs = self._lock_directories(identity)
        self.net = NetService(wiring.limits(config))
        self.endpoints = self._bind()
        self.publisher = MetadataPublisher()
        self.quorum = self._make_quorum(identity)
        self.controller = self._make_controller(identity)
        self.snapshotter = Snapshotter(
            self.quorum, self.publisher, wiring.snapshot_cadence(self.config), self.clock
        )
        self.replicas = self._make_replicas()
        self.groups = self._make_groups()
        self.lifecycle = self._make_lifecycle(identity)
        self._fill_services()

    # Building -------------------------------------------------------------------------------
    def _lock_directories(self, identity: Identity) -> LogManager:
        directories = [
            LogDirectory(RealDisk(path), path, directory_id)
            for path, directory_id in identity.directories.items()
        ]
        logs = LogManager(directories, self.clock, wiring.log_settings(self.config))
        try:
            logs.lock()
        except AlreadyLocked as error:
            raise CannotOpenError(f"another broker uses this directory: {error}") from error
        return logs

    def _bind(self) -> tuple[wiring.Told, ...]:
        """Take every address; connections wait in the kernel until the node is ready."""
        controllers = {endpoint.name for endpoint in self.config.controller_endpoints}
        sides = {side: Dispatcher(self.services, side) for side in (Side.BROKER, Side.CONTROLLER)}
        bound = {}
        for endpoint in self.config.endpoints:
            side = Side.CONTROLLER if endpoint.name in controllers else Side.BROKER
            try:
                address = self.net.bind(
                    endpoint.name,
                    endpoint.host,
                    endpoint.port,
                    sides[side].session,
                    protected=endpoint.name == self.config.inter_broker_listener,
                )
            except OSError as error:
                raise CannotOpenError(f"cannot listen on {endpoint}: {error.strerror}") from error
            bound[endpoint.name] = address.port
        return wiring.advertised(self.config, bound, socket.gethostname())

    def _make_quorum(self, identity: Identity) -> Quorum:
        path = os.path.abspath(self.config.metadata_directory)
        names = {endpoint.name for endpoint in self.config.controller_endpoints}
        told = tuple(Endpoint(e.name, e.host, e.port) for e in self.endpoints if e.name in names)
        disk = next(d.disk for d in self.logs.directories if d.name == path)
        return Quorum(
            wiring.raft_config(self.config, identity, identity.directories[path], told),
            DiskStorage(disk, now_ms=self.clock.now_ms(), config=wiring.metadata_log(self.config)),
            clock=self.clock,
            random=self.random,
            configured=wiring.configured_voters(self.config),
        )

    def _make_controller(self, identity: Identity) -> Controller:
        disk = RealDisk(self.config.metadata_directory)
        bootstrap = []
        with suppress(FileNotFoundError):
            bootstrap = list(read_bootstrap(disk.read(BOOTSTRAP)))
        state = ControllerState(
            config=self.config,
            random=self.random,
            cluster_id=identity.cluster_id,
            supported_features=dict(SUPPORTED),
        )
        return Controller(
            self.quorum,
            self.publisher,
            state,
            self.clock,
            bootstrap=bootstrap,
            own_broker=self.config.node_id,
        )

    def _make_replicas(self) -> ReplicaService:
        config = self.config
        slots = config.max_incremental_fetch_session_cache_slots
        replicas = ReplicaService(
            node=config.node_id,
            logs=self.logs,
            configs=self._log_config,
            sessions=FetchSessions(
                slots, SESSION_EVICTION_S, lambda: self.random.randrange(1, 1 << 31)
            ),
            metrics=self.services.metrics,
            lag_max_s=config.replica_lag_time_max_ms / 1000,
        )
        self.logs.on_written = replicas.log_written
        self.logs.on_offline = replicas.directory_failed
        return replicas

    def _log_config(self, topic: str) -> LogConfig:
        """A topic's settings as the newest metadata has them."""
        overrides = self.publisher.image.config(TOPIC, topic)
        return log_config(overrides, self.services.config)

    def _make_groups(self) -> GroupCoordinator:
        def partitions() -> int:
            topic = self.publisher.image.topic(GROUPS_TOPIC)
            found = self.services.config.offsets_topic_num_partitions
            return found if topic is None else len(topic.partitions)

        groups = GroupCoordinator.build(
            CoordinatorLog(self.replicas, self.clock),
            self.clock,
            config=lambda: self.services.config,
            partitions=partitions,
            new_id=lambda: uuid_text(random_id()),
        )
        self.replicas.on_role(groups.role_changed)
        return groups

    def _make_lifecycle(self, identity: Identity) -> BrokerLifecycle:
        controllers = {endpoint.name for endpoint in self.config.controller_endpoints}
        return BrokerLifecycle(
            config=self.config,
            cluster_id=identity.cluster_id,
            incarnation_id=random_id(),
            endpoints=[e for e in self.endpoints if e.name not in controllers],
            features=SUPPORTED,
            log_dirs=sorted(identity.directories.values()),
            publisher=self.publisher,
            ask=directly(self.controller),
            clock=self.clock,
            local=self.controller,
        )

    def _fill_services(self) -> None:
        services = self.services
        services.image = self.publisher.applied
        services.replicas, services.groups = self.replicas, self.groups
        services.controller, services.quorum = self.controller, self.quorum
        services.logs = self.logs
        services.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.publisher.add_applier(self._reconfigure)
        self.publisher.add_applier(self.replicas.apply)
        self.publisher.subscribe(lambda image, delta: self._in_force(delta))

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        from kwire.raftmeta.controller_limits import decide_allocate_producer_ids

        request = AllocateProducerIdsRequest(
            broker_id=self.config.node_id, broker_epoch=self.lifecycle.epoch
        )
        reply = await self.controller.call(decide_allocate_producer_ids, request)
        return reply.producer_id_start, reply.producer_id_len

    # Following the metadata -----------------------------------------------------------------
    async def _reconfigure(self, delta: MetadataDelta) -> None:
        """Settings of brokers that changed come first: the other parts read them."""
        own = str(self.config.node_id)
        if {(BROKER, ""), (BROKER, own)} & delta.configs:
            image = delta.after
            self.services.config = self.config.with_dynamic(
                image.config(BROKER, ""), image.config(BROKER, own)
            )

    def _in_force(self, delta: MetadataDelta) -> None:
        self.services.image = delta.after
        for topic in delta.deleted_topics.values():
            self.groups.topic_deleted(topic.name, topic.id)

    # Running --------------------------------------------------------------------------------
    @property
    def address(self) -> Address:
        """Where clients reach the node: its first listener that is not the controllers'."""
        return self.net.listeners[self.config.broker_endpoints[0].name].address

    def stop(self) -> None:
        """Begin a stop in order; :meth:`run` returns when it is done."""
        self._stop.set()

    async def run(self, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until :meth:`stop`; started with the clients' address when ready."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.net.run)
            await nursery.start(self.quorum.run)
            await nursery.start(self.controller.run)
            await self._register_controller()
            await self.logs.open(self._log_config)
            self.logs.strays(self._is_known)
            await nursery.start(self.logs.run)
            await nursery.start(self.groups.service.run)
            await nursery.start(self.publisher.run)
            await self.lifecycle.start()
            await self.publisher.wait_applied(self.quorum.next_offset - 1)
            await nursery.start(self.lifecycle.run)
            await nursery.start(self.snapshotter.run)
            for name in self.net.listeners:
                self.net.accept(name)
            log.info("ready node=%d address=%s:%d", self.config.node_id, *self.address)
            task_status.started(self.address)
            await self._stop.wait()
            await self._hand_over()
            nursery.cancel_scope.cancel()
        await self.logs.close(self.lifecycle.epoch)

    async def _register_controller(self) -> None:
        """Be the active controller, and known as one: the first records of a new cluster."""
        names = {endpoint.name for endpoint in self.config.controller_endpoints}
        told = [endpoint for endpoint in self.endpoints if endpoint.name in names]
        await self.lifecycle.ask(
            controller_registration(self.config, self.lifecycle.incarnation_id, told, SUPPORTED)
        )

    def _is_known(self, partition: TopicPartition, topic_id: bytes) -> bool:
        """Whether the metadata knows a partition that lies in a directory."""
        topic = self.publisher.image.topic(partition.topic)
        return (
            topic is not None
            and topic_id in (topic.id, bytes(16))
            and partition.partition in topic.partitions
        )

    async def _hand_over(self) -> None:
        """No new connections, then the leaderships go, then nobody waits for an answer."""
        log.info("stopping node=%d", self.config.node_id)
        self.net.stop_accepting()
        with trio.move_on_after(HAND_OVER_SECONDS):
            await self.lifecycle.stop()
            await self.quorum.shut_down()
        self.groups.service.resign_all()


def run_until_signal(
    config: BrokerConfig,
    *,
    cluster_id: str | None,
    metrics_port: int | None,
    ready: Callable[[str, int], None],
) -> None:
    """Run one node in this process until SIGTERM or SIGINT; a second one ends it at once."""
    trio.run(_until_signal, config, cluster_id, metrics_port, ready)


async def _until_signal(
    config: BrokerConfig,
    cluster_id: str | None,
    metrics_port: int | None,
    ready: Callable[[str, int], None],
) -> None:
    server = Server(config, cluster_id)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            if metrics_port is not None:
                from kwire.net.metrics import serve_metrics

                await nursery.start(serve_metrics, "", metrics_port, server.services.metrics.text)
            nursery.start_soon(_stop_on, signals, server)
            async with trio.open_nursery() as running:
                ready(*await running.start(server.run))
            nursery.cancel_scope.cancel()


async def _stop_on(signals: AsyncIterator[int], server: Server) -> None:
    stopping = False
    async for number in signals:
        log.info("signal number=%d", number)
        if stopping:
            os._exit(128 + number)
        stopping = True
        server.stop()
