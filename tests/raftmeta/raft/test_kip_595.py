"""KIP-595, a Raft protocol for the metadata quorum: the follower's and the leader's side of it.

The docstring of a test is the rule in our words; `docs/quorum-rules.md` lists them all.
"""

from typing import Any

import pytest

from kwire.codec.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from kwire.codec.messages.control_records import LeaderChangeMessage
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.control_records import control_records
from kwire.raftmeta.raft.election import become_candidate, become_leader, become_prospective
from kwire.raftmeta.raft.events import (
    Answered,
    Append,
    AppendLog,
    LogSlice,
    Reply,
    Resign,
    SaveElection,
    Send,
    Shutdown,
)
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Candidate, Follower, Leader, Resigned
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterEndpoint, VoterSet
from kwire.records.build import New, batch
from kwire.records.header import parse
from simulation.raft.quorums import voters_of
from tests.support.raftmeta.one_node import (
    answer,
    fetch,
    follower,
    leader,
    node,
    of_epoch_1,
    part,
    say,
    sends,
    vote,
    with_cluster_id,
)


def records(base_offset: int, epoch: int, *values: bytes) -> bytes:
    entries = [New(None, value) for value in values]
    return batch(entries, timestamp_ms=7, base_offset=base_offset, leader_epoch=epoch)


def leader_state(raft: Raft) -> RaftState:
    """The leader of a follower's epoch, as far as answers name it."""
    return follower(epoch=raft.state.epoch).state


def fetch_under_way(raft: Raft) -> int:
    return next(c.id for c in raft.state.calls.open.values() if isinstance(c.request, FetchRequest))


def fetch_offset(send: Send) -> int:
    return int(part(send.request).fetch_offset)


def answer_fetch(raft: Raft, data: bytes, now: float) -> tuple[object, ...]:
    """Let the leader answer the Fetch that is under way with these records."""
    response = messages.fetch_response(leader_state(raft), records=LogSlice(5, 9, 1000))
    response.responses[0].partitions[0].records = data
    return raft.step(Answered(fetch_under_way(raft), response), now, 0)


SOUND = records(5, 2, b"first", b"second")
DAMAGED = SOUND[:-1] + bytes([SOUND[-1] ^ 1])


@pytest.mark.parametrize(
    "data",
    [
        DAMAGED,
        SOUND + records(7, 2, b"third")[:-1] + b"!",
        SOUND[:16] + b"\x01" + SOUND[17:],
        records(6, 2, b"beyond a gap"),
        records(4, 2, b"what is there already"),
        records(5, 3, b"of an unknown epoch"),
        SOUND + records(7, 1, b"of an earlier epoch than the batch before"),
    ],
    ids=["CRC", "CRC of the second", "magic", "gap", "overlap", "epoch ahead", "epoch falls"],
)
def test_damaged_records_are_refused_and_fetched_again(data: bytes) -> None:
    """A follower appends nothing of an answer with a damaged batch, follows on, and asks for the
    same offset again (KafkaRaftClient.appendAsFollower of 4.3.1)."""
    raft = follower()
    assert not [e for e in answer_fetch(raft, data, 0.1) if isinstance(e, AppendLog)]
    assert isinstance(raft.state.role, Follower)
    assert raft.state.log.end_offset == 5
    fetches = [e for e in raft.step(None, raft.deadline, 0) if isinstance(e, Send)]
    assert [(e.node.id, fetch_offset(e)) for e in fetches] == [(2, 5)]
    assert raft.state.now < 0.2  # at once, but not in a busy loop
    assert [e for e in answer_fetch(raft, SOUND, 0.3) if isinstance(e, AppendLog)]
    assert raft.state.log.end_offset == 7


def test_partial_batch_at_the_end_of_a_response_is_ignored() -> None:
    """A Fetch answer is limited in bytes: the last batch may have been cut and comes again."""
    raft = follower()
    answer_fetch(raft, SOUND + records(7, 2, b"third")[:-3], 0.1)
    assert raft.state.log.end_offset == 7


def test_records_of_a_later_epoch_are_not_appended() -> None:
    """A replica appends only what is of no later epoch than its own, and stops there."""
    raft = follower()
    answer_fetch(raft, SOUND + records(7, 3, b"third"), 0.1)
    assert raft.state.log.end_offset == 7


# Epochs and the senders of requests ---------------------------------------------------------
def begin(epoch: int, *, of: int = 2) -> Any:
    return messages.begin_request(node(of, saved=ElectionState(epoch)).state, ReplicaKey(1))


def end(epoch: int, *preferred: int, of: int = 2) -> Any:
    sender = node(of, saved=ElectionState(epoch)).state
    return messages.end_request(sender, tuple(ReplicaKey(n) for n in preferred))


def test_receiver_of_begin_quorum_epoch_follows_the_sender() -> None:
    """A node that gets BeginQuorumEpoch of its epoch or a later one follows the sender."""
    raft = node(saved=ElectionState(2))
    response, effects = say(raft, begin(3))
    assert (part(response).error_code, part(response).leader_id) == (0, 2)
    assert isinstance(raft.state.role, Follower)
    assert raft.state.election == ElectionState(3, 2)
    assert [e.state for e in effects if isinstance(e, SaveElection)] == [ElectionState(3, 2)]


@pytest.mark.parametrize("request_of", [begin, end], ids=["BeginQuorumEpoch", "EndQuorumEpoch"])
def test_begin_and_end_of_an_old_epoch_are_fenced(request_of: Any) -> None:
    """FENCED_LEADER_EPOCH, with the epoch and leader that are known instead."""
    raft = follower(epoch=4, of=3)
    response, _ = say(raft, request_of(3))
    assert (part(response).error_code, part(response).leader_epoch) == (74, 4)
    assert part(response).leader_id == 3
    assert raft.state.leader_id == 3


@pytest.mark.parametrize(
    ("epoch", "error"), [(1, 74), (3, 75)], ids=["FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"]
)
def test_leader_serves_requests_of_its_own_epoch_only(epoch: int, error: int) -> None:
    """A Fetch of an earlier epoch is fenced, one of a later epoch gets UNKNOWN_LEADER_EPOCH."""
    response, _ = say(leader(), fetch(epoch=epoch))
    assert part(response).error_code == error
    assert part(response).current_leader.leader_epoch == 2


def test_follower_names_the_leader_in_its_error() -> None:
    """A Fetch to a node that does not lead gets NOT_LEADER_OR_FOLLOWER, the leader and its
    address."""
    response, _ = say(follower(of=2), fetch(3))
    assert part(response).error_code == 6
    current_leader = part(response).current_leader
    assert (current_leader.leader_id, current_leader.leader_epoch) == (2, 2)
    assert [(n.node_id, n.host, n.port) for n in response.node_endpoints] == [(2, "node-2", 9093)]


def test_requester_gets_the_leaders_address_on_its_own_listener() -> None:
    """While the controllers change to another listener, nodes of both kinds find the leader."""
    both = (VoterEndpoint("CONTROLLER", "node-2", 9093), VoterEndpoint("SECURED", "node-2", 9095))
    voters = [each._replace(endpoints=both) for each in voters_of(1, 2)]
    raft = follower(of=2, voters=VoterSet.of(voters))
    for listener, expected in (("SECURED", [("node-2", 9095)]), ("ABSENT", [])):
        response, _ = say(raft, fetch(3))
        messages.name_leader_on(listener, raft.state, response)
        assert [(n.host, n.port) for n in response.node_endpoints] == expected


def test_leader_steps_down_on_a_later_epoch() -> None:
    """Raft 5.1: a leader that learns of a later term steps down."""
    raft = leader()
    say(raft, vote(3, 5, last=(2, 6)))
    assert not isinstance(raft.state.role, Leader)
    assert raft.state.epoch == 5


ALL = {
    "Vote": lambda: vote(2, 3),
    "BeginQuorumEpoch": lambda: begin(3),
    "EndQuorumEpoch": lambda: end(3),
    "Fetch": lambda: fetch(),
    "FetchSnapshot": lambda: messages.snapshot_request(
        follower(3, of=1).state, SnapshotId(5, 1), 0
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_request_of_another_cluster_is_refused(name: str) -> None:
    """INCONSISTENT_CLUSTER_ID for the whole request, and nothing changes."""
    raft = leader()
    before = raft.state.election
    response, _ = say(raft, with_cluster_id(ALL[name](), "another"))
    assert response.error_code == 104
    assert raft.state.election == before


@pytest.mark.parametrize("name", ALL)
def test_request_without_cluster_id_is_accepted(name: str) -> None:
    """The cluster id is compared only if it was sent."""
    response, _ = say(leader(), with_cluster_id(ALL[name](), None))
    assert response is None or response.error_code == 0


@pytest.mark.parametrize("other", ["two partitions", "partition 1", "another topic"])
@pytest.mark.parametrize("name", ALL)
def test_only_the_metadata_partition_is_served(name: str, other: str) -> None:
    """INVALID_REQUEST for anything but partition 0 of __cluster_metadata."""
    request = ALL[name]()
    (topic,) = request.topics
    (partition,) = topic.partitions
    if other == "two partitions":
        topic.partitions.append(partition)
    elif other == "partition 1":
        field = "partition" if hasattr(partition, "partition") else "partition_index"
        setattr(partition, field, 1)
    else:
        field = next(name for name in ("topic", "topic_name", "name") if hasattr(topic, name))
        setattr(topic, field, "another")
        if field == "topic":
            topic.topic_id = b"another topic 16"
    response, _ = say(leader(), request)
    assert response.error_code == 42


# Electing -----------------------------------------------------------------------------------
def test_no_vote_is_granted_in_an_epoch_with_a_leader() -> None:
    """A node that knows the leader of an epoch grants no vote in it."""
    raft = follower()
    response, _ = say(raft, vote(3, 2, last=(1, 5)))
    assert (part(response).error_code, part(response).vote_granted) == (0, False)


def test_voter_that_lacks_the_record_of_its_addition_grants_votes() -> None:
    """KIP-853: a node behind in its log may be a voter already; the candidate's log says so."""
    raft = node(9)
    response, _ = say(raft, vote(2, 1, to=9))
    assert part(response).vote_granted


def test_the_first_record_of_an_epoch_is_leader_change() -> None:
    """It names the leader, all voters and those that granted; its commit commits older records."""
    raft = node(log=of_epoch_1(), saved=ElectionState(1))
    become_prospective(raft.state)
    become_candidate(raft.state)
    become_leader(raft.state, frozenset((1, 3)))
    written = next(e for e in raft.step(None, 0.1, 0) if isinstance(e, AppendLog))
    assert written.base_offset == 5
    ((_, record),) = control_records(written.records, 0, parse(written.records))
    assert isinstance(record, LeaderChangeMessage)
    assert record.leader_id == 1
    assert [v.voter_id for v in record.voters] == [1, 2, 3]
    assert [v.voter_id for v in record.granting_voters] == [1, 3]


def test_begin_quorum_epoch_is_repeated_until_each_voter_fetches() -> None:
    """BeginQuorumEpoch goes to all other voters, and again to those that do not fetch."""
    raft = node(log=of_epoch_1(), saved=ElectionState(1))
    become_prospective(raft.state)
    become_candidate(raft.state)
    become_leader(raft.state, frozenset((1, 2)))
    requests = sends(raft.step(None, 0.0, 0), BeginQuorumEpochRequest)
    assert [s.node.id for s in requests] == [2, 3]
    for send in requests:
        response = messages.begin_response(node(send.node.id, saved=ElectionState(2, 1)).state)
        raft.step(Answered(send.call_id, response), 0.01, 0)
    say(raft, fetch(2), 0.5)
    again: list[int] = []
    while raft.state.now < 1.4:
        again += [
            s.node.id
            for s in sends(raft.step(None, max(raft.deadline, 0.5), 0), BeginQuorumEpochRequest)
        ]
    assert set(again) == {3}


def test_stopping_leader_prefers_the_voter_with_the_longest_log() -> None:
    """EndQuorumEpoch names the other voters, furthest log first."""
    raft = leader()
    say(raft, fetch(2, offset=5), 0.2)
    say(raft, fetch(3, offset=6, last_epoch=2), 0.3)
    requests = sends(raft.step(Shutdown(), 0.4, 0), EndQuorumEpochRequest)
    assert {s.node.id for s in requests} == {2, 3}
    partition = part(requests[0].request)
    assert [c.candidate_id for c in partition.preferred_candidates] == [3, 2]


def test_preferred_candidate_starts_its_election_first() -> None:
    """After EndQuorumEpoch the first preferred candidate does not wait; each other waits longer."""
    waits = {}
    for number in (1, 2, 4):
        raft = follower(number, of=3, voters=voters_of(1, 2, 3, 4))
        response, effects = say(raft, end(2, 1, 2, 4, of=3))
        assert part(response).error_code == 0
        is_electing = any(isinstance(s.request, VoteRequest) for s in sends(effects))
        waits[number] = 0.0 if is_electing else raft.state.role.deadline - 0.2  # type: ignore[union-attr]
    assert waits[1] == 0.0
    assert 0.0 < waits[2] < waits[4] < 1.0


def test_a_candidate_that_lost_waits_at_most_the_back_off() -> None:
    """A lost election is followed by a random wait of up to election.backoff.max, not by another
    one at once."""
    raft = node()
    become_prospective(raft.state)
    become_candidate(raft.state)
    raft.step(None, 0.1, 0)
    for voter in (2, 3):
        refused = messages.vote_response(node(voter, saved=ElectionState(1)).state)
        effects = answer(raft, VoteRequest, voter, refused, 0.2)
    assert not sends(effects, VoteRequest)
    role = raft.state.role
    assert isinstance(role, Candidate)
    assert 0.2 < role.deadline <= 0.2 + raft.state.config.election_backoff_max_s


def test_an_observer_finds_the_leader_through_any_voter() -> None:
    """It fetches from voters in no order, and follows the leader that the answer names."""
    raft = node(9)
    (call,) = raft.state.calls.open.values()
    assert isinstance(call.request, FetchRequest)
    other = node(call.node.id, saved=ElectionState(4, 2)).state
    raft.step(Answered(call.id, messages.fetch_response(other, error=6)), 0.1, 0)
    assert isinstance(raft.state.role, Follower)
    assert (raft.state.role.leader.id, raft.state.epoch) == (2, 4)
    assert raft.deadline > 0.1


# Replicating --------------------------------------------------------------------------------
def test_next_fetch_follows_the_append_of_the_last_response() -> None:
    """The next Fetch comes behind the append in the same turn, so that the sync lies between."""
    raft = follower()
    effects = [*answer_fetch(raft, SOUND, 0.1)]
    append_index = next(n for n, e in enumerate(effects) if isinstance(e, AppendLog))
    fetch_index = next(n for n, e in enumerate(effects) if isinstance(e, Send))
    assert append_index < fetch_index


@pytest.mark.parametrize(("leader_watermark", "own_watermark"), [(3, 3), (7, 7), (99, 7)])
def test_followers_high_watermark_is_bounded_by_its_log_end(
    leader_watermark: int, own_watermark: int
) -> None:
    """Its own is the smaller of the leader's and its log's end, and never falls."""
    raft = follower()
    response = messages.fetch_response(leader_state(raft), records=LogSlice(5, 9, 1000))
    response.responses[0].partitions[0].records = SOUND
    response.responses[0].partitions[0].high_watermark = leader_watermark
    raft.step(Answered(fetch_under_way(raft), response), 0.1, 0)
    assert raft.state.high_watermark == own_watermark


def test_fetch_without_new_records_waits_for_an_append_or_max_wait() -> None:
    """The leader answers when something was appended, at the latest after max.wait.ms."""
    raft = leader()
    response, _ = say(raft, fetch(2, offset=6, last_epoch=2), 0.2)  # commits the epoch's record
    assert part(response).high_watermark == 6
    request = fetch(2, offset=6, last_epoch=2)
    request.topics[0].partitions[0].high_watermark = 6
    response, _ = say(raft, request, 0.3)
    assert response is None
    effects = raft.step(Append("append", 2, (b"value",)), 0.4, 0)
    assert [e for e in effects if isinstance(e, Reply)]
    request.topics[0].partitions[0].fetch_offset = raft.state.log.end_offset
    response, _ = say(raft, request, 0.5)
    if response is not None:  # it has committed what was appended, which ends the wait
        request.topics[0].partitions[0].high_watermark = part(response).high_watermark
        response, _ = say(raft, request, 0.5)
    assert response is None
    assert not [e for e in raft.step(None, 0.99, 0) if isinstance(e, Reply)]
    assert [e for e in raft.step(None, 1.01, 0) if isinstance(e, Reply)]


def test_held_fetches_are_answered_when_the_leader_resigns() -> None:
    """Fetches that are held are answered with NOT_LEADER_OR_FOLLOWER when it resigns."""
    raft = leader()
    request = fetch(2, offset=6, last_epoch=2)
    request.topics[0].partitions[0].high_watermark = 6
    say(raft, request)
    say(raft, request)
    effects = raft.step(Resign(2), 0.3, 0)
    codes = [part(e.response).error_code for e in effects if isinstance(e, Reply)]
    assert set(codes) == {6}


def test_only_the_leader_describes_the_quorum() -> None:
    """DescribeQuorum to another node gets NOT_LEADER_OR_FOLLOWER."""
    topic = DescribeQuorumRequest.TopicData
    request = DescribeQuorumRequest(
        topics=[
            topic(
                topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)]
            )
        ]
    )
    assert part(say(follower(), request)[0]).error_code == 6
    assert part(say(leader(), request)[0]).error_code == 0


def test_stopping_node_never_becomes_a_candidate_but_grants_votes() -> None:
    """After EndQuorumEpoch a resigned leader takes part in elections only by its vote."""
    raft = leader()
    raft.step(Shutdown(), 0.3, 0)
    assert isinstance(raft.state.role, Resigned)
    for _ in range(20):
        raft.step(None, min(raft.deadline, 100.0), 0)
    assert not isinstance(raft.state.role, Candidate | Leader)
    response, _ = say(raft, vote(2, 9, last=(2, 6)), 200.0)
    assert part(response).vote_granted
