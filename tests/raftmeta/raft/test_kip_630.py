"""KIP-630, snapshots of the metadata log: how they are fetched.

The docstring of a test is the sentence in our words; `docs/quorum-rules.md` lists them all.
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
from kwire.raftmeta.storage.storage import MemoryStorage
from kwire.raftmeta.storage.storage_turn import write
from kwire.simulation.raft_quorums import config_of, voters_of
from kwire.simulation.raft_script import Fixed
from tests.support.raftmeta.one_node import answer, follower, leader, part, say, sends


def test_an_observer_whose_leader_is_gone_asks_others_in_the_middle_of_a_snapshot() -> None:
    """A follower that gets no answer looks for the leader among all voters, whatever it was
    fetching; an observer has no election that would free it."""
    history = VoterHistory([(-1, voters_of(1, 2, 3))])
    raft = Raft(config_of(9), Recovered(ElectionState(1, 1), LogState(), history), Fixed(0.5))
    raft.step(Started(), 0.0, 0)
    fetch = next(iter(raft.state.calls.open))
    raft.state.calls.finish(fetch)
    assert isinstance(raft.state.role, Follower)
    raft.state.role.snapshot = SnapshotFetch(SnapshotId(8, 1), 4)
    asked: list[Send] = [e for e in raft.step(None, 0.1, 0) if isinstance(e, Send)]
    assert [type(e.request) for e in asked] == [FetchSnapshotRequest]
    seen = set()
    for _ in range(20):
        effects = raft.step(Answered(asked[-1].call_id, None), raft.state.now, 0)
        asked = [e for e in effects if isinstance(e, Send)]
        while not asked:
            asked = [e for e in raft.step(None, raft.deadline, 0) if isinstance(e, Send)]
        seen |= {e.node.id for e in asked if isinstance(e.request, FetchRequest)}
    assert seen & {2, 3}


# The leader's side --------------------------------------------------------------------------
SNAPSHOT = SnapshotId(5, 1)


def leader_with_snapshot() -> Raft:
    raft = leader()
    raft.state.log.add_snapshot(SNAPSHOT)
    return raft


def ask(snapshot: SnapshotId = SNAPSHOT, position: int = 0, epoch: int = 2) -> Any:
    return messages.snapshot_request(follower(2, of=1, epoch=epoch).state, snapshot, position)


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (lambda: ask(SnapshotId(4, 1)), 98),
        (lambda: ask(SnapshotId(5, 2)), 98),
        (lambda: ask(position=-1), 99),
        (lambda: ask(epoch=1), 74),
        (lambda: ask(epoch=3), 75),
    ],
    ids=["no such end", "no such epoch", "position", "old epoch", "new epoch"],
)
def test_what_cannot_be_given_of_a_snapshot(request_of: Any, error: int) -> None:
    """SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; the
    answer names the leader.
    """
    response, _ = say(leader_with_snapshot(), request_of())
    assert part(response).error_code == error
    assert (part(response).current_leader.leader_id, part(response).unaligned_records) == (1, b"")


def test_a_position_beyond_the_end_of_a_snapshot_is_out_of_range() -> None:
    """POSITION_OUT_OF_RANGE where there is no byte any more."""
    storage = MemoryStorage()
    storage.store_snapshot(SNAPSHOT, [b"0123456789"])
    raft = leader_with_snapshot()
    for position, error, data in ((9, 0, b"9"), (10, 99, b"")):
        _, effects = say(raft, ask(position=position))
        replies = [o for o in write(storage, effects).outcomes if isinstance(o, Reply)]
        found = part(replies[0].response)
        assert (found.error_code, found.unaligned_records, found.size) == (error, data, 10)


def test_only_the_leader_gives_snapshots() -> None:
    """NOT_LEADER_OR_FOLLOWER elsewhere, with the leader's name."""
    response, _ = say(follower(1, of=2), ask())
    assert (part(response).error_code, part(response).current_leader.leader_id) == (6, 2)


def test_fetching_a_snapshot_is_a_sign_of_life() -> None:
    """Check-quorum counts FetchSnapshot like Fetch: a voter that loads needs its leader."""
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
def loading() -> Raft:
    """Return node 1, which node 2 has sent to fetch a snapshot."""
    raft = follower()
    told = messages.fetch_response(follower().state)
    told.responses[0].partitions[0].snapshot_id.end_offset = 9
    told.responses[0].partitions[0].snapshot_id.epoch = 2
    answer(raft, FetchRequest, 2, told, 0.1)
    return raft


def piece(raft: Raft, position: int, data: bytes, size: int, **changes: Any) -> Any:
    wanted = changes.get("snapshot", SnapshotId(9, 2))
    response = messages.snapshot_response(
        follower().state, wanted, position=position, piece=data, error=changes.get("error", 0)
    )
    part(response).size = size
    return answer(raft, FetchSnapshotRequest, 2, response, 0.2)


def test_a_snapshot_is_fetched_piece_by_piece() -> None:
    """Each request names the position where the last piece ended; nothing is installed before
    the last byte is there, and it counts only when it is in place."""
    raft = loading()
    effects = piece(raft, 0, b"01234", 8)
    (asked,) = sends(effects, FetchSnapshotRequest)
    found = messages.partition_of(asked.request)
    assert found is not None
    assert (found.position, found.snapshot_id.end_offset, found.snapshot_id.epoch) == (5, 9, 2)
    assert not [e for e in effects if isinstance(e, InstallSnapshot)]
    effects = piece(raft, 5, b"567", 8)
    kinds = [type(e) for e in effects if isinstance(e, WriteSnapshot | InstallSnapshot)]
    assert kinds == [WriteSnapshot, InstallSnapshot]
    assert raft.state.log.end_offset == 5
    loaded = SnapshotLoaded(SnapshotId(9, 2), voters_of(1, 2, 3), 0)
    fetches = sends(raft.step(loaded, 0.3, 0), FetchRequest)
    assert (raft.state.log.start_offset, raft.state.log.end_offset) == (9, 9)
    assert raft.state.high_watermark == 9
    assert messages.partition_of(fetches[0].request).fetch_offset == 9  # type: ignore[union-attr]
    assert messages.partition_of(fetches[0].request).last_fetched_epoch == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{"position": 3}, {"snapshot": SnapshotId(9, 1)}])
def test_a_piece_of_something_else_is_not_taken(changes: Any) -> None:
    """Another position or another snapshot than was asked for is no piece of this one."""
    raft = loading()
    position = changes.pop("position", 0)
    effects = piece(raft, position, b"01234", 8, **changes)
    assert not [e for e in effects if isinstance(e, WriteSnapshot)]


@pytest.mark.parametrize("error", [98, 99])
def test_a_snapshot_that_is_gone_is_asked_for_by_fetch_again(error: int) -> None:
    """The leader has cleaned it: the answer to the next Fetch names the newest one."""
    raft = loading()
    asked = sends(piece(raft, 0, b"", 0, error=error))
    while not asked:
        asked = sends(raft.step(None, raft.deadline, 0))
    assert isinstance(asked[0].request, FetchRequest)


def test_a_damaged_snapshot_is_refused_and_asked_for_again() -> None:
    """Nothing changes; the node fetches from the leader, which names a snapshot again."""
    raft = loading()
    piece(raft, 0, b"01234567", 8)
    asked = sends(raft.step(SnapshotRefused(SnapshotId(9, 2)), 0.3, 0))
    while not [s for s in asked if s.node.id == 2]:
        asked = sends(raft.step(None, raft.deadline, 0))
    assert isinstance(asked[0].request, FetchRequest)
    assert raft.state.log.end_offset == 5
    assert raft.state.installing is None


def test_who_installs_a_snapshot_stands_for_nothing() -> None:
    """During the installation the node's log is neither the old one nor the new one."""
    raft = loading()
    piece(raft, 0, b"01234567", 8)
    for _ in range(5):
        raft.step(None, raft.deadline, 0)
    assert isinstance(raft.state.role, Follower)
    assert not [c for c in raft.state.calls.open.values() if isinstance(c.request, VoteRequest)]
