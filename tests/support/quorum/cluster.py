"""The actions of a scenario on a quorum and its view of it, the same for each kind of world.

Rules: nothing waits for a time, only for a condition; what is acknowledged is remembered, and
:meth:`Cluster.finish` demands that every node has it in the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import attrs

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.raftmeta.raft.leader_view import is_epoch_committed
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftConfig, RaftState
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.raftmeta.storage.records import SnapshotReader, read_batches, snapshot_chunks
from tests.support.quorum.watch import Watch, names_in

CLUSTER_ID: Final = "quorum-test"
PORT: Final = 9093


def directory_of(node_id: int, life: int = 0) -> bytes:
    return bytes([0xD0]) + life.to_bytes(7, "big") + node_id.to_bytes(8, "big")


def endpoints_of(node_id: int, port: int = PORT) -> tuple[VoterEndpoint, ...]:
    return (VoterEndpoint("CONTROLLER", f"node-{node_id}", port),)


def record(name: str) -> FeatureLevelRecord:
    """Return a record that carries a name."""
    return FeatureLevelRecord(name=name, feature_level=1)


@attrs.define(eq=False)
class Ticket:
    """The outcome of a request; None until it is known."""

    outcome: Any = None
    error: Exception | None = None

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None or self.error is not None


@attrs.frozen
class Shape:
    """The nodes of a cluster, and its settings."""

    voters: tuple[int, ...] = (1, 2, 3)
    others: tuple[int, ...] = ()
    """Nodes that are no voters at first."""
    is_dynamic: bool = False
    settings: dict[str, Any] = attrs.field(factory=dict)

    def config(self, node_id: int, life: int = 0) -> RaftConfig:
        return RaftConfig(
            node_id=node_id,
            directory_id=directory_of(node_id, life),
            cluster_id=CLUSTER_ID,
            endpoints=endpoints_of(node_id),
            listener="CONTROLLER",
            bootstrap=tuple(Node(-1 - n, f"node-{n}", PORT) for n in self.voters),
            **{"fetch_max_bytes": 2000, "snapshot_max_bytes": 150, **self.settings},
        )

    @property
    def voter_set(self) -> VoterSet:
        return VoterSet.of(
            Voter(ReplicaKey(n, directory_of(n) if self.is_dynamic else bytes(16)), endpoints_of(n))
            for n in self.voters
        )

    def first_checkpoint(self) -> list[bytes]:
        return list(
            snapshot_chunks(
                SnapshotId(0, 0),
                [],
                voters=self.voter_set,
                kraft_version=1,
                last_timestamp_ms=0,
                now_ms=0,
            )
        )


class Cluster(ABC):
    """A quorum, in one world or another."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: dict[int, Any] = {}
        """Each has its ``config``, ``storage``, ``incarnation`` and, while it runs, ``raft``."""
        self.watch = Watch(self.nodes)
        self.acknowledged: list[str] = []
        self._values = 0
        self._lives = 0

    # Actions that each world implements -----------------------------------------------------
    @abstractmethod
    def until(self, condition: Callable[..., Any], what: str) -> None:
        """Run the world until a condition holds; fail when that takes far too long."""

    @abstractmethod
    def start(self, node_id: int) -> None:
        """Start a node that is down."""

    @abstractmethod
    def stop(self, node_id: int) -> None:
        """Stop a node in order."""

    @abstractmethod
    def kill(self, node_id: int) -> None:
        """Kill a node; what it had not synced may be lost."""

    @abstractmethod
    def pause(self, node_id: int) -> None:
        """Pause the node, without notice to the others."""

    @abstractmethod
    def resume(self, node_id: int) -> None: ...

    @abstractmethod
    def cut(self, source: int, target: int) -> None:
        """Drop all messages in this direction."""

    @abstractmethod
    def heal(self) -> None:
        """Let all messages pass in all directions."""

    @abstractmethod
    def append(self, node_id: int, name: str) -> Ticket:
        """Append on a node; True when it is committed, an error when it is not or may not be."""

    @abstractmethod
    def ask(self, node_id: int, request: Any) -> Ticket:
        """Send a request to a node; return its response."""

    @abstractmethod
    def upgrade(self, node_id: int) -> Ticket:
        """Raise kraft.version to 1."""

    @abstractmethod
    def snapshot(self, node_id: int) -> None:
        """Take a snapshot of everything that is committed."""

    @abstractmethod
    def damage(self, source: int, target: int, marker: str) -> None:
        """Change a bit of the next message in this direction that contains the marker."""

    @abstractmethod
    def is_damaged(self) -> bool:
        """Return whether a message was damaged."""

    @abstractmethod
    def empty_disk(self, node_id: int) -> Any:
        """Return new, empty storage."""

    @abstractmethod
    def check_more(self) -> None:
        """Check at the end what only this kind of world can check."""

    @abstractmethod
    def close(self) -> None: ...

    # What can be seen -----------------------------------------------------------------------
    @property
    def running(self) -> list[int]:
        return [n for n, node in self.nodes.items() if node.raft is not None]

    def state(self, node_id: int) -> RaftState:
        raft = self.nodes[node_id].raft
        assert raft is not None, f"node {node_id} is down"
        state: RaftState = raft.state
        return state

    def is_leader(self, node_id: int) -> bool:
        """Return whether a node leads and has committed a record of its epoch."""
        node = self.nodes[node_id]
        if node.raft is None or node.is_paused:
            return False
        state, role = node.raft.state, node.raft.state.role
        return isinstance(role, Leader) and is_epoch_committed(state, role)

    def find_leader(self) -> int | None:
        """Return the leader of the latest epoch, if there is one."""
        leaders = [n for n in self.running if self.is_leader(n)]
        return max(leaders, key=lambda n: self.state(n).epoch, default=None)

    def leader(self, *, but: int | None = None) -> int:
        """Wait for a leader and return it."""
        self.until(lambda: self.find_leader() not in (None, but), "a leader")
        leader = self.find_leader()
        return self.leader(but=but) if leader is None or leader == but else leader

    def committed_names(self, node_id: int) -> list[str]:
        """Return the names of the records that a node knows to be committed."""
        disk = self.nodes[node_id].storage.cache
        end = self.state(node_id).high_watermark or 0
        newest = max((s for s in list(disk.snapshots) if s.end_offset <= end), default=None)
        names: list[str] = []
        start = 0
        if newest is not None:
            names = names_in(SnapshotReader(newest, disk.snapshots[newest]).records())
            start = newest.end_offset
        for base, following, data in list(disk.batches):
            if start <= base and following <= end:
                names += [name for b in read_batches(data) for name in names_in(b.records)]
        return names

    def log_names(self, node_id: int) -> list[str]:
        """Return the names of the records in a node's log, committed or not."""
        batches = list(self.nodes[node_id].storage.cache.batches)
        return [n for *_, data in batches for b in read_batches(data) for n in names_in(b.records)]

    # What scenarios are made of -------------------------------------------------------------
    def isolate(self, node_id: int, *others: int) -> None:
        """Cut a node off from others, or from all, in both directions."""
        for other in others or self.nodes:
            if other != node_id:
                self.cut(node_id, other)
                self.cut(other, node_id)

    def next_name(self) -> str:
        self._values += 1
        return f"value-{self._values:04d}"

    def commit(self, count: int = 1) -> list[str]:
        """Append through the leader until so much is acknowledged."""
        done: list[str] = []
        while len(done) < count:
            leader, name = self.leader(), self.next_name()
            ticket = self.append(leader, name)
            node = self.nodes[leader]
            life = node.incarnation
            self.until(
                lambda t=ticket, n=node, at=life: t.is_settled or n.incarnation != at,
                f"an answer to {name}",
            )
            if ticket.outcome:
                done.append(name)
        self.acknowledged += done
        return done

    def append_uncommitted(self, *, hears: tuple[int, ...] = ()) -> tuple[int, str]:
        """Cut the leader off and append there what no node but those of ``hears`` can fetch."""
        while True:
            leader, name = self.leader(), self.next_name()
            for other in self.nodes:
                if other != leader and other not in hears:
                    self.isolate(leader, other)
            ticket = self.append(leader, name)
            self.until(
                lambda t=ticket, on=(leader, *hears), v=name: (
                    t.is_settled or all(v in self.log_names(n) for n in on)
                ),
                "the leader to write, or to give up",
            )
            if all(name in self.log_names(n) for n in (leader, *hears)):
                return leader, name
            self.heal()

    def has_all(self, node_id: int) -> bool:
        """Return whether a node has everything that was acknowledged."""
        return set(self.acknowledged) <= set(self.committed_names(node_id))

    def catch_up(self, *nodes: int) -> None:
        """Wait until these nodes have everything that was acknowledged."""
        for node_id in nodes or self.running:
            self.until(lambda n=node_id: self.has_all(n), f"node {node_id} to have everything")

    def wipe(self, node_id: int) -> None:
        """Give a stopped node a new, empty disk, and so another directory id."""
        node = self.nodes[node_id]
        assert node.raft is None
        self._lives += 1
        self.watch.lost[node.config.key] = node.storage.durable.end_offset
        node.storage = self.empty_disk(node_id)
        node.config = self.shape.config(node_id, self._lives)

    def insist(self, request: Callable[[], Any]) -> Any:
        """Repeat a request to the leader until it is accepted or refused for good."""
        while True:
            ticket = self.ask(self.leader(), request())
            self.until(lambda t=ticket: t.is_settled, "an answer")
            if ticket.outcome is not None and ticket.outcome.error_code not in (6, 7):
                return ticket.outcome

    def add_request(self, node_id: int) -> AddRaftVoterRequest:
        config = self.nodes[node_id].config
        listener = AddRaftVoterRequest.Listener
        return AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=10_000,
            voter_id=node_id,
            voter_directory_id=config.directory_id,
            listeners=[listener(name=e.name, host=e.host, port=e.port) for e in config.endpoints],
        )

    def add(self, node_id: int) -> None:
        """Make a node a voter."""
        answer = self.insist(lambda: self.add_request(node_id))
        assert answer.error_code in (0, 126)  # 126: an earlier try did it

    def remove(self, key: ReplicaKey) -> None:
        """Remove a voter."""
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=key.id, voter_directory_id=key.directory_id
        )
        assert self.insist(lambda: request).error_code in (0, 127)  # 127: an earlier try did it

    def finish(self) -> None:
        """Make everything work; check that nodes agree and have all that was acknowledged."""
        self.heal()
        for node_id, node in self.nodes.items():
            if node.raft is None:
                self.start(node_id)
            elif node.is_paused:
                self.resume(node_id)
        self.commit()
        self.catch_up()
        self.until(
            lambda: len({tuple(self.committed_names(n)) for n in self.running}) == 1,
            "all to have the same",
        )
        entries = self.committed_names(self.leader())
        assert [name for name in entries if name in set(self.acknowledged)] == self.acknowledged
        assert len(entries) == len(set(entries))
        assert not self.watch.violations
        self.check_more()

    def describe(self) -> str:
        """Return the state of every node, for the message of a failure."""
        lines = []
        for node_id, node in self.nodes.items():
            if node.raft is None:
                lines.append(f"n{node_id} down")
                continue
            s = node.raft.state
            lines.append(
                f"n{node_id} {type(s.role).__name__} {s.election} log={s.log.log_start}.."
                f"{s.log.end_offset} hw={s.high_watermark} voters={s.voters.ids}"
            )
        return "\n".join(lines)


def delete_log_start(cluster: Cluster) -> None:
    """Let every voter take two snapshots, so that its log no longer begins at 0."""
    for _ in range(2):
        cluster.commit(10)
        cluster.catch_up()
        for node in cluster.running:
            cluster.snapshot(node)
    for node in cluster.running:
        cluster.until(
            lambda n=node: cluster.state(n).log.start_offset > 0, f"a clean log on {node}"
        )
