"""Requests field by field as Apache Kafka 4.3.1's nodes sent them to each other."""

import json
from typing import Any

import pytest

from kwire.codec.compile import decode, encode
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.log_state import EpochStart, LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.state import RaftConfig, RaftState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterEndpoint, VoterHistory
from kwire.types import uuid_bytes
from simulation.raft.quorums import voters_of
from simulation.raft.script import Fixed
from tests.support.codec.message_json import to_json

DIRECTORIES = {
    1: "XTh__-cQVvkKM_F_UfVm0Q",
    2: "9_jP4vSWKiOycvK_qde50w",
    3: "vuTK6GkxXfceadFLWzpfKg",
}


def state_of(node_id: int, *, epoch: int, log: LogState | None = None) -> RaftState:
    """A node of the recorded cluster: static voters, kraft.version 0."""
    config = RaftConfig(
        node_id=node_id,
        directory_id=uuid_bytes(DIRECTORIES[node_id]),
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
        endpoints=(VoterEndpoint("CONTROLLER", "127.0.0.1", 20820 + node_id),),
        snapshot_max_bytes=400,
    )
    history = VoterHistory([(-1, voters_of(1, 2, 3))])
    recovered = Recovered(ElectionState(epoch), log or LogState(), history)
    return Raft(config, recovered, Fixed(0.5)).state


LATE = LogState(0, 260, [EpochStart(2, 0)])
SENT: list[tuple[Any, int, str]] = [
    (
        messages.fetch_request(state_of(1, epoch=0)),
        18,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg",
        "replicaState": {"replicaId": 1, "replicaEpoch": -1}, "maxWaitMs": 500, "minBytes": 0,
        "maxBytes": 1048576, "isolationLevel": 0, "sessionId": 0, "sessionEpoch": -1,
        "topics": [{"topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [{"partition": 0,
        "currentLeaderEpoch": 0, "fetchOffset": 0, "lastFetchedEpoch": 0, "logStartOffset": -1,
        "partitionMaxBytes": 0, "replicaDirectoryId": "XTh__-cQVvkKM_F_UfVm0Q",
        "highWatermark": -1}]}], "forgottenTopicsData": [], "rackId": ""}""",
    ),
    (
        messages.vote_request(state_of(2, epoch=0), ReplicaKey(3), pre_vote=True),
        2,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg", "voterId": 3,
        "topics": [{"topicName": "__cluster_metadata", "partitions": [{"partitionIndex": 0,
        "replicaEpoch": 0, "replicaId": 2, "replicaDirectoryId": "9_jP4vSWKiOycvK_qde50w",
        "voterDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA", "lastOffsetEpoch": 0, "lastOffset": 0,
        "preVote": true}]}]}""",
    ),
    (
        messages.vote_request(state_of(1, epoch=3, log=LATE), ReplicaKey(3), pre_vote=True),
        2,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg", "voterId": 3,
        "topics": [{"topicName": "__cluster_metadata", "partitions": [{"partitionIndex": 0,
        "replicaEpoch": 3, "replicaId": 1, "replicaDirectoryId": "XTh__-cQVvkKM_F_UfVm0Q",
        "voterDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA", "lastOffsetEpoch": 2, "lastOffset": 260,
        "preVote": true}]}]}""",
    ),
    (
        messages.begin_request(state_of(2, epoch=1), ReplicaKey(3)),
        1,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg", "voterId": 3,
        "topics": [{"topicName": "__cluster_metadata", "partitions": [{"partitionIndex": 0,
        "voterDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA", "leaderId": 2, "leaderEpoch": 1}]}],
        "leaderEndpoints": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 20822}]}""",
    ),
    (
        messages.end_request(state_of(2, epoch=3), (ReplicaKey(1), ReplicaKey(3))),
        1,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg",
        "topics": [{"topicName": "__cluster_metadata", "partitions": [{"partitionIndex": 0,
        "leaderId": 2, "leaderEpoch": 3, "preferredCandidates": [
        {"candidateId": 1, "candidateDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA"},
        {"candidateId": 3, "candidateDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA"}]}]}],
        "leaderEndpoints": []}""",
    ),
    (
        messages.snapshot_request(state_of(1, epoch=3), SnapshotId(44, 3), 800),
        1,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg", "replicaId": 1, "maxBytes": 400,
        "topics": [{"name": "__cluster_metadata", "partitions": [{"partition": 0,
        "currentLeaderEpoch": 3, "snapshotId": {"endOffset": 44, "epoch": 3}, "position": 800,
        "replicaDirectoryId": "XTh__-cQVvkKM_F_UfVm0Q"}]}]}""",
    ),
    (
        messages.update_request(state_of(3, epoch=1)),
        0,
        """{"clusterId": "MkU3OEVBNTcwNTJENDM2Qg", "currentLeaderEpoch": 1, "voterId": 3,
        "voterDirectoryId": "vuTK6GkxXfceadFLWzpfKg",
        "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 20823}],
        "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1}}""",
    ),
    (
        messages.vote_response(state_of(1, epoch=0), granted=True),
        2,
        """{"errorCode": 0, "topics": [{"topicName": "__cluster_metadata",
        "partitions": [{"partitionIndex": 0, "errorCode": 0, "leaderId": -1, "leaderEpoch": 0,
        "voteGranted": true}]}]}""",
    ),
    (
        messages.fetch_response(state_of(1, epoch=0), error=6),
        18,
        """{"throttleTimeMs": 0, "errorCode": 0, "sessionId": 0,
        "responses": [{"topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [{"partitionIndex": 0,
        "errorCode": 6, "highWatermark": -1, "lastStableOffset": -1, "logStartOffset": 0,
        "currentLeader": {"leaderId": -1, "leaderEpoch": 0}, "abortedTransactions": [],
        "preferredReadReplica": -1, "records": ""}]}]}""",
    ),
]


@pytest.mark.parametrize(
    ("message", "version", "text"), SENT, ids=[type(m).__name__ for m, _, _ in SENT]
)
def test_message_fields_match_the_recording(message: Any, version: int, text: str) -> None:
    assert to_json(message, version) == json.loads(text)
    wire = encode(message, version)
    assert encode(decode(type(message), wire, version), version) == wire
