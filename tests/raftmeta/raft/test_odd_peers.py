"""Responses and requests that no sound node would send: refused or ignored, and no node fails."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages.begin_quorum_epoch import BeginQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.control_records import control_batch, leader_change
from kwire.raftmeta.raft.events import Answered, Received
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Follower, Leader, Prospective
from kwire.raftmeta.raft.voters import Node, to_record
from kwire.records.build import New, batch
from kwire.records.crc import crc32c
from simulation.raft.quorums import voters_of
from tests.support.raftmeta.one_node import (
    answer,
    dynamic,
    fetch,
    follower,
    leader,
    node,
    of_epoch_1,
    part,
    say,
    vote,
)


def answer_with_records(raft: Raft, data: bytes) -> None:
    """Let the leader, node 2, answer the Fetch that is under way with this."""
    response = messages.fetch_response(raft.state, records=data)
    answer(raft, FetchRequest, 2, response, 0.2)


@pytest.mark.parametrize("topics", [True, False])
def test_response_without_partitions_is_ignored(topics: bool) -> None:
    raft = follower()
    response = messages.fetch_response(raft.state)
    response.responses = [FetchResponse.FetchableTopicResponse(partitions=[])] if topics else []
    answer(raft, FetchRequest, 2, response, 0.2)
    assert isinstance(raft.state.role, Follower)


@pytest.mark.parametrize("kind", [VoteResponse, BeginQuorumEpochResponse])
def test_response_with_a_topic_without_partitions_is_ignored(kind: Any) -> None:
    raft = follower()
    call = raft.state.send(Node(3, "node-3", 9093), vote(1, 2, to=3))
    assert call is not None
    raft.step(Answered(call, kind(topics=[kind.TopicData(topic_name="", partitions=[])])), 0.2, 0)
    assert isinstance(raft.state.role, Follower)


def test_vote_response_without_partitions_is_ignored() -> None:
    raft = node()
    raft.step(None, raft.deadline, 0)
    assert isinstance(raft.state.role, Prospective)
    response = VoteResponse(topics=[VoteResponse.TopicData(topic_name="", partitions=[])])
    answer(raft, VoteRequest, 2, response, raft.state.now)
    assert isinstance(raft.state.role, Prospective)


@pytest.mark.parametrize("ends", [False, True])
def test_second_leader_of_an_epoch_is_refused(ends: bool) -> None:
    """A follower keeps the first leader that it learns of; the second one's request is refused."""
    raft = follower()
    other = leader()
    other.state.config = node(3).state.config
    request: Any = messages.begin_request(other.state, raft.state.voters.key_of(1))
    if ends:
        request = messages.end_request(other.state, ())
    response, _ = say(raft, request)
    assert part(response).error_code == errors.InvalidRequest.code
    assert (part(response).leader_id, part(response).leader_epoch) == (2, 2)
    role = raft.state.role
    assert isinstance(role, Follower)
    assert role.leader.id == 2
    assert not role.has_leader_ended


def test_second_leader_of_an_epoch_is_refused_while_the_first_has_no_address() -> None:
    raft = follower(of=4)  # no voter: its address is not known yet
    other = leader()
    other.state.config = node(3).state.config
    response, _ = say(raft, messages.begin_request(other.state, raft.state.voters.key_of(1)))
    assert part(response).error_code == errors.InvalidRequest.code
    refused = messages.fetch_response(other.state, error=errors.NotLeaderOrFollower.code)
    node_id = next(iter(raft.state.calls.open.values())).node.id
    answer(raft, FetchRequest, node_id, refused, 0.3)
    assert raft.state.leader_id == 4


def with_crc(data: bytes) -> bytes:
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def test_batch_with_a_negative_offset_delta_is_refused() -> None:
    raft = follower()
    data = batch([New(None, b"x")], timestamp_ms=0, base_offset=5, leader_epoch=2)
    answer_with_records(
        raft, with_crc(data[:23] + (-3).to_bytes(4, "big", signed=True) + data[27:])
    )
    assert raft.state.log.end_offset == 5


def test_damaged_control_records_are_refused() -> None:
    raft = follower()
    good = control_batch(
        [leader_change(2, voters_of(1, 2, 3), frozenset((2,)))],
        base_offset=5, epoch=2, timestamp_ms=0,
    )  # fmt: skip
    answer_with_records(raft, with_crc(good[:61] + b"\xff" * (len(good) - 61)))
    assert raft.state.log.end_offset == 5
    response = messages.fetch_response(raft.state, records=good)
    raft.step(None, 1.0, 0)
    answer(raft, FetchRequest, 2, response, 1.1)
    assert raft.state.log.end_offset == 6


def test_replicas_that_fetched_once_are_removed() -> None:
    """Brokers come and go with new directory ids; a leader may lead for a year."""
    raft = leader(voters=dynamic(1, 2, 3), kraft_version=1)
    voter = fetch(2, wait_ms=0)
    for number in range(1000):
        request = fetch(4, offset=0, last_epoch=0, wait_ms=0)
        partition_of(request).replica_directory_id = number.to_bytes(16, "big")
        for fetch_request in (request, voter):
            raft.step(Received("token", fetch_request), 0.2 + number, number * 1000)
    role = raft.state.role
    assert isinstance(role, Leader)
    assert len(role.replicas) < 400


def test_new_directory_of_a_voter_does_not_inherit_its_progress() -> None:
    """Under kraft.version 0 the disks of a voter are distinguished by nothing but their Fetches."""
    raft = leader(voters=voters_of(1, 2, 3, 4, 5))
    raft.step(Received("token", fetch(2, offset=6, last_epoch=2)), 0.2, 0)
    wiped = fetch(2, offset=0, last_epoch=0)
    partition_of(wiped).replica_directory_id = b"another disk 16b"
    raft.step(Received("token", wiped), 0.3, 0)
    raft.step(Received("token", fetch(3, offset=6, last_epoch=2)), 0.4, 0)
    assert raft.state.high_watermark is None
    raft.step(Received("token", fetch(4, offset=6, last_epoch=2)), 0.5, 0)
    assert raft.state.high_watermark == 6


def partition_of(request: Any) -> Any:
    return request.topics[0].partitions[0]


def test_node_added_by_the_last_record_becomes_a_candidate() -> None:
    """The leader dies right after it wrote the new set: only the new voter has the whole log."""
    raft = node(4, voters=dynamic(1, 2, 3), log=of_epoch_1(), saved=ElectionState(2, 2),
                kraft_version=1)  # fmt: skip
    added = control_batch([to_record(dynamic(1, 2, 3, 4))], base_offset=5, epoch=2, timestamp_ms=0)
    response = messages.fetch_response(raft.state, records=added)
    answer(raft, FetchRequest, 2, response, 0.2)
    assert raft.state.is_voter
    while not isinstance(raft.state.role, Prospective):
        assert raft.deadline < 10
        raft.step(None, raft.deadline, 0)


def requests_of_epoch(epoch: int) -> list[Any]:
    sender = node(2, saved=ElectionState(1, 2)).state
    sender.election = ElectionState(epoch, 2)
    key = sender.voters.key_of(1)
    return [
        vote(2, epoch),
        vote(2, epoch, pre=True),
        messages.begin_request(sender, key),
        messages.end_request(sender, ()),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_request_of_the_largest_epoch_is_refused(kind: int) -> None:
    """No epoch could follow it, so no node could ever be elected again."""
    raft = follower()
    response, _ = say(raft, requests_of_epoch(2**31 - 1)[kind])
    assert part(response).error_code == errors.InvalidRequest.code
    assert raft.state.epoch == 2
    response, _ = say(raft, requests_of_epoch(7)[kind])
    assert part(response).error_code == 0
    assert raft.state.epoch == 7


def test_response_of_the_largest_epoch_is_ignored() -> None:
    raft, other = follower(), follower(2, of=3)
    other.state.election = ElectionState(2**31 - 1, 3)
    response = messages.fetch_response(other.state, error=errors.FencedLeaderEpoch.code)
    answer(raft, FetchRequest, 2, response, 0.2)
    assert raft.state.epoch == 2
