"""One raft node that gets made-up messages of others: for tests of single rules."""

from typing import Any

from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import election, messages
from kwire.raftmeta.raft.events import Answered, Effect, Received, Reply, Send, Started
from kwire.raftmeta.raft.log_state import EpochStart, LogState
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.voters import CONFIGURED, ReplicaKey, VoterHistory, VoterSet
from simulation.raft.quorums import config_of, voters_of
from simulation.raft.script import Fixed

CLUSTER = "test-cluster"


def node(
    number: int = 1,
    *,
    voters: VoterSet | None = None,
    log: LogState | None = None,
    saved: ElectionState | None = None,
    kraft_version: int = 0,
) -> Raft:
    """Return a node of three (1, 2 and 3) that has just been started."""
    history = VoterHistory([(CONFIGURED, voters or voters_of(1, 2, 3))])
    if kraft_version:
        history.add_version(CONFIGURED, kraft_version)
    recovered = Recovered(saved or ElectionState(), log or LogState(), history)
    raft = Raft(config_of(number), recovered, Fixed(0.5))
    raft.step(Started(), 0.0, 0)
    return raft


def dynamic(*ids: int) -> VoterSet:
    """Return voters as the log of kraft.version 1 has them."""
    return VoterSet.of(config_of(n).as_voter for n in ids)


def of_epoch_1(end_offset: int = 5) -> LogState:
    return LogState(0, end_offset, [EpochStart(1, 0)])


def leader(**changes: Any) -> Raft:
    """Return node 1, which leads epoch 2 since offset 5 and has committed nothing in it."""
    raft = node(log=of_epoch_1(), saved=ElectionState(1), **changes)
    election.become_prospective(raft.state)
    election.become_candidate(raft.state)
    election.become_leader(raft.state, frozenset((1, 2)))
    raft.step(None, 0.1, 0)
    return raft


def follower(number: int = 1, *, epoch: int = 2, of: int = 2, **changes: Any) -> Raft:
    """Return a node that follows another and has the records of epoch 1."""
    changes = {"log": of_epoch_1(), **changes}
    return node(number, saved=ElectionState(epoch, of), **changes)


def say(raft: Raft, request: Any, now: float = 0.2) -> tuple[Any, tuple[Effect, ...]]:
    """Return the response to a request (None: a Fetch that is held) and all effects."""
    effects = raft.step(Received("token", request), now, 0)
    replies = [e.response for e in effects if isinstance(e, Reply) and e.token == "token"]
    return (replies[0] if replies else None), effects


def part(message: Any) -> Any:
    """Return the only partition of a request or a response."""
    topics = getattr(message, "topics", None) or message.responses
    return topics[0].partitions[0]


def sends(effects: Any, kind: type | None = None) -> list[Send]:
    return [
        e for e in effects if isinstance(e, Send) and (kind is None or isinstance(e.request, kind))
    ]


def answer(raft: Raft, kind: type, to: int, response: Any, now: float) -> tuple[Effect, ...]:
    """Let a node answer the request of a kind that is under way to it; return the effects."""
    calls = raft.state.calls.open.values()
    call = next(c for c in calls if isinstance(c.request, kind) and c.node.id == to)
    return raft.step(Answered(call.id, response), now, 0)


def vote(
    candidate: int, epoch: int, *, last: tuple[int, int] = (0, 0), pre: bool = False, to: int = 1
) -> VoteRequest:
    """Return a Vote request of a candidate whose log ends at (epoch, offset)."""
    sender = node(candidate).state
    request = messages.vote_request(sender, ReplicaKey(to), pre_vote=pre)
    partition = request.topics[0].partitions[0]
    partition.replica_epoch, (partition.last_offset_epoch, partition.last_offset) = epoch, last
    return request


def fetch(
    sender: int = 2, *, epoch: int = 2, offset: int = 5, last_epoch: int = 1, wait_ms: int = 500
) -> Any:
    """Return a Fetch of a node whose log ends at ``offset``."""
    log = LogState(0, offset, [EpochStart(last_epoch, 0)] if offset else [])
    raft = node(sender, log=log, saved=ElectionState(epoch))
    request = messages.fetch_request(raft.state)
    request.max_wait_ms = wait_ms
    return request


def with_cluster_id(request: Any, cluster_id: str | None) -> Any:
    request.cluster_id = cluster_id
    return request
