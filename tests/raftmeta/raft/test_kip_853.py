"""KIP-853, changes of the voter set, and chapter 4 of Ongaro's thesis that it rests on.

The docstring of a test is the rule in our words; `docs/quorum-rules.md` lists them all.
"""

from typing import Any

import attrs
import pytest

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest
from kwire.raftmeta.raft import election, messages
from kwire.raftmeta.raft.events import (
    Answered,
    Append,
    AppendLog,
    Effect,
    Received,
    Refused,
    Reply,
    Resign,
    Send,
    UpgradeKraftVersion,
)
from kwire.raftmeta.raft.log_state import EpochStart, LogState
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Leader, Resigned
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterEndpoint
from simulation.raft.quorums import config_of, directory_of
from tests.support.raftmeta.one_node import (
    CLUSTER,
    answer,
    dynamic,
    fetch,
    follower,
    leader,
    node,
    of_epoch_1,
    say,
    sends,
    vote,
)

HOUR_MS = 3_600_000


def active(*ids: int, kraft_version: int = 1) -> Raft:
    """Node 1 as the leader of dynamic voters, with its epoch's first record committed."""
    raft = leader(voters=dynamic(*(ids or (1, 2, 3))), kraft_version=kraft_version)
    catch_up(raft, 2, now=0.15)
    return raft


def catch_up(raft: Raft, number: int, *, now: float) -> tuple[Effect, ...]:
    """Let a node fetch at the leader's log end."""
    end = raft.state.log.end_offset
    last = raft.state.log.last_epoch
    _, effects = say(raft, fetch(number, offset=end, last_epoch=last, epoch=last), now)
    return effects


def add(number: int = 4, **changes: Any) -> AddRaftVoterRequest:
    config = config_of(number)
    listener = AddRaftVoterRequest.Listener
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "timeout_ms": 1000,
        "voter_id": number,
        "voter_directory_id": config.directory_id,
        "listeners": [listener(name=e.name, host=e.host, port=e.port) for e in config.endpoints],
        **changes,
    }
    return AddRaftVoterRequest(**fields)


def other_listener(request_type: Any) -> Any:
    """Return a listener that the voters do not use among themselves."""
    return request_type.Listener(name="OTHER", host="node", port=9094)


def remove(number: int = 3, *, directory: bytes | None = None) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(
        cluster_id=CLUSTER,
        voter_id=number,
        voter_directory_id=directory_of(number) if directory is None else directory,
    )


def update(number: int = 2, *, port: int = 9999, epoch: int = 2) -> UpdateRaftVoterRequest:
    sender = node(number, saved=ElectionState(epoch), voters=dynamic(1, 2, 3))
    sender.state.config = attrs.evolve(
        sender.state.config, endpoints=(VoterEndpoint("CONTROLLER", f"node-{number}", port),)
    )
    return messages.update_request(sender.state)


def supports(raft: Raft, newest: int | None = 1, now: float = 0.25) -> tuple[Effect, ...]:
    """Answer for the new voter with the kraft.version that it supports."""
    feature = ApiVersionsResponse.SupportedFeatureKey
    response = None
    if newest is not None:
        features = [feature(name="kraft.version", min_version=0, max_version=newest)]
        response = ApiVersionsResponse(api_keys=[], supported_features=features)
    return answer(raft, ApiVersionsRequest, 4, response, now)


def error_codes(effects: Any) -> list[int]:
    """Return the error codes of the answers to requests for a change."""
    replies = [e.response for e in effects if isinstance(e, Reply)]
    return [
        r.error_code
        for r in replies
        if isinstance(r, AddRaftVoterResponse | RemoveRaftVoterResponse)
    ]


# Adding -------------------------------------------------------------------------------------
def test_voter_is_added_once_it_has_caught_up_and_supports_the_version() -> None:
    """The leader asks the new voter's first listener for its kraft.version, appends the new set,
    which counts at once, and answers when the new majority has committed it."""
    raft = active()
    catch_up(raft, 4, now=0.16)
    response, effects = say(raft, add())
    assert response is None
    (send,) = sends(effects, ApiVersionsRequest)
    assert (send.node.host, send.node.port) == ("node-4", 9093)
    effects = supports(raft)
    assert [e for e in effects if isinstance(e, AppendLog)]
    assert raft.state.voters == dynamic(1, 2, 3, 4)
    assert not error_codes(effects)
    assert not error_codes(catch_up(raft, 2, now=0.3))  # two of four
    assert error_codes(catch_up(raft, 4, now=0.4)) == [0]


def test_add_voter_without_ack_when_committed_answers_after_the_append() -> None:
    """KIP-1186: with ack.when.committed false, so that the new voter can fetch what commits it."""
    raft = active()
    catch_up(raft, 4, now=0.16)
    say(raft, add(ack_when_committed=False))
    assert error_codes(supports(raft)) == [0]


def test_a_voter_that_is_behind_is_not_added() -> None:
    """It would count for the majority without the latest records: REQUEST_TIMED_OUT."""
    raft = active()
    say(raft, fetch(4, offset=0, last_epoch=0), 0.16)
    say(raft, add())
    assert error_codes(supports(raft)) == [7]
    assert raft.state.voters == dynamic(1, 2, 3)


def test_a_voter_that_was_caught_up_long_ago_is_not_added() -> None:
    """Caught up means within the last hour."""
    raft = active()
    catch_up(raft, 4, now=0.16)
    raft.state.now_ms = HOUR_MS
    say(raft, add())
    feature = ApiVersionsResponse.SupportedFeatureKey(
        name="kraft.version", min_version=0, max_version=1
    )
    response = ApiVersionsResponse(api_keys=[], supported_features=[feature])
    calls = raft.state.calls.open.values()
    call = next(c for c in calls if isinstance(c.request, ApiVersionsRequest))
    assert error_codes(raft.step(Answered(call.id, response), 0.3, 2 * HOUR_MS)) == [7]


def test_a_voter_that_returns_far_behind_is_not_added() -> None:
    """Its Fetch after a long pause says that it was caught up before the pause, not that it is."""
    raft = active()
    catch_up(raft, 4, now=0.16)
    end, later_ms = raft.state.log.end_offset, 2 * HOUR_MS
    raft.step(Append("records", 2, (b"record",) * 100), 0.17, later_ms)
    raft.step(Received("fetch", fetch(4, offset=end, last_epoch=2)), 0.18, later_ms)
    raft.step(Received("token", add()), 0.2, later_ms)
    feature = ApiVersionsResponse.SupportedFeatureKey(
        name="kraft.version", min_version=0, max_version=1
    )
    response = ApiVersionsResponse(api_keys=[], supported_features=[feature])
    calls = raft.state.calls.open.values()
    call = next(c for c in calls if isinstance(c.request, ApiVersionsRequest))
    assert error_codes(raft.step(Answered(call.id, response), 0.3, later_ms)) == [7]


@pytest.mark.parametrize(("newest", "error"), [(0, 42), (None, 7)], ids=["too old", "silent"])
def test_a_voter_that_does_not_support_the_version_is_not_added(
    newest: int | None, error: int
) -> None:
    """INVALID_REQUEST if it does not know the kraft.version, REQUEST_TIMED_OUT if it is silent."""
    raft = active()
    catch_up(raft, 4, now=0.16)
    say(raft, add())
    assert error_codes(supports(raft, newest)) == [error]


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (lambda: add(3), 126),
        (lambda: add(3, voter_directory_id=directory_of(33)), 126),
        (lambda: add(voter_directory_id=bytes(16)), 42),
        (lambda: add(listeners=[]), 42),
        (lambda: add(listeners=[other_listener(AddRaftVoterRequest)]), 42),
        (lambda: add(cluster_id="another"), 104),
        (lambda: remove(4), 127),
        (lambda: remove(3, directory=directory_of(33)), 127),
    ],
    ids=[
        "a voter already",
        "a voter with another disk",
        "no directory",
        "no listener",
        "another listener",
        "another cluster",
        "no voter",
        "no voter with that disk",
    ],
)
def test_invalid_changes_are_refused(request_of: Any, error: int) -> None:
    """DUPLICATE_VOTER, INVALID_REQUEST, INCONSISTENT_CLUSTER_ID, VOTER_NOT_FOUND."""
    response, effects = say(active(), request_of())
    assert response.error_code == error
    assert not [e for e in effects if isinstance(e, AppendLog)]


CHANGES = {"add": add, "remove": remove}


@pytest.mark.parametrize("change", CHANGES)
def test_only_the_leader_changes_voters(change: str) -> None:
    """NOT_LEADER_OR_FOLLOWER elsewhere."""
    raft = follower(voters=dynamic(1, 2, 3), kraft_version=1)
    assert say(raft, CHANGES[change]())[0].error_code == 6


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_before_the_epoch_is_committed(change: str) -> None:
    """Thesis, erratum to 4.1: a leader first commits a record of its own term."""
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    assert say(raft, CHANGES[change]())[0].error_code == 7
    catch_up(raft, 2, now=0.3)
    assert say(raft, remove(3), 0.4)[0] is None


@pytest.mark.parametrize("change", CHANGES)
def test_one_change_at_a_time(change: str) -> None:
    """Thesis 4.1: the next change waits until the one before is committed."""
    raft = active()
    assert say(raft, remove(3))[0] is None
    assert say(raft, CHANGES[change](2) if change == "remove" else add(), 0.3)[0].error_code == 7


@pytest.mark.parametrize("change", CHANGES)
def test_configured_voters_are_not_changed(change: str) -> None:
    """UNSUPPORTED_VERSION under kraft.version 0."""
    raft = active(kraft_version=0)
    assert say(raft, CHANGES[change]())[0].error_code == 35


# Removing -----------------------------------------------------------------------------------
def test_removal_is_committed_by_the_remaining_voters() -> None:
    """The new set counts when it is appended, and the answer comes when it is committed."""
    raft = active()
    response, _ = say(raft, remove(3))
    assert response is None
    assert raft.state.voters == dynamic(1, 2)
    assert error_codes(catch_up(raft, 2, now=0.3)) == [0]


def test_a_leader_that_removes_itself_does_not_count_itself() -> None:
    """Thesis 4.2.2: while it manages a cluster without itself, its own log is no vote."""
    raft = active()
    say(raft, remove(1))
    assert not error_codes(catch_up(raft, 2, now=0.3))
    assert isinstance(raft.state.role, Leader)
    assert error_codes(catch_up(raft, 3, now=0.4)) == [0]
    assert isinstance(raft.state.role, Resigned)


def test_the_last_voter_is_not_removed() -> None:
    """No voter would be left to commit it."""
    raft = node(voters=dynamic(1), kraft_version=1)
    raft.step(None, 0.1, 0)
    assert say(raft, remove(1))[0].error_code == 42


def test_truncated_change_restores_the_earlier_voters() -> None:
    """Thesis 4.1: a server falls back to the set before when the record is removed."""
    raft = follower(voters=dynamic(1, 2, 3), kraft_version=1)
    raft.state.history.add(4, dynamic(1, 2))
    assert raft.state.voters == dynamic(1, 2)
    cut = messages.fetch_response(follower().state)
    cut.responses[0].partitions[0].diverging_epoch.epoch = 1
    cut.responses[0].partitions[0].diverging_epoch.end_offset = 3
    answer(raft, FetchRequest, 2, cut, 0.2)
    assert raft.state.log.end_offset == 3
    assert raft.state.voters == dynamic(1, 2, 3)


def test_uncommitted_change_is_answered_when_the_leader_resigns() -> None:
    """NOT_LEADER_OR_FOLLOWER: the next leader decides whether the change is committed."""
    raft = active()
    say(raft, remove(3))
    assert error_codes(raft.step(Resign(2), 0.3, 0)) == [6]


# Updating -----------------------------------------------------------------------------------
def test_a_voter_that_moved_is_written_with_its_new_address() -> None:
    """UpdateRaftVoter appends the set with the voter's endpoints as they are now."""
    raft = active()
    response, effects = say(raft, update())
    assert response.error_code == 0
    assert [e for e in effects if isinstance(e, AppendLog)]
    node_2 = raft.state.voters.node(2)
    assert node_2 is not None
    assert node_2.port == 9999
    assert raft.state.voters.ids == (1, 2, 3)


def test_update_without_a_change_writes_no_record() -> None:
    """The set in the log has it already."""
    response, effects = say(active(), update(port=9093))
    assert response.error_code == 0
    assert not [e for e in effects if isinstance(e, AppendLog)]


@pytest.mark.parametrize(("epoch", "error"), [(1, 74), (3, 75)])
def test_an_update_names_the_epoch_of_the_leader(epoch: int, error: int) -> None:
    """FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH, with the leader that there is."""
    response, _ = say(active(), update(epoch=epoch))
    assert response.error_code == error
    assert (response.current_leader.leader_id, response.current_leader.leader_epoch) == (1, 2)


def test_update_without_the_listener_of_the_other_voters_is_refused() -> None:
    """INVALID_REQUEST: Apache Kafka's nodes fail on a voter whom they cannot reach there."""
    request = update()
    request.listeners = [other_listener(UpdateRaftVoterRequest)]
    response, effects = say(active(), request)
    assert response.error_code == 42
    assert not [e for e in effects if isinstance(e, AppendLog)]


def test_update_of_a_node_that_is_no_voter_is_refused() -> None:
    """VOTER_NOT_FOUND: an update adds no voter."""
    assert say(active(), update(4))[0].error_code == 127


def test_follower_with_a_new_address_sends_update_raft_voter() -> None:
    """A voter that has followed a leader for a fetch timeout sends UpdateRaftVoter."""
    moved = Voter(ReplicaKey(1, directory_of(1)), (VoterEndpoint("CONTROLLER", "elsewhere", 1),))
    raft = follower(voters=dynamic(2, 3).with_voter(moved), kraft_version=1)
    now = 0.1
    updates: list[Send] = []
    while not updates and now < 10:
        response = messages.fetch_response(follower().state)
        updates = sends(answer(raft, FetchRequest, 2, response, now), UpdateRaftVoterRequest)
        now += 0.5
    assert [s.node.id for s in updates] == [2]


@pytest.mark.parametrize("others", [(), (2, 3)], ids=["alone", "of three"])
def test_leader_with_a_new_address_writes_it(others: tuple[int, ...]) -> None:
    """A leader sends no UpdateRaftVoter; the first batch of its epoch has the voters as they are.

    The others would ask for its vote at an address that may now be another node's.
    """
    moved = Voter(ReplicaKey(1, directory_of(1)), (VoterEndpoint("CONTROLLER", "elsewhere", 1),))
    raft = node(voters=dynamic(*others).with_voter(moved), log=of_epoch_1(), kraft_version=1)
    if others:
        raft.state.history.sets = [(3, raft.state.voters)]
        election.become_prospective(raft.state)
        election.become_candidate(raft.state)
        election.become_leader(raft.state, frozenset((1, 2)))
    assert isinstance(raft.state.role, Leader)
    assert raft.state.voters == dynamic(1, *others)


def test_leader_with_its_former_address_writes_no_voters() -> None:
    raft = node(voters=dynamic(1, 2, 3), log=of_epoch_1(), kraft_version=1)
    raft.state.history.sets = [(3, raft.state.voters)]
    election.become_prospective(raft.state)
    election.become_candidate(raft.state)
    election.become_leader(raft.state, frozenset((1, 2)))
    assert raft.state.history.latest_offset == 3


# kraft.version ------------------------------------------------------------------------------
def test_upgrade_needs_the_directory_id_of_every_voter() -> None:
    """The directory ids are not in the configuration: each voter has to have sent its own."""
    raft = leader()
    catch_up(raft, 2, now=0.15)
    (refused,) = raft.step(UpgradeKraftVersion("up", 1), 0.2, 0)
    assert isinstance(refused, Refused)
    for voter in (2, 3):
        assert say(raft, update(voter, port=9093), 0.3)[0].error_code == 0
    effects = raft.step(UpgradeKraftVersion("up", 1), 0.4, 0)
    assert [e for e in effects if isinstance(e, AppendLog)]
    assert raft.state.history.kraft_version == 1
    assert raft.state.voters == dynamic(1, 2, 3)


def test_kraft_version_is_never_lowered() -> None:
    """The log of version 1 cannot be read by version 0."""
    (refused,) = active().step(UpgradeKraftVersion("down", 0), 0.3, 0)
    assert isinstance(refused, Refused)


# Identity of replicas -----------------------------------------------------------------------
def test_replica_with_another_directory_id_is_not_counted() -> None:
    """A node with a voter's id but another directory id is an observer: it does not move the high
    watermark.
    """
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    end = raft.state.log.end_offset
    request = fetch(2, offset=end, last_epoch=2)
    request.topics[0].partitions[0].replica_directory_id = directory_of(22)
    say(raft, request)
    assert raft.state.high_watermark is None
    catch_up(raft, 2, now=0.3)
    assert raft.state.high_watermark == end


def test_vote_is_for_a_candidate_and_its_directory_id() -> None:
    """The same id with another directory is another candidate."""
    raft = node(voters=dynamic(1, 2, 3), kraft_version=1)
    assert say(raft, vote(2, 1))[0].topics[0].partitions[0].vote_granted
    other = vote(2, 1)
    other.topics[0].partitions[0].replica_directory_id = directory_of(22)
    assert not say(raft, other)[0].topics[0].partitions[0].vote_granted


def test_voter_with_another_directory_id_never_becomes_a_candidate() -> None:
    """The set names another directory: the node observes until it is added again."""
    raft = node(voters=dynamic(2, 3).with_voter(Voter(ReplicaKey(1, directory_of(11)))))
    for _ in range(20):
        raft.step(None, min(raft.deadline, 60.0), 0)
    assert raft.state.epoch == 0
    assert not raft.state.is_voter


def test_removed_voter_may_become_a_candidate_until_the_removal_is_committed() -> None:
    """Thesis 4.2.2: else two that become one could be stuck."""
    log = LogState(0, 5, [EpochStart(1, 0)])
    raft = node(voters=dynamic(1, 2), log=log, saved=ElectionState(1), kraft_version=1)
    raft.state.history.add(4, dynamic(2))
    assert raft.state.is_voter
    raft.state.high_watermark = 5
    assert not raft.state.is_voter


def test_controller_records_are_committed_during_a_change() -> None:
    """A change of voters holds up nothing else."""
    raft = active()
    say(raft, remove(3))
    raft.step(Append("append", 2, (b"value",)), 0.3, 0)
    end = raft.state.log.end_offset
    catch_up(raft, 2, now=0.4)
    assert raft.state.high_watermark == end
