"""The parts that every node has: directories, listeners, quorum, controller channel.

Rules: on a single-node cluster, the parts that only a multi-node cluster needs are created, but
their modules are not loaded and their tasks never wake up.
"""

import errno
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import IPv6Address
from random import Random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.clock import NodeClock
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import has_sasl
from kwire.errors import CorruptMessage, KafkaError, UnsupportedVersion, raise_for_code
from kwire.handlers.shared.context import Current
from kwire.log.directories.directory import LogDirectory
from kwire.log.directory_lock import AlreadyLocked
from kwire.log.manager import LogManager
from kwire.metrics import Metrics
from kwire.net.connection_pool import ConnectionPool, Network, RaftPeers
from kwire.net.controller_channel import ControllerChannel
from kwire.net.listener import ForConnection
from kwire.node import build
from kwire.node.environment import Environment, Listeners, source_of_delays
from kwire.node.tls import NodeTls, controller_listener, open_node_tls
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.brokers import decide_register_controller
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.metadata.snapshotter import Snapshotter
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.quorum_state import DamagedQuorumState
from kwire.raftmeta.raft.voters import VoterEndpoint
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.levels import CONTROLLERS, METADATA_VERSION
from kwire.storage_format.directories import (
    CannotOpenError,
    Identity,
    all_directories,
    examine,
    identify,
    is_of_a_failing_disk,
    is_single_voter,
    refusal,
)
from kwire.storage_format.format import BOOTSTRAP, read_bootstrap
from kwire.types import random_uuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.codec.messages.metadata_records import MetadataRecord
    from kwire.log.directories.segment_checker import SegmentChecker
    from kwire.net.node_login import NodeLogin

logger = logging.getLogger(__name__)

REGISTRATION_RETRY_SECONDS: Final = 0.1


@attrs.define(eq=False, repr=False)
class Core:
    """One node's metadata, quorum, controller and listeners."""

    config: BrokerConfig
    identity: Identity
    clock: NodeClock
    random: Random
    """The source of every id that this node creates: of topics, members, sessions, directories."""
    current: Current
    """The settings and metadata in force."""
    metrics: Metrics
    features: Mapping[str, tuple[int, int]]
    """The smallest and largest level that this node supports, by feature."""
    logs: LogManager
    net: Listeners
    tls: NodeTls
    endpoints: tuple[build.AdvertisedListener, ...]
    """The advertised addresses of all listeners."""
    network: Network
    publisher: MetadataPublisher
    quorum: RaftService
    controller: Controller
    channel: ControllerChannel
    snapshotter: Snapshotter
    incarnation_id: bytes
    broker_login: "NodeLogin | None"
    """The login at other brokers; None if they do not require one."""
    make_checker: "Callable[[], SegmentChecker] | None"
    """Creates the processes of a scrub; None for a node that cannot scrub."""
    active_controller: ActiveController = attrs.field(init=False)
    topic_creation: AutoTopicCreation = attrs.field(init=False)
    periodic_tasks: PeriodicTasks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.active_controller = ActiveController(self.controller, self.channel)
        self.periodic_tasks = PeriodicTasks(self.controller, self.clock)
        self.topic_creation = AutoTopicCreation(self.active_controller, self.publisher)

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

    def broker_pool(self, timeout_s: float) -> ConnectionPool:
        """Return a pool of connections to other brokers; ``timeout_s`` limits each request."""
        name = str(self.config.node_id)
        tls, login = self.tls.to_brokers, self.broker_login
        return self.network.pool(name, timeout_s, tls=tls, login=login)

    def accept(self, name: str, for_connection: ForConnection) -> None:
        """Start to serve a listener; raise CannotOpenError if its address was taken meanwhile."""
        try:
            self.net.accept(name, for_connection)
        except OSError as error:
            endpoint = next(e for e in self.endpoints if e.name == name)
            raise CannotOpenError(_unbound(endpoint, error)) from error

    async def register_controller(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Register this controller with the active one; retry until that succeeds.

        Report the start after the first answer, and wait if the metadata.version is too old.
        """
        request = controller_registration(
            self.config,
            self.incarnation_id,
            self.controller_listeners,
            self.features,
        )
        is_answered = False
        while True:
            error: KafkaError | None = None
            try:
                reply = await self.active_controller.call(decide_register_controller, request)
                raise_for_code(reply.error_code)
            except KafkaError as refusal:
                error = refusal
            is_too_old = isinstance(error, UnsupportedVersion)
            if not is_answered and (error is None or is_too_old):
                task_status.started()
                is_answered = True
            if error is None:
                return
            logger.debug("controller not registered yet reason=%r", error)
            if is_too_old:
                await self.publisher.wait_for(_has_controllers)
            else:
                await trio.sleep(REGISTRATION_RETRY_SECONDS)


def _has_controllers(image: MetadataImage) -> bool:
    """Return whether a metadata.version is known that has registrations of controllers."""
    return image.features.get(METADATA_VERSION, 0) >= CONTROLLERS


def make_core(
    config: BrokerConfig,
    environment: Environment,
    cluster_id: str | None,
    features: Mapping[str, tuple[int, int]],
) -> Core:
    """Claim addresses and directories; raise CannotOpenError or ConfigError with the reason.

    The order is: checks that change nothing, addresses, locks, and finally the formatting of empty
    directories. So a failed start leaves no directory formatted.
    """
    disks, random = environment.disks, environment.random
    failed = examine(config, cluster_id, disks).failed
    metrics = Metrics()
    net = environment.open_listeners(build.limits(config), metrics)
    logs: LogManager | None = None
    try:
        tls = open_node_tls(config, metrics, environment.clock)
        endpoints = _bind(config, net, tls, environment.host_name)
        logs = _lock_directories(config, environment, failed)
        failed = _failures((*logs.directories, *logs.claimed))
        identity = identify(config, cluster_id, disks, random.randbytes, failed)
        for directory in (*logs.directories, *logs.claimed):
            if directory.name in identity.directories:
                directory.directory_id = identity.directories[directory.name]
            elif directory.online:  # It could be read when the start began.
                directory.disk.fail(identity.failed[directory.name])
                directory.note_failure()
        try:
            return _assemble(
                config, identity, environment, features, metrics, logs, net, tls, endpoints
            )
        except OSError as error:
            raise CannotOpenError(refusal(config.metadata_directory, error)) from error
    except BaseException:
        net.close()
        if logs is not None:
            logs.abandon()
        raise


def _assemble(
    config: BrokerConfig,
    identity: Identity,
    environment: Environment,
    features: Mapping[str, tuple[int, int]],
    metrics: Metrics,
    logs: LogManager,
    net: Listeners,
    tls: NodeTls,
    endpoints: tuple[build.AdvertisedListener, ...],
) -> Core:
    network, random = environment.network, environment.random
    metadata = _metadata_directory(config, logs)
    publisher = MetadataPublisher()
    login = _controller_login(config, environment)
    quorum = _make_quorum(config, identity, metadata, endpoints, environment, tls, login)
    pool = partial(network.pool, str(config.node_id), tls=tls.to_controllers, login=login)
    heartbeat_s = config.broker_heartbeat_interval_ms / 1000
    channel = ControllerChannel(
        quorum,
        registrations=pool(config.broker_session_timeout_ms / 1000),
        own_requests=pool(heartbeat_s),
        isr_proposals=pool(heartbeat_s),
        client_requests=pool(config.request_timeout_ms / 1000),
    )
    state = ControllerState(
        config=config,
        random=random,
        cluster_id=identity.cluster_id,
        supported_features=dict(features),
    )
    controller = Controller(
        quorum,
        publisher,
        state,
        environment.clock,
        bootstrap=_read_bootstrap(metadata),
        own_broker=config.node_id,
    )
    cadence = build.snapshot_cadence(config)
    return Core(
        config=config,
        identity=identity,
        clock=environment.clock,
        random=random,
        current=Current(config=config, image=publisher.applied),
        metrics=metrics,
        features=features,
        logs=logs,
        net=net,
        tls=tls,
        endpoints=endpoints,
        network=network,
        publisher=publisher,
        quorum=quorum,
        controller=controller,
        channel=channel,
        snapshotter=Snapshotter(quorum, publisher, cadence, environment.clock),
        incarnation_id=random_uuid(random.randbytes),
        broker_login=_broker_login(config, environment),
        make_checker=environment.make_checker,
    )


def _controller_login(config: BrokerConfig, environment: Environment) -> "NodeLogin | None":
    """Return this node's login at controllers; None if they do not require one."""
    listener = controller_listener(config)
    if not has_sasl(config.protocols.get(listener, "")):
        return None
    from kwire.configs.sasl import controller_account
    from kwire.node.node_logins import make_login

    account = controller_account(config.static, listener)
    return make_login(account, environment.random, environment.clock)


def _broker_login(config: BrokerConfig, environment: Environment) -> "NodeLogin | None":
    """Return this node's login at other brokers; None if they do not require one."""
    listener = config.inter_broker_listener
    if not config.is_broker or not has_sasl(config.protocols.get(listener, "")):
        return None
    from kwire.configs.sasl import broker_account
    from kwire.node.node_logins import make_login

    account = broker_account(config.static, listener)
    return make_login(account, environment.random, environment.clock)


def _lock_directories(
    config: BrokerConfig, environment: Environment, failed: Mapping[str, OSError]
) -> LogManager:
    """Lock the directories and create missing ones; their ids are not known yet.

    The ``failed`` ones are offline from the start, and left alone. So is a directory whose disk
    fails now, unless the node cannot run without it.
    """
    data = [os.path.abspath(path) for path in config.data_directories]
    opened = [LogDirectory(environment.disks.open(path), path) for path in all_directories(config)]
    for directory in opened:
        if directory.name in failed:
            directory.disk.fail(failed[directory.name])
            directory.note_failure()
    logs = LogManager(
        [directory for directory in opened if directory.name in data],
        environment.clock,
        build.log_settings(config),
        claimed=[directory for directory in opened if directory.name not in data],
        random=environment.random,
        make_runner=environment.make_cleaner if config.log_cleaner_enable else None,
        cleaner_settings=build.cleaner_settings(config),
    )
    metadata = os.path.abspath(config.metadata_directory)
    try:
        for directory in opened:
            if directory.online:
                _lock(directory, is_needed=directory.name == metadata)
    except BaseException:
        logs.abandon()
        raise
    return logs


def _lock(directory: LogDirectory, *, is_needed: bool) -> None:
    """Create and lock a directory, or take it offline if its disk fails.

    Raises CannotOpenError if another broker uses the directory, if the directory ``is_needed``, or
    if the error is the operator's to correct.
    """
    try:
        directory.disk.make_directory("")
        directory.lock()
    except AlreadyLocked as error:
        raise CannotOpenError(
            f"{error.strerror}; stop it, or name other directories in log.dirs"
        ) from error
    except OSError as error:
        if is_needed or not is_of_a_failing_disk(error):
            raise CannotOpenError(refusal(directory.name, error)) from error
        directory.disk.fail(error)
        directory.note_failure()


def _failures(directories: "Sequence[LogDirectory]") -> Mapping[str, OSError]:
    """Return the errors of the offline directories, by path."""
    failures = {directory.name: directory.disk.failed for directory in directories}
    return {path: error for path, error in failures.items() if error is not None}


def _bind(
    config: BrokerConfig,
    net: Listeners,
    tls: NodeTls,
    host_name: str,
) -> tuple[build.AdvertisedListener, ...]:
    """Bind every address; connections are refused until the node can answer requests.

    Otherwise a client that connects to a starting node would wait for it, although other nodes
    could answer.
    """
    bound: dict[str, int] = {}
    of_nodes = {config.inter_broker_listener, *map(str.upper, config.controller_listener_names)}
    for endpoint in config.endpoints:
        try:
            address = net.bind(
                endpoint.name,
                endpoint.host,
                endpoint.port,
                protected=endpoint.name in of_nodes,
                tls=tls.listeners.get(endpoint.name),
            )
        except OSError as error:
            raise CannotOpenError(_unbound(endpoint, error)) from error
        bound[endpoint.name] = address.port
    return build.advertised_listeners(config, bound, host_name)


def _unbound(endpoint: build.AdvertisedListener, error: OSError) -> str:
    """Return one line for the operator: the address that cannot be bound, why, and a remedy."""
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


def _metadata_directory(config: BrokerConfig, logs: LogManager) -> LogDirectory:
    path = os.path.abspath(config.metadata_directory)
    return next(d for d in (*logs.directories, *logs.claimed) if d.name == path)


def _make_quorum(
    config: BrokerConfig,
    identity: Identity,
    metadata: LogDirectory,
    endpoints: tuple[build.AdvertisedListener, ...],
    environment: Environment,
    tls: NodeTls,
    login: "NodeLogin | None",
) -> RaftService:
    clock = environment.clock
    names = {endpoint.name for endpoint in config.controller_endpoints}
    controller_endpoints = tuple(
        VoterEndpoint(e.name, e.host, e.port) for e in endpoints if e.name in names
    )
    raft = build.raft_config(config, identity, metadata.directory_id, controller_endpoints)
    links = environment.network.pool(
        f"raft-client-{config.node_id}",
        raft.request_timeout_s,
        backoff_s=raft.retry_backoff_s,
        backoff_max_s=raft.retry_backoff_max_s,
        tls=tls.to_controllers,
        login=login,
    )
    try:
        return RaftService(
            raft,
            DiskStorage(
                metadata.disk,
                now_ms=clock.now_ms(),
                config=build.metadata_log(config),
                lone_id=config.node_id if is_single_voter(config) else None,
            ),
            clock=clock,
            random=source_of_delays(environment.random),
            configured=build.configured_voters(config),
            peers=RaftPeers(links),
            retention=build.metadata_retention(config),
            observer=environment.observer,
        )
    except (DamagedQuorumState, CorruptMessage) as error:
        raise CannotOpenError(f"{metadata.name}: {error}") from error


def _read_bootstrap(metadata: LogDirectory) -> "Sequence[MetadataRecord]":
    """Return the records with which the first controller of a cluster starts."""
    try:
        return read_bootstrap(metadata.disk.read(BOOTSTRAP))
    except FileNotFoundError:
        return ()
    except (CorruptMessage, ValueError) as error:
        path = os.path.join(metadata.name, BOOTSTRAP)
        raise CannotOpenError(f"{path} is damaged: {error}; restore a copy") from error
