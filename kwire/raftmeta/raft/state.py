"""The state of a raft node, shared by the modules with its rules.

Rules: only this package's functions change the state, within one step. They append the effects that
the caller must perform to ``effects``. Time and randomness come from outside.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Protocol, cast

import attrs

from kwire.raftmeta.raft import transitions
from kwire.raftmeta.raft.events import Committed, Effect, SaveElection, Send
from kwire.raftmeta.raft.log_state import LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.roles import Role, Unattached
from kwire.raftmeta.raft.voters import (
    Node,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
    endpoint_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.raftmeta.raft.events import OwnRequest

CHECK_QUORUM_FACTOR: Final = 1.5
"""The number of fetch timeouts that a leader waits for a majority before it resigns."""

OBSERVER_SESSION_S: Final = 300.0
"""Seconds without a Fetch after which the leader removes an observer."""

CANDIDACY_GAP_SHARE: Final = 0.15
"""The gap between two voters' candidacies, as a share of the longest back-off (at most 1 s).

The gap is longer than a round of votes and shorter than a timeout.
"""

FETCHES: Final = frozenset(("FetchRequest", "FetchSnapshotRequest"))
"""The requests that only a leader answers, so that they wait after one was rejected.

They are class names, because a lone voter needs none of these classes and starts without them.
"""


class Random(Protocol):
    """The methods of :class:`random.Random` that are used here."""

    def random(self) -> float: ...


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RaftConfig:
    """The quorum's configuration; times are in seconds, names as in ``controller.quorum.*``."""

    node_id: int
    directory_id: bytes
    cluster_id: str
    endpoints: tuple[VoterEndpoint, ...] = ()
    """This node's controller listeners, the default listener first."""
    listener: str = ""
    """The listener for connections to controllers: the first of controller.listener.names."""
    bootstrap: tuple[Node, ...] = ()
    can_vote: bool = True
    """True if this process has the controller role."""
    auto_join: bool = False
    """True if a controller that is not a voter asks to become one."""
    election_timeout_s: float = 1.0
    election_backoff_max_s: float = 1.0
    fetch_timeout_s: float = 2.0
    request_timeout_s: float = 2.0
    retry_backoff_s: float = 0.02
    retry_backoff_max_s: float = 1.0
    fetch_wait_s: float = 0.5
    fetch_max_bytes: int = 1 << 20
    snapshot_max_bytes: int = 1 << 20
    max_kraft_version: int = 1

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    @property
    def as_voter(self) -> Voter:
        return Voter(self.key, self.endpoints, 0, self.max_kraft_version)


@attrs.define(eq=False, repr=False)
class Call:
    """A request that has not been answered yet."""

    id: int
    node: Node
    request: OwnRequest
    deadline: float


@attrs.define(eq=False, repr=False)
class Calls:
    """Requests in flight, and nodes to which nothing is sent for a while.

    At most one request of a kind is in flight to each node. After a failed request, nothing is sent
    to the node for a time that doubles up to a limit. After a rejected Fetch, only Fetches wait,
    because a node that does not lead may still be asked for its vote.
    """

    next_id: int = 0
    open: dict[int, Call] = attrs.field(factory=dict)
    busy: dict[tuple[int, type], int] = attrs.field(factory=dict)
    failures: dict[int, int] = attrs.field(factory=dict)
    retry_at: dict[int, float] = attrs.field(factory=dict)
    fetch_at: dict[int, float] = attrs.field(factory=dict)
    """The earliest time of the next Fetch to each node that rejected one."""

    def is_ready(self, node_id: int, kind: type, now: float) -> bool:
        if (node_id, kind) in self.busy or self.retry_at.get(node_id, -inf) > now:
            return False
        return kind.__name__ not in FETCHES or self.fetch_at.get(node_id, -inf) <= now

    def is_doubtful(self, node_id: int) -> bool:
        """Return whether a node's last answer is missing, or did not come from a leader."""
        return node_id in self.failures or node_id in self.fetch_at

    def start(self, node: Node, request: OwnRequest, deadline: float) -> Call:
        self.next_id += 1
        call = Call(self.next_id, node, request, deadline)
        self.open[call.id] = call
        self.busy[node.id, type(request)] = call.id
        return call

    def finish(self, call_id: int) -> Call | None:
        """Remove and return an ended call; None if it was abandoned earlier."""
        call = self.open.pop(call_id, None)
        if call is not None and self.busy.get((call.node.id, type(call.request))) == call_id:
            del self.busy[call.node.id, type(call.request)]
        return call

    def give_up(self, kinds: frozenset[str]) -> None:
        """Abandon all requests of these kinds, because their answers no longer matter."""
        for call in [c for c in self.open.values() if type(c.request).__name__ in kinds]:
            self.finish(call.id)

    def deadline(self) -> float:
        return min((call.deadline for call in self.open.values()), default=inf)

    def on_success(self, node_id: int) -> None:
        self.failures.pop(node_id, None)
        self.retry_at.pop(node_id, None)
        self.fetch_at.pop(node_id, None)


def _never_suspended() -> float:
    return 0.0


@attrs.define(eq=False, repr=False)
class RaftState:
    """The state of one node.

    Invariants: the epoch and the high watermark never decrease; the high watermark is never after
    the log's end; nothing before it is ever truncated.
    """

    config: RaftConfig
    random: Random
    log: LogState
    history: VoterHistory
    election: ElectionState = attrs.field(factory=ElectionState)
    _role: Role = attrs.field(factory=Unattached)
    high_watermark: int | None = None
    calls: Calls = attrs.field(factory=Calls)
    effects: list[Effect] = attrs.field(factory=list)
    now: float = 0.0
    now_ms: int = 0
    suspended_s: Callable[[], float] = _never_suspended
    """Returns the seconds of machine suspension, which ``now`` does not count."""
    stopping: bool = False
    installing: SnapshotId | None = None
    """A fetched snapshot being installed: meanwhile no fetching and no candidacy."""

    @property
    def key(self) -> ReplicaKey:
        return self.config.key

    @property
    def world_now(self) -> float:
        """The time on a clock that continues while the machine is suspended, as for other nodes."""
        return self.now + self.suspended_s()

    @property
    def role(self) -> Role:
        return self._role

    def change_role(self, role: Role) -> None:
        """Change the role; IllegalTransitionError unless the transition table allows it."""
        transitions.check(type(self._role), type(role))
        self._role = role

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int | None:
        return self.election.leader_id

    @property
    def voters(self) -> VoterSet:
        return self.history.latest

    @property
    def is_voter(self) -> bool:
        """True if this node may become a candidate.

        A node may do so until it knows that its own removal is committed, because perhaps no other
        node has as much of the log (Ongaro's thesis, 4.2.2; two voters become one).
        """
        if not self.config.can_vote:
            return False
        if self.voters.has(self.key):
            return True
        is_open = self.history.latest_offset >= (self.high_watermark or 0)
        return is_open and len(self.history.sets) > 1 and self.history.sets[-2][1].has(self.key)

    @property
    def other_voters(self) -> tuple[Node, ...]:
        return tuple(node for node in self.voter_nodes if node.id != self.config.node_id)

    @property
    def voter_nodes(self) -> tuple[Node, ...]:
        """The voters, each with the endpoint that this node connects to."""
        return self.voters.nodes(self.config.listener)

    def voter_node(self, node_id: int) -> Node | None:
        """Return a voter with its endpoint; None if it is not a voter or has no endpoint."""
        return self.voters.node(node_id, self.config.listener)

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def save(self, election: ElectionState) -> None:
        """Set the durable election state; the epoch never decreases and a vote never changes."""
        old = self.election
        if election == old:
            return
        assert election.epoch >= old.epoch, (old, election)
        if election.epoch == old.epoch:
            assert old.leader_id in (None, election.leader_id), (old, election)
            assert old.voted in (None, election.voted), (old, election)
        self.election = election
        self.emit(SaveElection(election, self.voters, self.history.kraft_version))

    def send(self, node: Node, request: OwnRequest) -> int | None:
        """Send a request, unless one of its kind is in flight there or the node is backed off."""
        if not self.calls.is_ready(node.id, type(request), self.now):
            return None
        call = self.calls.start(node, request, self.now + self.config.request_timeout_s)
        self.emit(Send(call.id, node, request))
        return call.id

    def back_off(self, node_id: int) -> None:
        """Do not send requests to a node for a while, which grows with each failure."""
        failures = self.calls.failures.get(node_id, 0)
        self.calls.failures[node_id] = min(failures + 1, 16)
        delay = min(self.config.retry_backoff_s * (1 << failures), self.config.retry_backoff_max_s)
        self.calls.retry_at[node_id] = self.now + delay * (0.8 + 0.4 * self.random.random())

    def is_out_of_reach(self, node_id: int) -> bool:
        """Return whether the retry back-off is at its maximum."""
        wait = self.config.retry_backoff_s * (1 << self.calls.failures.get(node_id, 0))
        return wait >= self.config.retry_backoff_max_s

    def pause_fetching(self, node_id: int) -> None:
        """Send no Fetch for a while to a node that rejected one; other requests may continue."""
        self.calls.failures.pop(node_id, None)
        self.calls.retry_at.pop(node_id, None)
        pause = self.config.retry_backoff_s * (0.8 + 0.4 * self.random.random())
        self.calls.fetch_at[node_id] = self.now + pause

    def fetch_deadline(self, leader_id: int) -> float:
        """Return when a voter starts an election unless the leader answers."""
        return self.now + self.config.fetch_timeout_s + self.candidacy_delay_s(leader_id)

    def candidacy_delay_s(self, leader_id: int) -> float:
        """Return how many seconds after the first voter this voter starts an election.

        All voters lose the leader at the same moment. Candidates that start together would split
        the vote, and the next round comes only after a back-off.
        """
        others = [voter_id for voter_id in sorted(self.voters.ids) if voter_id != leader_id]
        own = self.config.node_id
        rank = others.index(own) if own in others else len(others)
        return rank * CANDIDACY_GAP_SHARE * min(self.config.election_backoff_max_s, 1.0)

    def random_election_timeout(self) -> float:
        return self.now + self.config.election_timeout_s * (1 + self.random.random())

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``; return whether it moved."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return False
        assert offset <= self.log.end_offset
        self.high_watermark = offset
        self.emit(Committed(offset))
        return True

    def leader_node(self) -> Node | None:
        """Return the leader with its address, if both are known."""
        role = self.role
        leader = cast("Node | None", getattr(role, "leader", None))
        if leader is not None:
            return leader
        if self.leader_id == self.config.node_id:
            return self.own_node
        return self.voter_node(self.leader_id) if self.leader_id is not None else None

    @property
    def own_node(self) -> Node | None:
        if not self.config.endpoints:
            return None
        endpoint = endpoint_of(self.config.endpoints, self.config.listener)
        return Node(self.config.node_id, endpoint.host, endpoint.port)
