"""A simulated machine: disks that outlive its processes, and at most one running kwire node.

The node is built as ``kwire serve`` builds it, in an environment whose disks, connections,
listeners, clock and randomness are simulated.
"""

from collections.abc import Iterable, Mapping
from itertools import permutations
from math import inf
from random import Random
from typing import Final

import attrs
import trio

from kwire.configs.broker import BrokerConfig
from kwire.errors import BrokerIdNotRegistered, DuplicateBrokerRegistration, KafkaStorageError
from kwire.node.environment import Environment
from kwire.node.server import Server, make_node
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.replica.partition import Partition
from kwire.storage_format.directories import format_directory, read_meta
from simulation.disk import SimDisk
from simulation.inodes import Directory
from simulation.raft.quorums import WALL_MS
from simulation.replication.links import SimNetwork, Standing, host_of
from simulation.replication.metadata_checks import Books, CommitWatch, StepWatch
from simulation.replication.processes import Gate, own_gate, start_behind, world_time
from simulation.replication.releases import Features, ReleaseWatch
from simulation.replication.settings import (
    CLUSTER_ID,
    METADATA_PATH,
    SESSION_S,
    WITHOUT_CONTROLLERS_S,
    data_path,
)
from simulation.replication.sharing.links import MemberListeners
from simulation.replication.wire import Wire

CONTROLLER: Final = "CONTROLLER"
_NOTICED_S: Final = 1.0
"""The time in which a controller takes refused connections for the end of a process."""
_ENDS: Final = (BrokerIdNotRegistered, DuplicateBrokerRegistration, KafkaStorageError)
"""Errors that end a process: a lost registration, or no working log directory."""


@attrs.define(eq=False)
class Cluster:
    """The parts of the world that all machines share."""

    seed: int
    wire: Wire
    books: Books
    levels: Mapping[str, int]
    """The initial levels of the features."""
    initial_voters: VoterSet | None = None
    """The initial voters of a dynamic quorum; None if the voters are configured."""
    machines: dict[int, "SimMachine"] = attrs.field(factory=dict)


@attrs.define(eq=False)
class SimClock:
    """The clocks of one machine, whose wall clock can be set, and go on in a suspension."""

    ahead_ms: int = 0
    """The milliseconds by which the wall clock is ahead of the world's."""
    gate: Gate = attrs.field(factory=Gate)
    """The gate of the machine's current or last process."""

    def now(self) -> float:
        return (own_gate() or self.gate).now()

    def now_ms(self) -> int:
        return WALL_MS + int(world_time() * 1000) % 1_000_000_000 + self.ahead_ms

    def suspended_s(self) -> float:
        return (own_gate() or self.gate).suspended_s()


@attrs.frozen
class SimDisks:
    """The disks of a machine, as a node opens them."""

    machine: "SimMachine"

    def open(self, path: str) -> SimDisk:
        if path == METADATA_PATH:
            return self.machine.metadata_disk
        by_path = {data_path(place): disk for place, disk in enumerate(self.machine.disks)}
        return by_path[path]

    def resolve(self, path: str) -> str:
        """Return the path itself, because there are no symbolic links."""
        return path


@attrs.define(eq=False)
class SimMachine:
    """One machine: its disks, and its process while one runs."""

    id: int
    config: BrokerConfig
    cluster: Cluster
    disks: list[SimDisk]
    """The disks of the log directories."""
    metadata_disk: SimDisk = attrs.field(factory=SimDisk)
    installed: Features = SUPPORTED
    """The features of the release that the next process will run."""
    features: Features = SUPPORTED
    """The features of the release that the current or last process runs."""
    lives: int = 0
    """The number of processes started so far."""
    server: Server | None = None
    is_stopping: bool = False
    clock: SimClock = attrs.field(factory=SimClock)
    _started_at: float = inf
    """The time of the world at which the current or last process started."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _listeners: MemberListeners = attrs.field(init=False)
    """The listeners of the current or last process."""

    def __attrs_post_init__(self) -> None:
        """Format the disks; only the metadata log's directory has an id that others must know."""
        voters = self.cluster.initial_voters
        is_voter = voters is not None and voters.get(self.id) is not None
        own_id = metadata_directory(self.id)
        self._format(METADATA_PATH, own_id, voters if is_voter else None)
        for place in range(len(self.disks)):
            self._format(data_path(place), b"direct" + self.id.to_bytes(5) + place.to_bytes(5))
        self.cluster.books.disks[self.id] = self.metadata_disk

    def _format(self, path: str, own_id: bytes, voters: VoterSet | None = None) -> None:
        levels = self.cluster.levels
        format_directory(
            self.config, path, CLUSTER_ID, own_id, voters, levels, disks=SimDisks(self)
        )

    def directory_id(self, place: int) -> bytes:
        """Return the id of a log directory."""
        meta = read_meta(data_path(place), SimDisks(self))
        assert meta is not None
        assert meta.directory_id is not None
        return meta.directory_id

    @property
    def is_outdated(self) -> bool:
        """True while the process runs another release than the installed one."""
        return self.is_alive and self.features != self.installed

    @property
    def is_alive(self) -> bool:
        return self.server is not None

    @property
    def gate(self) -> Gate:
        """The gate of the current or last process."""
        return self.clock.gate

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
    def image(self) -> MetadataImage | None:
        """The metadata in force on the node if its process runs."""
        return None if self.server is None else self.server.services.current.image

    def find_standing(self) -> Standing:
        """Return whether this incarnation of the broker may serve clients."""
        if self.is_stopping or not self.is_registered:
            return Standing.SERVING
        if not self.cluster.books.image.brokers[self.id].fenced:
            return Standing.SERVING
        return Standing.EXCUSED if self._is_excused() else Standing.FENCED

    def _is_excused(self) -> bool:
        """Return whether a firewall may hide from the broker that it is fenced.

        A firewall can do so in three ways:

        * The lease lasts longer than a session while the broker takes so many controllers for
          ended that the others are no majority. Some of them may have ended, and it does not learn
          of voters that are added meanwhile.
        * A controller whose connections the broker refuses takes the broker for ended.
        * Voters whose connections the active controller refuses take that for ended, and elect
          another one. The former one answers heartbeats until its fetch timeout has passed.
        """
        wire, books, now = self.cluster.wire, self.cluster.books, world_time()
        fenced_at = books.fenced_at.get(self.id, now)
        voter_sets = [set(books.voters)]
        if self.server is not None:
            voter_sets.append(set(self.server.core.quorum.voters.ids))
        others = set[int]().union(*voter_sets) - {self.id}
        since = now - SESSION_S
        refused = {v for v in others if wire.was_refused(self.id, v, since)}
        silent = {v for v in others if not self.cluster.machines[v].has_run(since)} | refused
        if refused and any(2 * len(voters - silent) <= len(voters) for voters in voter_sets):
            return now < fenced_at + WITHOUT_CONTROLLERS_S
        if any(wire.was_refused(v, self.id, fenced_at - _NOTICED_S) for v in others):
            return now < fenced_at + SESSION_S
        fetch_timeout_s = self.config.controller_quorum_fetch_timeout_ms / 1000
        since -= fetch_timeout_s
        pairs = permutations(books.voters, 2)
        is_deposed = any(wire.was_refused(source, target, since) for source, target in pairs)
        return is_deposed and now < fenced_at + fetch_timeout_s

    def has_run(self, since: float) -> bool:
        """Return whether the current process has run since then."""
        return self.server is not None and self._started_at <= since

    @property
    def is_registered(self) -> bool:
        """True while this incarnation of the broker is registered in the committed metadata."""
        server, broker = self.server, self.cluster.books.image.brokers.get(self.id)
        if server is None or server.broker is None or broker is None:
            return False
        return broker.epoch == server.broker.lifecycle.epoch

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition if the broker's process runs and has it, else None."""
        broker = None if self.server is None else self.server.broker
        return None if broker is None else broker.replicas.partitions.find(topic, index)

    def partitions(self) -> list[Partition]:
        """Return all partitions of the broker if its process runs."""
        broker = None if self.server is None else self.server.broker
        return [] if broker is None else list(broker.replicas.partitions)

    def start(self, nursery: trio.Nursery) -> None:
        """Start a process unless one is running; it runs until it is killed or stopped."""
        if self.server is not None:
            return
        self.lives += 1
        self._started_at = world_time()
        self.is_stopping = False
        self.features = self.installed
        self.clock.gate, self._scope = Gate(), trio.CancelScope()
        self.server = server = make_node(self.config, self._environment(), features=self.features)
        quorum, books = server.core.quorum, self.cluster.books
        commits = CommitWatch(books, self.id, self.lives, server.core.publisher)
        quorum.add_record_listener(commits)
        quorum.add_leadership_listener(commits)
        quorum.add_record_listener(ReleaseWatch(books, self.id, self.features))
        start_behind(self.gate, nursery, self._live)

    def _environment(self) -> Environment:
        """Return the outside of the next process."""
        wire, books = self.cluster.wire, self.cluster.books
        random = Random(f"{self.cluster.seed}-{self.id}-{self.lives}")
        listeners = self._listeners = MemberListeners(wire, self.id, self.find_standing)
        return Environment(
            disks=SimDisks(self),
            network=SimNetwork(self.clock, random, wire, self.id),
            open_listeners=lambda limits, metrics: listeners,
            host_name=host_of(self.id),
            clock=self.clock,
            random=random,
            observer=StepWatch(books, self.id),
        )

    async def _live(self) -> None:
        server, scope = self.server, self._scope
        assert server is not None
        try:
            with scope:
                await server.run()
        except* _ENDS as group:
            self.cluster.books.note(self.id, f"ends: {group.exceptions[0]!r}")
        except* Exception:
            if self.server is server:
                raise  # Otherwise the process was killed, and how it would have ended is no matter.
        finally:
            if self.server is server:
                self._end(self.metadata_disk.after_kill(), [d.after_kill() for d in self.disks])

    def kill(self, random: Random) -> None:
        """Kill the process; the page cache survives."""
        self._end(self.metadata_disk.after_kill(), [disk.after_kill() for disk in self.disks])

    def lose_power(self, random: Random) -> None:
        """Cut the power; unsynced data may be lost."""
        metadata_disk = self.metadata_disk.power_loss(random)
        self._end(metadata_disk, [disk.power_loss(random) for disk in self.disks])

    def replace_disk(self, place: int) -> None:
        """Replace a disk by an empty one, to which the next process gives a new id."""
        assert self.server is None
        self.disks[place] = SimDisk()

    def _end(self, metadata_disk: SimDisk, disks: list[SimDisk]) -> None:
        """End the process; the disks that survive it replace its own."""
        if self.server is not None:
            self._listeners.stop_accepting()
        self.server = None
        self.gate.end()
        self._scope.cancel()
        for disk in (self.metadata_disk, *self.disks):
            disk.root = Directory()  # Later writes of the ending process reach no disk.
        self.metadata_disk, self.disks = metadata_disk, disks
        self.cluster.books.disks[self.id] = metadata_disk

    def stop(self) -> None:
        """Start a clean shutdown."""
        if self.server is not None:
            self.is_stopping = True
            self.server.stop()


def initial_voters(nodes: Iterable[int]) -> VoterSet:
    """Return the voters of a dynamic quorum."""
    return VoterSet.of(
        Voter(ReplicaKey(node, metadata_directory(node)), controller_endpoints(node))
        for node in nodes
    )


def metadata_directory(node: int) -> bytes:
    """Return the id of the directory with a machine's metadata log."""
    return b"metadata" + node.to_bytes(8)


def controller_endpoints(node: int) -> tuple[VoterEndpoint, ...]:
    return (VoterEndpoint(CONTROLLER, host_of(node), 9093),)
