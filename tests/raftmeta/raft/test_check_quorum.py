"""A leader resigns unless a majority of the voters' own replicas fetches from it."""

import pytest

from kwire.codec.messages.fetch import FetchRequest
from kwire.raftmeta.raft import progress
from kwire.raftmeta.raft.events import Append
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.voters import ReplicaKey
from simulation.raft.quorums import directory_of
from tests.support.raftmeta.one_node import dynamic, fetch, leader, say

FETCH_TIMEOUT_S = 2.0


def key_of(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory_of(node_id))


def fetch_at_end(raft: Raft, key: ReplicaKey) -> FetchRequest:
    """Return the Fetch of a replica that has everything."""
    log = raft.state.log
    request: FetchRequest = fetch(
        key.id, epoch=raft.state.epoch, offset=log.end_offset, last_epoch=log.last_epoch
    )
    partition = request.topics[0].partitions[0]
    partition.replica_directory_id = key.directory_id
    partition.high_watermark = raft.state.high_watermark or 0
    return request


def say_fetch(raft: Raft, key: ReplicaKey, now: float) -> None:
    """Let a replica fetch that has everything; the leader holds the Fetch for half a second."""
    say(raft, fetch_at_end(raft, key), now)


def leads_while_fetched_by(raft: Raft, *replicas: ReplicaKey) -> bool:
    """Whether the leader leads on while these replicas fetch twice a second."""
    state = raft.state
    until = state.now + 5 * FETCH_TIMEOUT_S
    while state.now < until and isinstance(state.role, Leader):
        raft.step(None, state.now + 0.5, 0)
        for key in replicas:
            say_fetch(raft, key, state.now)
    return isinstance(state.role, Leader)


@pytest.mark.parametrize(
    ("third", "leads_on"),
    [
        (key_of(3), True),
        (ReplicaKey(3, bytes([9]) * 16), False),
        (key_of(7), False),
    ],
    ids=["voter", "voter's id on another disk", "observer"],
)
def test_leader_resigns_unless_a_majority_of_voters_fetches(
    third: ReplicaKey, leads_on: bool
) -> None:
    """KIP-595, KIP-853, invariant 44: a majority of the voters, by id and directory, has to fetch.

    A voter that came back with an empty disk is an observer that has the voter's id.
    """
    raft = leader(voters=dynamic(1, 2, 3, 4, 5), kraft_version=1)
    assert leads_while_fetched_by(raft, key_of(2), third) is leads_on


def test_leader_that_removes_itself_needs_a_majority_of_the_others() -> None:
    """KIP-853: a leader that is removing itself is no part of the majority that it needs."""
    raft = leader(voters=dynamic(1, 2, 3, 4), kraft_version=1)
    raft.state.history.add(raft.state.log.end_offset - 1, dynamic(2, 3, 4))
    assert not leads_while_fetched_by(raft, key_of(2))


def test_leader_may_be_replaced_from_the_fetch_timeout_of_its_followers_on() -> None:
    """It resigns only later, or when it wakes from a pause; until then it must vouch for nothing.

    Invariant 34.
    """
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    assert leads_while_fetched_by(raft, key_of(2))
    fetched_at = raft.state.now
    answered_at = fetched_at - 0.5
    before, after = answered_at + 0.9 * FETCH_TIMEOUT_S, fetched_at + 1.1 * FETCH_TIMEOUT_S
    assert not progress.may_be_replaced(raft.state, before)
    assert progress.may_be_replaced(raft.state, after)
    assert isinstance(raft.state.role, Leader)


def test_leader_may_be_replaced_while_its_machine_was_suspended() -> None:
    """Invariant 34: its own clock stands still meanwhile, but not those of the other voters."""
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    state, suspended_s = raft.state, 100.0
    state.suspended_s = lambda: suspended_s
    assert leads_while_fetched_by(raft, key_of(2))
    assert not progress.may_be_replaced(state, state.now)
    suspended_s += 1.1 * FETCH_TIMEOUT_S
    assert progress.may_be_replaced(state, state.now)
    raft.step(None, state.now + 0.6, 0)
    say_fetch(raft, key_of(2), state.now)
    assert progress.may_be_replaced(state, state.now), "the last answer was before the suspension"
    raft.step(None, state.now + 0.6, 0)
    say_fetch(raft, key_of(2), state.now)
    assert not progress.may_be_replaced(state, state.now)


def test_fetch_that_waited_during_a_pause_does_not_vouch_for_the_leader() -> None:
    """Invariant 34: its sender may have elected another leader after it had sent it."""
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    assert leads_while_fetched_by(raft, key_of(2))
    state = raft.state
    raft.step(None, state.now + 0.6, 0)
    role = state.role
    assert isinstance(role, Leader)
    assert not role.held_fetches, "the pause begins while the next one is on its way"
    woken_at = state.now + 5 * FETCH_TIMEOUT_S
    say_fetch(raft, key_of(2), woken_at)
    assert state.role is role
    assert progress.may_be_replaced(state, woken_at)
    raft.step(None, woken_at + 0.6, 0)
    say_fetch(raft, key_of(2), woken_at + 0.6)
    assert not progress.may_be_replaced(state, woken_at + 0.7)


@pytest.mark.parametrize("is_held", [True, False])
def test_two_fetches_that_waited_during_a_pause_do_not_vouch_for_the_leader(is_held: bool) -> None:
    """Invariant 34: the second was sent because the first had no answer, not because it had one.

    The first is answered at once, with records or because the leader has held it since before.
    """
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    assert leads_while_fetched_by(raft, key_of(2))
    state = raft.state
    request = fetch_at_end(raft, key_of(2))
    if not is_held:
        raft.step(None, state.now + 0.6, 0)
        raft.step(Append("token", state.epoch, (b"value",)), state.now, 0)
    woken_at = state.now + 1.4 * FETCH_TIMEOUT_S
    if is_held:
        raft.step(None, woken_at, 0)
    else:
        say(raft, request, woken_at)
    say(raft, request, woken_at)
    assert isinstance(state.role, Leader)
    assert progress.may_be_replaced(state, woken_at)
    for _ in range(2):
        raft.step(None, state.now + 0.6, 0)
        say_fetch(raft, key_of(2), state.now)
    assert not progress.may_be_replaced(state, state.now)


def test_leader_that_has_resigned_may_be_replaced() -> None:
    """Invariants 34 and 48: the controller of this node learns of that only some turns later.

    Until then, it must neither reject requests nor answer heartbeats from its own state.
    """
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    assert leads_while_fetched_by(raft, key_of(2))
    assert not progress.may_be_replaced(raft.state, raft.state.now)
    raft.step(None, raft.state.now + 5 * FETCH_TIMEOUT_S, 0)
    assert not isinstance(raft.state.role, Leader)
    assert progress.may_be_replaced(raft.state, raft.state.now)
