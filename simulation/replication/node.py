"""A simulated machine: disks that outlive its processes, and at most one running kwire node.

The node is :class:`kwire.node.server.Server` itself, with a core whose quorum storage, log
directories, connections, listeners and clock are simulated.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Final, cast

import trio

from kwire import attrs
from kwire.codec.apis import ListenerType
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.configs.broker import BrokerConfig
from kwire.errors import BrokerIdNotRegistered, DuplicateBrokerRegistration, KafkaStorageError
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Services
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.net.connection_pool import RaftPeers
from kwire.net.controller_channel import ControllerChannel
from kwire.net.listener import Address
from kwire.net.server import NetServer
from kwire.node import build
from kwire.node.broker_watch import BrokerWatch
from kwire.node.core import Core
from kwire.node.server import Server
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.process_probe import ProcessProbe
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.image import Endpoint
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.metadata.snapshot_cadence import SnapshotCadence
from kwire.raftmeta.metadata.snapshotter import Snapshotter
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import Endpoint as VoterEndpoint
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterSet
from kwire.raftmeta.storage.records import snapshot_chunks
from kwire.replica.partition import Partition
from kwire.storage_format.directories import Identity
from simulation.disk import SimDisk
from simulation.inodes import Directory
from simulation.raft.quorums import TestClock
from simulation.raft.storage import SimStorage
from simulation.replication.links import SimListener, SimListeners, SimNetwork, address_of
from simulation.replication.metadata_checks import Books, Watch
from simulation.replication.processes import Gate, start_behind
from simulation.replication.releases import Features, ReleaseWatch
from simulation.replication.settings import CLUSTER_ID
from simulation.replication.watched_quorum import WatchedQuorum
from simulation.replication.wire import Wire

CONTROLLER: Final = "CONTROLLER"
SNAPSHOT_BYTES: Final = 6000
"""The number of bytes of records after which a node writes a snapshot."""
_METADATA: Final = 0xFF
"""The number of the metadata log's directory."""
_START: Final = SnapshotId(0, 0)
_ENDS: Final = (BrokerIdNotRegistered, DuplicateBrokerRegistration, KafkaStorageError)
"""Errors that end a process: a lost registration, or no working log directory."""
_PROBED_S: Final = 0.01
"""The time until a connection to a broker's process is accepted or refused."""


@attrs.define(eq=False)
class Cluster:
    """The parts of the world that all machines share."""

    seed: int
    wire: Wire
    books: Books
    bootstrap: list[MetadataRecord]
    initial_voters: VoterSet | None = None
    """The initial voters of a dynamic quorum; None if the voters are configured."""


@attrs.define(eq=False)
class SimClock(TestClock):
    """The clocks of one machine, whose wall clock can be set."""

    ahead_ms: int = 0
    """The milliseconds by which the wall clock is ahead of the world's."""

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@attrs.define(eq=False)
class SimMachine:
    """One machine: its disks, and its process while one runs."""

    id: int
    config: BrokerConfig
    cluster: Cluster
    storage: SimStorage
    disks: list[SimDisk]
    directory_ids: list[bytes] = attrs.field(init=False)
    installed: Features = SUPPORTED
    """The features of the release that the next process will run."""
    features: Features = SUPPORTED
    """The features of the release that the current or last process runs."""
    lives: int = 0
    """The number of processes started so far."""
    server: Server | None = None
    is_stopping: bool = False
    gate: Gate = attrs.field(factory=Gate)
    clock: SimClock = attrs.field(factory=SimClock)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self.directory_ids = [directory_id(self.id, place) for place in range(len(self.disks))]
        voters = self.cluster.initial_voters
        if voters is not None and voters.get(self.id) is not None:
            self.storage.format(_START, _first_snapshot(voters))

    @property
    def is_outdated(self) -> bool:
        """True while the process runs another release than the installed one."""
        return self.is_alive and self.features != self.installed

    @property
    def is_alive(self) -> bool:
        return self.server is not None

    @property
    def is_paused(self) -> bool:
        return self.gate.is_shut

    @property
    def is_serving(self) -> bool:
        """True while the process answers every request, except while it is paused."""
        return self.server is not None and self.server.is_serving

    @property
    def is_active(self) -> bool:
        """True while the process considers its own controller active."""
        return self.server is not None and self.server.core.controller.is_active

    @property
    def services(self) -> Services | None:
        return None if self.server is None else self.server.services

    def is_fenced(self) -> bool:
        """Return whether this incarnation of the broker is fenced in the committed metadata."""
        if self.is_stopping or not self.is_registered:
            return False
        return self.cluster.books.image.brokers[self.id].fenced

    @property
    def is_registered(self) -> bool:
        """True while this incarnation of the broker is registered in the committed metadata."""
        server, broker = self.server, self.cluster.books.image.brokers.get(self.id)
        if server is None or server.broker is None or broker is None:
            return False
        return broker.epoch == server.broker.lifecycle.epoch

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition if the broker's process runs and has it, else None."""
        services = self.services
        if services is None or not self.config.is_broker:
            return None
        return services.replicas.partitions.find(topic, index)

    def partitions(self) -> list[Partition]:
        """Return all partitions of the broker if its process runs."""
        services = self.services
        is_broker = services is not None and self.config.is_broker
        return list(services.replicas.partitions) if services and is_broker else []

    def start(self, nursery: trio.Nursery) -> None:
        """Start a process unless one is running; it runs until it is killed or stopped."""
        if self.server is not None:
            return
        self.lives += 1
        self.is_stopping = False
        self.features = self.installed
        self.gate, self._scope = Gate(), trio.CancelScope()
        self.server = SimServer(self.config, core=_make_core(self))
        start_behind(self.gate, nursery, self._live)

    async def _live(self) -> None:
        server, scope = self.server, self._scope
        assert server is not None
        try:
            with scope:
                await server.run()
        except* _ENDS as group:
            self.cluster.books.note(self.id, f"ends: {group.exceptions[0]!r}")
        finally:
            if self.server is server:
                self._end([disk.after_kill() for disk in self.disks])

    def kill(self, random: Random) -> None:
        """Kill the process; the page cache survives."""
        self.storage = self.storage.survivor(random, power=False)
        self._end([disk.after_kill() for disk in self.disks])

    def lose_power(self, random: Random) -> None:
        """Cut the power; unsynced data may be lost."""
        self.storage = self.storage.survivor(random, power=True)
        self._end([disk.power_loss(random) for disk in self.disks])

    def replace_disk(self, place: int) -> None:
        """Replace a disk by an empty one, whose directory has a new id."""
        assert self.server is None
        self.disks[place] = SimDisk()
        self.directory_ids[place] = directory_id(self.id, self.lives << 8 | place)

    def _end(self, survivors: list[SimDisk]) -> None:
        server, self.server = self.server, None
        if server is not None:
            cast("SimListeners", server.core.net).stop_accepting()
        self.gate.end()
        self._scope.cancel()
        for disk in self.disks:
            disk.root = Directory()  # Later writes of the ending process reach no disk.
        self.disks = survivors
        self.cluster.books.disks[self.id] = self.storage

    def stop(self) -> None:
        """Start a clean shutdown."""
        if self.server is not None:
            self.is_stopping = True
            self.server.stop()


class SimServer(Server):
    """A node whose controller watches the processes of brokers over the simulated network."""

    async def _watch_brokers(self) -> None:
        core = self.core
        listener = self.config.inter_broker_listener
        watch = SimBrokerWatch(
            self.config.node_id, listener, core.controller, core.publisher, core.clock
        )
        watch.wire = cast("SimNetwork", core.network).wire
        await watch.run()


class SimBrokerWatch(BrokerWatch):
    """One simulated connection to each broker, which ends with the broker's process."""

    wire: Wire

    async def _attempt(self, probe: ProcessProbe, endpoint: Endpoint) -> None:
        address = Address(endpoint.host, endpoint.port)
        host = address_of(*address)
        await trio.sleep(_PROBED_S)
        server = self.wire.servers.get(host)
        target = probe.broker_id
        if self.wire.is_cut(self.node, target):
            await trio.sleep(2.0)
            probe.on_failed(self.clock.now())
        elif server is None:
            probe.on_refused(self.clock.now())
        else:
            probe.on_accepted(address, self.clock.now())
            while self.wire.servers.get(host) is server:
                await self.wire.closed.wait()
            probe.on_ended(self.clock.now())


def _make_core(machine: SimMachine) -> Core:
    config, cluster, wire = machine.config, machine.cluster, machine.cluster.wire
    node, clock = config.node_id, machine.clock
    random = Random(f"{cluster.seed}-{node}-{machine.lives}")
    network = SimNetwork(clock, random, wire, node)
    identity = Identity(CLUSTER_ID, {})
    services = Services(
        config=config, clock=clock, supported_features=machine.features, cluster_id=CLUSTER_ID
    )
    quorum, publisher = _make_quorum(machine, network, identity), MetadataPublisher()
    heartbeat_s = config.broker_heartbeat_interval_ms / 1000
    session_s = config.broker_session_timeout_ms / 1000
    channel = ControllerChannel(
        quorum,
        registrations=network.pool("", session_s),
        own_requests=network.pool("", heartbeat_s),
        isr_proposals=network.pool("", heartbeat_s),
        client_requests=network.pool("", config.request_timeout_ms / 1000),
    )
    state = ControllerState(
        config=config,
        random=random,
        cluster_id=CLUSTER_ID,
        supported_features=dict(machine.features),
    )
    controller = Controller(
        quorum, publisher, state, clock, bootstrap=cluster.bootstrap, own_broker=node
    )
    cadence = SnapshotCadence(max_bytes=SNAPSHOT_BYTES, max_seconds=0)
    snapshotter = Snapshotter(quorum, publisher, cadence, clock)
    quorum.add_listener(Watch(cluster.books, node, machine.lives, publisher))
    quorum.add_listener(ReleaseWatch(cluster.books, node, machine.features))
    listeners = _make_listeners(machine, services)
    ports = {name: listener.address.port for name, listener in listeners.listeners.items()}
    return Core(
        config=config,
        identity=identity,
        clock=clock,
        random=random,
        services=services,
        logs=_make_logs(machine, clock, random),
        net=cast("NetServer", listeners),
        endpoints=build.advertised_listeners(config, ports, host_of(node)),
        network=network,
        publisher=publisher,
        quorum=quorum,
        controller=controller,
        channel=channel,
        snapshotter=snapshotter,
        incarnation_id=machine.lives.to_bytes(8) + node.to_bytes(8),
    )


def _make_quorum(machine: SimMachine, network: SimNetwork, identity: Identity) -> WatchedQuorum:
    config = machine.config
    endpoints = controller_endpoints(config.node_id) if config.is_controller else ()
    directory = metadata_directory(config.node_id)
    raft = build.raft_config(config, identity, directory, endpoints)
    quorum = WatchedQuorum(
        attrs.evolve(raft, fetch_max_bytes=4000, snapshot_max_bytes=500),
        machine.storage,
        clock=network.clock,
        random=network.random,
        configured=build.configured_voters(config),
        peers=RaftPeers(network.pool("", raft.request_timeout_s)),
    )
    quorum.watch(machine.cluster.books, config.node_id)
    return quorum


def initial_voters(nodes: Iterable[int]) -> VoterSet:
    """Return the voters of a dynamic quorum."""
    return VoterSet.of(
        Voter(ReplicaKey(node, metadata_directory(node)), controller_endpoints(node))
        for node in nodes
    )


def metadata_directory(node: int) -> bytes:
    """Return the id of the directory with a machine's metadata log."""
    return directory_id(node, _METADATA)


def controller_endpoints(node: int) -> tuple[VoterEndpoint, ...]:
    return (VoterEndpoint(CONTROLLER, host_of(node), 9093),)


def _first_snapshot(voters: VoterSet) -> Iterator[bytes]:
    """Return the checkpoint 0-0 of a dynamic quorum."""
    return snapshot_chunks(
        _START, [], voters=voters, kraft_version=1, last_timestamp_ms=0, now_ms=0
    )


def _make_listeners(machine: SimMachine, services: Services) -> SimListeners:
    """Return the listeners of a node, which do not accept requests yet."""
    config = machine.config
    listeners = SimListeners(machine.cluster.wire, config.node_id, machine.is_fenced)
    for endpoint in config.endpoints:
        side = ListenerType.CONTROLLER if endpoint.name == CONTROLLER else ListenerType.BROKER
        address = Address(endpoint.host, endpoint.port)
        listeners.listeners[endpoint.name] = SimListener(address, Dispatcher(services, side))
    return listeners


def _make_logs(machine: SimMachine, clock: TestClock, random: Random) -> LogManager:
    directories = []
    for index, disk in enumerate(machine.disks):
        directory = LogDirectory(disk, f"/data/{index}")
        directory.directory_id = machine.directory_ids[index]
        directories.append(directory)
    settings = build.log_settings(machine.config)
    return LogManager(directories, clock, settings, random=random)


def directory_id(node: int, number: int) -> bytes:
    """Return the id of a machine's log directory."""
    return b"direct" + number.to_bytes(4) + node.to_bytes(6)


def host_of(node: int) -> str:
    return f"node-{node}"
