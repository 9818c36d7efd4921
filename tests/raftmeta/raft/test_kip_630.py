"""KIP-630, snapshots of the metadata log: how they are fetched.

The docstring of a test is the rule in our words; `docs/quorum-rules.md` lists them all.
"""

from typing import Any

import pytest

from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import (
    Answered,
    InstallSnapshot,
    Reply,
    Send,
    SnapshotLoaded,
    SnapshotRefused,
    Started,
    WriteSnapshot,
)
from kwire.raftmeta.raft.log_state import LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.roles import Follower, Leader, SnapshotFetch
from kwire.raftmeta.raft.voters import VoterHistory
from kwire.raftmeta.storage.storage_turn import write
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import config_of, voters_of
from simulation.raft.script import Fixed
from tests.support.raftmeta.one_node import answer, follower, leader, part, say, sends
from tests.support.raftmeta.storage import snapshot


def test_observer_in_a_snapshot_fetch_looks_for_another_leader() -> None:
    """A follower that gets no answer looks for the leader among all voters, whatever it was
    fetching; an observer has no election that would free it."""
    history = VoterHistory([(-1, voters_of(1, 2, 3))])
    raft = Raft(config_of(9), Recovered(ElectionState(1, 1), LogState(), history), Fixed(0.5))
    raft.step(Started(), 0.0, 0)
    fetch = next(iter(raft.state.calls.open))
    raft.state.calls.finish(fetch)
    assert isinstance(raft.state.role, Follower)
    raft.state.role.snapshot = SnapshotFetch(SnapshotId(8, 1), 4)
    requests: list[Send] = [e for e in raft.step(None, 0.1, 0) if isinstance(e, Send)]
    assert [type(e.request) for e in requests] == [FetchSnapshotRequest]
    node_ids = set()
    for _ in range(20):
        effects = raft.step(Answered(requests[-1].call_id, None), raft.state.now, 0)
        requests = [e for e in effects if isinstance(e, Send)]
        while not requests:
            requests = [e for e in raft.step(None, raft.deadline, 0) if isinstance(e, Send)]
        node_ids |= {e.node.id for e in requests if isinstance(e.request, FetchRequest)}
    assert node_ids & {2, 3}


# The leader's side --------------------------------------------------------------------------
SNAPSHOT = SnapshotId(5, 1)


def leader_with_snapshot() -> Raft:
    raft = leader()
    raft.state.log.snapshots = [SnapshotId(0, 0), SNAPSHOT]
    return raft


def ask(snapshot: SnapshotId = SNAPSHOT, position: int = 0, epoch: int = 2) -> Any:
    return messages.snapshot_request(follower(2, of=1, epoch=epoch).state, snapshot, position)


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (lambda: ask(SnapshotId(4, 1)), 98),
        (lambda: ask(SnapshotId(5, 2)), 98),
        (lambda: ask(SnapshotId(0, 0)), 98),
        (lambda: ask(position=-1), 99),
        (lambda: ask(epoch=1), 74),
        (lambda: ask(epoch=3), 75),
    ],
    ids=["no such end", "no such epoch", "bootstrap", "position", "old epoch", "new epoch"],
)
def test_invalid_fetch_snapshot_gets_kafkas_error(request_of: Any, error: int) -> None:
    """SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; the
    answer names the leader.
    """
    response, _ = say(leader_with_snapshot(), request_of())
    assert part(response).error_code == error
    assert (part(response).current_leader.leader_id, part(response).unaligned_records) == (1, b"")


def test_a_position_beyond_the_end_of_a_snapshot_is_out_of_range() -> None:
    """POSITION_OUT_OF_RANGE for a position at which the snapshot has no byte."""
    storage = MemoryStorage()
    whole = snapshot(storage, *SNAPSHOT, voters_of(1))
    raft = leader_with_snapshot()
    size = len(whole)
    for position, error, data in ((size - 1, 0, whole[-1:]), (size, 99, b"")):
        _, effects = say(raft, ask(position=position))
        replies = [o for o in write(storage, effects).outcomes if isinstance(o, Reply)]
        partition = part(replies[0].response)
        assert (partition.error_code, partition.unaligned_records, partition.size) == (
            error,
            data,
            size,
        )


def test_only_the_leader_serves_snapshots() -> None:
    """NOT_LEADER_OR_FOLLOWER elsewhere, with the leader's name."""
    response, _ = say(follower(1, of=2), ask())
    assert (part(response).error_code, part(response).current_leader.leader_id) == (6, 2)


def test_fetch_snapshot_counts_for_check_quorum() -> None:
    """Check quorum counts FetchSnapshot like Fetch: the voter still needs its leader."""
    raft = leader_with_snapshot()
    now = 0.2
    for _ in range(10):
        say(raft, ask(), now)
        now += 1.0
        raft.step(None, now, 0)
    assert isinstance(raft.state.role, Leader)
    raft.step(None, now + 10, 0)
    assert not isinstance(raft.state.role, Leader)


# The follower's side ------------------------------------------------------------------------
FETCHED = SnapshotId(9, 2)


def loading() -> Raft:
    """Return node 1, which node 2 has sent to fetch a snapshot."""
    raft = follower()
    response = messages.fetch_response(follower().state)
    response.responses[0].partitions[0].snapshot_id.end_offset = 9
    response.responses[0].partitions[0].snapshot_id.epoch = 2
    answer(raft, FetchRequest, 2, response, 0.1)
    return raft


def piece(
    raft: Raft,
    position: int,
    data: bytes,
    size: int,
    *,
    snapshot: SnapshotId = FETCHED,
    error: int = 0,
) -> Any:
    response = messages.snapshot_response(
        follower().state, snapshot, position=position, piece=data, error=error
    )
    part(response).size = size
    return answer(raft, FetchSnapshotRequest, 2, response, 0.2)


def test_snapshot_is_fetched_in_chunks() -> None:
    """Each request names the position where the last piece ended; nothing is installed before
    the last byte is there, and it counts only when it is in place."""
    raft = loading()
    effects = piece(raft, 0, b"01234", 8)
    (send,) = sends(effects, FetchSnapshotRequest)
    partition = part(send.request)
    assert (partition.position, partition.snapshot_id.end_offset, partition.snapshot_id.epoch) == (
        5,
        9,
        2,
    )
    assert not [e for e in effects if isinstance(e, InstallSnapshot)]
    effects = piece(raft, 5, b"567", 8)
    kinds = [type(e) for e in effects if isinstance(e, WriteSnapshot | InstallSnapshot)]
    assert kinds == [WriteSnapshot, InstallSnapshot]
    assert raft.state.log.end_offset == 5
    loaded = SnapshotLoaded(FETCHED, voters_of(1, 2, 3), 0)
    fetches = sends(raft.step(loaded, 0.3, 0), FetchRequest)
    assert (raft.state.log.start_offset, raft.state.log.end_offset) == (9, 9)
    assert raft.state.high_watermark == 9
    assert part(fetches[0].request).fetch_offset == 9
    assert part(fetches[0].request).last_fetched_epoch == 2


@pytest.mark.parametrize(("position", "snapshot"), [(3, FETCHED), (0, SnapshotId(9, 1))])
def test_chunk_of_another_position_or_snapshot_is_ignored(
    position: int, snapshot: SnapshotId
) -> None:
    """A chunk of another position or snapshot than the requested one is ignored."""
    raft = loading()
    effects = piece(raft, position, b"01234", 8, snapshot=snapshot)
    assert not [e for e in effects if isinstance(e, WriteSnapshot)]


@pytest.mark.parametrize("error", [98, 99])
def test_follower_sends_fetch_again_when_the_snapshot_was_deleted(error: int) -> None:
    """The leader has cleaned it: the answer to the next Fetch names the newest one."""
    raft = loading()
    requests = sends(piece(raft, 0, b"", 0, error=error))
    while not requests:
        requests = sends(raft.step(None, raft.deadline, 0))
    assert isinstance(requests[0].request, FetchRequest)


def test_damaged_snapshot_is_refused_and_fetched_again() -> None:
    """Nothing changes; the node fetches from the leader, which names a snapshot again."""
    raft = loading()
    piece(raft, 0, b"01234567", 8)
    requests = sends(raft.step(SnapshotRefused(FETCHED), 0.3, 0))
    while not [s for s in requests if s.node.id == 2]:
        requests = sends(raft.step(None, raft.deadline, 0))
    assert isinstance(requests[0].request, FetchRequest)
    assert raft.state.log.end_offset == 5
    assert raft.state.installing is None


def test_node_that_installs_a_snapshot_never_becomes_a_candidate() -> None:
    """During the installation the node's log is neither the old one nor the new one."""
    raft = loading()
    piece(raft, 0, b"01234567", 8)
    for _ in range(5):
        raft.step(None, raft.deadline, 0)
    assert isinstance(raft.state.role, Follower)
    assert not [c for c in raft.state.calls.open.values() if isinstance(c.request, VoteRequest)]
