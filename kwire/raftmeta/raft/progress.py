"""The leader's work: appending, tracking replicas, advancing the high watermark.

Rules: an offset is committed when a majority of the voters have it and it includes a record of the
leader's own epoch (Raft 5.4.2). The leader's own disk counts like any other voter's, provided that
the leader is a voter. A leader resigns when a majority has stopped fetching from it (KIP-595).
"""

from collections.abc import Callable, Hashable
from itertools import takewhile
from math import inf

from kwire import errors
from kwire.raftmeta.raft.control_records import (
    ControlMessage,
    control_batch,
    leader_change,
    note_voters,
    voters_records,
)
from kwire.raftmeta.raft.events import Append, Appended, AppendLog, Refused
from kwire.raftmeta.raft.roles import Leader, Replica
from kwire.raftmeta.raft.state import CHECK_QUORUM_FACTOR, OBSERVER_SESSION_S, RaftState
from kwire.raftmeta.raft.voters import CONFIGURED, ReplicaKey, VoterSet
from kwire.records.build import Payload
from kwire.records.header import headers, parse


def start(state: RaftState, role: Leader) -> None:
    """Write the epoch's first record and inform the voters."""
    role.check_at = _check_deadline(state)
    for voter in state.voters:
        if voter.id != state.config.node_id:
            replica_of(state, role, voter.key).begin_at = state.now
    first: list[ControlMessage] = [leader_change(state.config.node_id, state.voters, role.granted)]
    version, voters = state.history.kraft_version, _with_own_description(state)
    if version and (voters != state.voters or state.history.latest_offset == CONFIGURED):
        first += voters_records(voters, version)
    append_control(state, first)


def _with_own_description(state: RaftState) -> VoterSet:
    """Return the voters with this leader as it is now; nobody else could write that it has moved.

    The voters stay the same, so this needs no committed record of the epoch, unlike a change.
    """
    own, current = state.voters.get(state.config.node_id), state.config.as_voter
    if own is None or own.key != current.key or not current.endpoints:
        return state.voters
    return state.voters if own.is_described_by(current) else state.voters.with_voter(current)


# Appending ----------------------------------------------------------------------------------
def append_control(state: RaftState, records: list[ControlMessage]) -> int:
    """Append control records as one batch; return the offset of the last record."""
    data = control_batch(
        records, base_offset=state.log.end_offset, epoch=state.epoch, timestamp_ms=state.now_ms
    )
    append(state, data)
    note_voters(state.history, data, 0, parse(data))
    return state.log.end_offset - 1


def on_append(state: RaftState, event: Append) -> None:
    """Append the controller's records if this node still leads the epoch of their decision."""
    role = state.role
    if not isinstance(role, Leader) or event.epoch != state.epoch or state.stopping:
        state.emit(Refused(event.token, errors.NotController()))
        return
    base_offset = state.log.end_offset
    values = event.values
    payload = values if isinstance(values, Payload) else Payload(values)
    data = payload.batch(
        timestamp_ms=state.now_ms, base_offset=base_offset, leader_epoch=state.epoch
    )
    append(state, data)
    state.emit(Appended(event.token, base_offset, state.log.end_offset - 1))


def append(state: RaftState, data: bytes) -> None:
    """Append one batch; it is synced before any message emitted later is sent."""
    header = parse(data)
    state.emit(AppendLog(data, header.base_offset))
    state.log.append_batch(header.leader_epoch, header.base_offset, header.next_offset)


def append_fetched(state: RaftState, data: bytes | memoryview) -> None:
    """Append the batches that the leader sent."""
    for pos, header in headers(data):
        state.log.append_batch(header.leader_epoch, header.base_offset, header.next_offset)
        if header.is_control:
            note_voters(state.history, data, pos, header)
    state.emit(AppendLog(data, int.from_bytes(data[:8], "big")))


# Commits ------------------------------------------------------------------------------------
def replica_of(state: RaftState, role: Leader, key: ReplicaKey) -> Replica:
    """Return the leader's record of a replica; create it if the replica is new."""
    replica = role.replicas.get(key)
    if replica is None:
        _remove_silent_observers(state, role)
        replica = role.replicas[key] = Replica(key)
    return replica


def _remove_silent_observers(state: RaftState, role: Leader) -> None:
    """Remove observers whose session has ended: each new disk of a broker is a new replica."""
    since = state.now - OBSERVER_SESSION_S
    silent = takewhile(lambda replica: replica.fetched_at < since, role.replicas.values())
    for key in [r.key for r in silent if not state.voters.has(r.key)]:
        del role.replicas[key]


def voter_progress(state: RaftState, role: Leader) -> dict[int, int]:
    """Return each voter's log end offset, as of its last Fetch; -1 if unknown."""
    end_offsets: dict[int, int] = {}
    for voter in state.voters:
        if voter.id == state.config.node_id:
            end_offsets[voter.id] = state.log.end_offset
            continue
        replica = role.replicas.get(_key_of(state, role, voter.id))
        end_offsets[voter.id] = replica.end_offset if replica else -1
    return end_offsets


def update_high_watermark(state: RaftState) -> bool:
    """Advance the high watermark to the end offset of a majority; return whether it moved."""
    role = state.role
    if not isinstance(role, Leader) or not state.voters:
        return False
    ends = sorted(voter_progress(state, role).values(), reverse=True)
    majority_end_offset = ends[state.voters.majority - 1]
    if majority_end_offset <= role.epoch_start:
        return False
    return state.advance_high_watermark(majority_end_offset)


# Check-quorum, BeginQuorumEpoch -------------------------------------------------------------
def on_fetch_of(
    state: RaftState, role: Leader, replica: Replica, position: tuple[Hashable, int]
) -> None:
    """Record a replica's fetch; fetches from a majority extend the leader's deadline.

    ``position`` is what the sender has of the log, or of a snapshot.
    """
    replica.fetched_at = state.now
    if position != replica.answered:
        replica.followed_at = replica.answered_at
    replica.fetched_at_ms = state.now_ms
    replica.begin_at = state.now + state.config.fetch_timeout_s
    role.replicas[replica.key] = role.replicas.pop(replica.key)
    if not state.voters.has(replica.key):
        return
    role.fetching_as[replica.key.id] = replica.key
    if state.voters.has_majority(_recent_voters(state, role)):
        role.check_at = _check_deadline(state)


def _recent_voters(state: RaftState, role: Leader) -> list[int]:
    """Return the voters that fetched since the last majority check, including this node.

    A replica whose directory differs is not the voter with the same id.
    """
    since = role.check_at - _check_timeout(state)
    return _voters_where(state, role, lambda replica: replica.fetched_at > since)


def _voters_where(state: RaftState, role: Leader, meets: Callable[[Replica], bool]) -> list[int]:
    """Return the voters whose replicas meet a condition, including this node."""
    voters = [state.config.node_id] if state.voters.has(state.key) else []
    for node in state.other_voters:
        replica = role.replicas.get(_key_of(state, role, node.id))
        if replica is not None and meets(replica):
            voters.append(node.id)
    return voters


def is_alone(state: RaftState) -> bool:
    """Return whether this leader is the only voter and no request is waiting."""
    role = state.role
    return (
        isinstance(role, Leader)
        and role.check_at == inf
        and not role.held_fetches
        and role.change is None
        and state.voters.is_only(state.key)
    )


def _check_timeout(state: RaftState) -> float:
    return state.config.fetch_timeout_s * CHECK_QUORUM_FACTOR


def _check_deadline(state: RaftState) -> float:
    if state.voters.is_only(state.key):
        return inf
    return state.now + _check_timeout(state)


def has_lost_majority(state: RaftState) -> bool:
    """Return whether this leader must resign, because a majority has stopped fetching.

    Starts the check after a second voter has joined, and ends it for a sole voter.
    """
    role = state.role
    if not isinstance(role, Leader) or is_alone(state):
        return False
    if role.check_at == inf and not state.voters.is_only(state.key):
        role.check_at = _check_deadline(state)
    if state.now >= role.check_at:
        if state.voters.is_only(state.key):
            role.check_at = inf
        else:
            return True
    return False


def may_be_replaced(state: RaftState, now: float) -> bool:
    """Return whether the other voters may have elected another leader, or this one has resigned.

    The controller learns only some turns later that its node has resigned. Another leader is
    possible when too few voters have fetched recently. A voter that received an answer grants no
    pre-vote until its fetch timeout (KIP-996), also if it restarts. That is shorter than the time
    after which the leader resigns. The arrival time of a Fetch proves nothing: after a pause, the
    leader reads Fetches that were sent long ago. While this machine was suspended, the voters'
    timeouts went on. A firewall that refuses the voters' connections to this node is not noticed:
    they take it for ended, and vote at once.
    """
    role = state.role
    if not isinstance(role, Leader):
        return True
    if state.voters.is_only(state.key):
        return False
    since = now + state.suspended_s() - state.config.fetch_timeout_s
    following = _voters_where(state, role, lambda replica: replica.followed_at > since)
    return not state.voters.has_majority(following)


def tell_voters(state: RaftState) -> None:
    """Send BeginQuorumEpoch to the voters that have not fetched for a while."""
    role = state.role
    if not isinstance(role, Leader) or is_alone(state):
        return
    from kwire.raftmeta.raft import messages

    for node in state.other_voters:
        replica = replica_of(state, role, _key_of(state, role, node.id))
        if state.now >= replica.begin_at:
            voter = state.voters.key_of(node.id)
            replica.begin_at = state.now + state.config.fetch_timeout_s / 2
            state.send(node, messages.begin_request(state, voter))


def _key_of(state: RaftState, role: Leader, node_id: int) -> ReplicaKey:
    """Return a voter's key from its last Fetch, or from the voter set if it has not fetched."""
    key = role.fetching_as.get(node_id)
    return key if key and state.voters.has(key) else state.voters.key_of(node_id)


def deadline(state: RaftState, role: Leader) -> float:
    """Return the time by which the leader must act even without an event."""
    times = [role.check_at, role.held_fetches.deadline]
    keys = (_key_of(state, role, node.id) for node in state.other_voters)
    times += [replica_of(state, role, key).begin_at for key in keys]
    if role.change is not None:
        times.append(role.change.deadline)
    return min(times)


def preferred_candidates(state: RaftState, role: Leader) -> tuple[ReplicaKey, ...]:
    """Return the other voters, those with the largest log end offset first."""
    ends = voter_progress(state, role)
    others = [voter for voter in state.voters if voter.id != state.config.node_id]
    others.sort(key=lambda voter: (-ends[voter.id], voter.id))
    return tuple(voter.key for voter in others)
