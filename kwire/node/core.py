"""The parts that every node has: directories, listeners, quorum, controller channel.

Rules: on a single-node cluster, the parts that only a multi-node cluster needs are created, but
their modules are not loaded and their tasks never wake up.
"""

import errno
import os
import socket
from collections.abc import Mapping
from ipaddress import IPv6Address
from random import Random
from typing import TYPE_CHECKING

from kwire import attrs
from kwire.clock import Clock, NodeClock
from kwire.codec.apis import ListenerType
from kwire.codec.messages.controller_registration import ControllerRegistrationRequest
from kwire.configs.broker import BrokerConfig
from kwire.errors import CorruptMessage
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Services
from kwire.log.descriptors import Descriptors, files_limit
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import AlreadyLocked, RealDisk, raise_descriptor_limit
from kwire.log.manager import LogManager
from kwire.net.connection_pool import ConnectionPool, Network, RaftPeers
from kwire.net.controller_channel import ControllerChannel
from kwire.net.limits import last_descriptor
from kwire.net.server import NetServer
from kwire.node import build
from kwire.node.controller_requests import InProcessController
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.metadata.snapshotter import Snapshotter
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.quorum_state import DamagedQuorumState
from kwire.raftmeta.raft.voters import Endpoint
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.storage_format.directories import (
    CannotOpenError,
    Identity,
    all_directories,
    examine,
    identify,
    refusal,
)
from kwire.storage_format.format import BOOTSTRAP, read_bootstrap
from kwire.types import random_uuid

if TYPE_CHECKING:
    from kwire.log.directories.cleaning_runner import CleaningRunner


@attrs.define(eq=False)
class Core:
    """One node's metadata, quorum, controller and listeners."""

    config: BrokerConfig
    identity: Identity
    clock: NodeClock
    random: Random
    """The source of every id that this node creates: of topics, members, sessions, directories."""
    services: Services
    logs: LogManager
    net: NetServer
    endpoints: tuple[build.AdvertisedListener, ...]
    """The advertised addresses of all listeners."""
    network: Network
    publisher: MetadataPublisher
    quorum: RaftService
    controller: Controller
    channel: ControllerChannel
    snapshotter: Snapshotter
    incarnation_id: bytes
    local: InProcessController = attrs.field(init=False)
    """The controller, as the other parts of this node use it."""
    active_controller: ActiveController = attrs.field(init=False)
    periodic_tasks: PeriodicTasks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        controller, channel = self.controller, self.channel
        self.local = InProcessController(controller, channel.ask, channel.alter, channel.ask)
        self.active_controller = ActiveController(controller, channel.insist, channel.insist_for)
        self.periodic_tasks = PeriodicTasks(controller, self.clock)
        services = self.services
        services.image = self.publisher.applied
        services.controller, services.quorum = controller, self.quorum
        services.topic_creation = AutoTopicCreation(self.active_controller, self.publisher)
        services.logs = self.logs
        services.channel = channel

    @property
    def controller_listeners(self) -> list[build.AdvertisedListener]:
        """The addresses at which other controllers and brokers reach this controller."""
        names = {endpoint.name for endpoint in self.config.controller_endpoints}
        return [endpoint for endpoint in self.endpoints if endpoint.name in names]

    @property
    def broker_listeners(self) -> list[build.AdvertisedListener]:
        """The addresses at which clients and other brokers reach this broker."""
        controllers = self.controller_listeners
        return [endpoint for endpoint in self.endpoints if endpoint not in controllers]

    def accept(self, name: str) -> None:
        """Start to serve a listener; raise CannotOpenError if its address was taken meanwhile."""
        try:
            self.net.accept(name)
        except OSError as error:
            endpoint = next(e for e in self.endpoints if e.name == name)
            raise CannotOpenError(_unbound(endpoint, error)) from error

    def registration(self) -> ControllerRegistrationRequest:
        """Return the request that registers this controller with the active one."""
        return controller_registration(
            self.config,
            self.incarnation_id,
            self.controller_listeners,
            self.services.supported_features,
        )


def make_core(
    config: BrokerConfig, cluster_id: str | None, *, clock: NodeClock, random: Random
) -> Core:
    """Claim addresses and directories; raise CannotOpenError or ConfigError with the reason.

    The order is: checks that change nothing, addresses, locks, and finally the formatting of empty
    directories. So a failed start leaves no directory formatted.
    """
    examine(config, cluster_id)
    services = Services(config=config, clock=clock, supported_features=SUPPORTED)
    net = NetServer(build.limits(config), services.metrics, clock.now)
    if os.name == "posix":
        net.acceptor.last_descriptor = last_descriptor(raise_descriptor_limit())
    logs: LogManager | None = None
    try:
        endpoints = _bind(config, services, net)
        logs = _lock_directories(config, clock, random)
        identity = identify(config, cluster_id, random.randbytes)
        for directory in (*logs.directories, *logs.claimed):
            directory.directory_id = identity.directories[directory.name]
        services.cluster_id = identity.cluster_id
        try:
            return _assemble(config, identity, clock, random, services, logs, net, endpoints)
        except OSError as error:
            raise CannotOpenError(refusal(config.metadata_directory, error)) from error
    except BaseException:
        for listener in net.listeners.values():
            listener.sock.close()
        if logs is not None:
            logs.abandon()
        raise


def _assemble(
    config: BrokerConfig,
    identity: Identity,
    clock: NodeClock,
    random: Random,
    services: Services,
    logs: LogManager,
    net: NetServer,
    endpoints: tuple[build.AdvertisedListener, ...],
) -> Core:
    # The source of delays. The number of draws depends on the time, and ids must not.
    jitter = Random(random.randbytes(16))
    network = Network(clock, jitter)
    publisher = MetadataPublisher()
    quorum = _make_quorum(config, identity, logs, endpoints, network)
    name = str(config.node_id)
    heartbeat_s = config.broker_heartbeat_interval_ms / 1000
    channel = ControllerChannel(
        quorum,
        registrations=ConnectionPool(
            network, name, timeout_s=config.broker_session_timeout_ms / 1000
        ),
        own_requests=ConnectionPool(network, name, timeout_s=heartbeat_s),
        isr_proposals=ConnectionPool(network, name, timeout_s=heartbeat_s),
        client_requests=ConnectionPool(network, name, timeout_s=config.request_timeout_ms / 1000),
    )
    controller = _make_controller(config, identity, quorum, publisher, random, clock)
    snapshotter = Snapshotter(quorum, publisher, build.snapshot_cadence(config), clock)
    return Core(
        config=config,
        identity=identity,
        clock=clock,
        random=random,
        services=services,
        logs=logs,
        net=net,
        endpoints=endpoints,
        network=network,
        publisher=publisher,
        quorum=quorum,
        controller=controller,
        channel=channel,
        snapshotter=snapshotter,
        incarnation_id=random_uuid(random.randbytes),
    )


def _lock_directories(config: BrokerConfig, clock: Clock, random: Random) -> LogManager:
    """Lock the directories and create missing ones; their ids are not known yet."""
    data = [os.path.abspath(path) for path in config.data_directories]
    descriptors = Descriptors(files_limit(raise_descriptor_limit()))
    opened = [
        LogDirectory(RealDisk(path, descriptors=descriptors), path)
        for path in all_directories(config)
    ]
    logs = LogManager(
        [directory for directory in opened if directory.name in data],
        clock,
        build.log_settings(config),
        claimed=[directory for directory in opened if directory.name not in data],
        random=random,
        make_runner=_make_runner if config.log_cleaner_enable else None,
        cleaner_settings=build.cleaner_settings(config),
    )
    try:
        for directory in opened:
            directory.disk.make_directory("")
        logs.lock()
    except AlreadyLocked as error:
        raise CannotOpenError(
            f"{error.strerror}; stop it, or name other directories in log.dirs"
        ) from error
    except OSError as error:
        raise CannotOpenError(refusal(_directory_of(error, opened), error)) from error
    return logs


def _make_runner() -> "CleaningRunner":
    """Return the runner of compaction passes; it is loaded with the first compacted log."""
    from kwire.log.directories.cleaning_runner import ProcessRunner

    return ProcessRunner()


def _directory_of(error: OSError, directories: list[LogDirectory]) -> str:
    """Return the name of the data directory that an error concerns."""
    path = str(error.filename or "")
    return next((d.name for d in directories if path.startswith(d.name)), directories[0].name)


def _bind(
    config: BrokerConfig, services: Services, net: NetServer
) -> tuple[build.AdvertisedListener, ...]:
    """Bind every address; connections are refused until the node can answer requests.

    Otherwise a client that connects to a starting node would wait for it, although other nodes
    could answer.
    """
    controllers = {endpoint.name for endpoint in config.controller_endpoints}
    sides = {
        side: Dispatcher(services, side) for side in (ListenerType.BROKER, ListenerType.CONTROLLER)
    }
    bound: dict[str, int] = {}
    for endpoint in config.endpoints:
        side = ListenerType.CONTROLLER if endpoint.name in controllers else ListenerType.BROKER
        try:
            address = net.bind(
                endpoint.name,
                endpoint.host,
                endpoint.port,
                sides[side].for_connection,
                protected=endpoint.name == config.inter_broker_listener,
            )
        except OSError as error:
            raise CannotOpenError(_unbound(endpoint, error)) from error
        bound[endpoint.name] = address.port
    return build.advertised_listeners(config, bound, socket.gethostname())


def _unbound(endpoint: build.AdvertisedListener, error: OSError) -> str:
    """Return one line for the operator: the address that cannot be bound, why, and the remedy."""
    what = f"cannot listen on {endpoint}: {error.strerror or error}"
    if isinstance(error, socket.gaierror):
        return f"{what}; name this host or an address of it in listeners"
    remedy = {
        errno.EADDRINUSE: "stop the program that uses it, or choose another port (--port, or "
        "listeners in the configuration)",
        errno.EACCES: "ports below 1024 need a privilege, choose a higher one",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.EADDRNOTAVAIL: "no interface of this machine has the address, change listeners",
        errno.EINVAL: _scope_remedy(endpoint.host),
    }.get(error.errno or 0)
    return what if remedy is None else f"{what}; {remedy}"


def _scope_remedy(host: str) -> str | None:
    """Return the remedy for a link-local IPv6 address, which is valid on every interface."""
    try:
        address = IPv6Address(host)
    except ValueError:
        return None
    if not address.is_link_local or address.scope_id is not None:
        return None
    return f"name the interface of a link-local address, as in [{host}%eth0]"


def _make_quorum(
    config: BrokerConfig,
    identity: Identity,
    logs: LogManager,
    endpoints: tuple[build.AdvertisedListener, ...],
    network: Network,
) -> RaftService:
    path = os.path.abspath(config.metadata_directory)
    names = {endpoint.name for endpoint in config.controller_endpoints}
    controller_endpoints = tuple(
        Endpoint(e.name, e.host, e.port) for e in endpoints if e.name in names
    )
    disk = next(d.disk for d in (*logs.directories, *logs.claimed) if d.name == path)
    raft = build.raft_config(config, identity, identity.directories[path], controller_endpoints)
    links = ConnectionPool(
        network,
        f"raft-client-{config.node_id}",
        timeout_s=raft.request_timeout_s,
        backoff_s=raft.retry_backoff_s,
        backoff_max_s=raft.retry_backoff_max_s,
    )
    try:
        return RaftService(
            raft,
            DiskStorage(disk, now_ms=network.clock.now_ms(), config=build.metadata_log(config)),
            clock=network.clock,
            random=network.random,
            configured=build.configured_voters(config),
            peers=RaftPeers(links),
            retention=build.metadata_retention(config),
        )
    except (DamagedQuorumState, CorruptMessage) as error:
        raise CannotOpenError(f"{path}: {error}") from error


def _make_controller(
    config: BrokerConfig,
    identity: Identity,
    quorum: RaftService,
    publisher: MetadataPublisher,
    random: Random,
    clock: Clock,
) -> Controller:
    disk = RealDisk(config.metadata_directory)
    bootstrap = []
    try:
        bootstrap = list(read_bootstrap(disk.read(BOOTSTRAP)))
    except FileNotFoundError:
        pass
    except (CorruptMessage, ValueError) as error:
        path = os.path.join(config.metadata_directory, BOOTSTRAP)
        raise CannotOpenError(f"{path} is damaged: {error}; bring back a copy") from error
    features: Mapping[str, tuple[int, int]] = SUPPORTED
    state = ControllerState(
        config=config,
        random=random,
        cluster_id=identity.cluster_id,
        supported_features=dict(features),
    )
    return Controller(
        quorum,
        publisher,
        state,
        clock,
        bootstrap=bootstrap,
        own_broker=config.node_id,
    )
