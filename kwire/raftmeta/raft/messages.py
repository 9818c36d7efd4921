"""Builders and readers of the messages between raft nodes.

All are about one partition, ``__cluster_metadata-0``; anything else in a request is refused
by :func:`partition_of` returning None.
"""

from typing import Any, Final

from kwire import errors
from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft.events import LogSlice, SnapshotSlice
from kwire.raftmeta.raft.leader_view import own_high_watermark
from kwire.raftmeta.raft.log_state import Diverging, NeedsSnapshot, Place, SnapshotId
from kwire.raftmeta.raft.quorum_state import NO_NODE
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.voters import Node, ReplicaKey
from kwire.types import METADATA_TOPIC, METADATA_TOPIC_ID, ZERO_UUID

NONE: Final = errors.NONE


def partition_of(request: Any) -> Any | None:
    """Return the one partition of a request; None if the request is about anything else."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic = request.topics[0]
    if getattr(topic, "topic_id", ZERO_UUID) == METADATA_TOPIC_ID:
        named = True
    else:
        name = getattr(topic, "topic_name", None) or getattr(topic, "name", None)
        named = (name or getattr(topic, "topic", "")) == METADATA_TOPIC
    partition = topic.partitions[0]
    index = getattr(partition, "partition_index", getattr(partition, "partition", 0))
    index = getattr(partition, "index", index)
    return partition if named and index == 0 else None


def answer_of(response: Any) -> Any | None:
    """Return an answer's data of the one partition; None if it has none."""
    topics = getattr(response, "topics", None) or getattr(response, "responses", None)
    return topics[0].partitions[0] if topics and topics[0].partitions else None


def leader_field(state: RaftState) -> int:
    return NO_NODE if state.leader_id is None else state.leader_id


def _topics(kind: Any, **part: object) -> list[Any]:
    """Return the topics of an election's message: one, with one partition."""
    topic = kind.TopicData
    partition = topic.PartitionData(partition_index=0, **part)
    return [topic(topic_name=METADATA_TOPIC, partitions=[partition])]


def _answer(kind: Any, state: RaftState, error: int, **part: object) -> Any:
    """Return an answer in an election: each one names the epoch and the leader."""
    leader_id, leader_epoch = leader_field(state), state.epoch
    topics = _topics(kind, error_code=error, leader_id=leader_id, leader_epoch=leader_epoch, **part)
    return kind(topics=topics, node_endpoints=_nodes(state, kind.NodeEndpoint))


def _listeners(kind: Any, state: RaftState) -> list[Any]:
    return [kind(name=e.name, host=e.host, port=e.port) for e in state.config.endpoints]


# Vote ---------------------------------------------------------------------------------------
def vote_request(state: RaftState, voter: ReplicaKey, *, pre_vote: bool) -> VoteRequest:
    last_epoch, end_offset = state.log.end
    return VoteRequest(
        cluster_id=state.config.cluster_id,
        voter_id=voter.id,
        topics=_topics(
            VoteRequest,
            replica_epoch=state.epoch,
            replica_id=state.config.node_id,
            replica_directory_id=state.config.directory_id,
            voter_directory_id=voter.directory_id,
            last_offset_epoch=last_epoch,
            last_offset=end_offset,
            pre_vote=pre_vote,
        ),
    )


def vote_response(state: RaftState, *, granted: bool = False, error: int = NONE) -> VoteResponse:
    response: VoteResponse = _answer(VoteResponse, state, error, vote_granted=granted)
    return response


# BeginQuorumEpoch, EndQuorumEpoch -----------------------------------------------------------
def begin_request(state: RaftState, voter: ReplicaKey) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        cluster_id=state.config.cluster_id,
        voter_id=voter.id,
        topics=_topics(
            BeginQuorumEpochRequest,
            voter_directory_id=voter.directory_id,
            leader_id=state.config.node_id,
            leader_epoch=state.epoch,
        ),
        leader_endpoints=_listeners(BeginQuorumEpochRequest.LeaderEndpoint, state),
    )


def begin_response(state: RaftState, error: int = NONE) -> BeginQuorumEpochResponse:
    response: BeginQuorumEpochResponse = _answer(BeginQuorumEpochResponse, state, error)
    return response


def end_request(state: RaftState, preferred: tuple[ReplicaKey, ...]) -> EndQuorumEpochRequest:
    """Build EndQuorumEpoch without the leader's endpoints, as Kafka does: they are not needed."""
    candidate = EndQuorumEpochRequest.TopicData.PartitionData.ReplicaInfo
    return EndQuorumEpochRequest(
        cluster_id=state.config.cluster_id,
        topics=_topics(
            EndQuorumEpochRequest,
            leader_id=state.config.node_id,
            leader_epoch=state.epoch,
            preferred_candidates=[
                candidate(candidate_id=k.id, candidate_directory_id=k.directory_id)
                for k in preferred
            ],
        ),
    )


def end_response(state: RaftState, error: int = NONE) -> EndQuorumEpochResponse:
    response: EndQuorumEpochResponse = _answer(EndQuorumEpochResponse, state, error)
    return response


# Fetch --------------------------------------------------------------------------------------
def fetch_request(state: RaftState) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    high_watermark = state.high_watermark
    part = topic.FetchPartition(
        partition=0,
        current_leader_epoch=state.epoch,
        fetch_offset=state.log.end_offset,
        last_fetched_epoch=state.log.last_epoch,
        partition_max_bytes=0,
        replica_directory_id=state.config.directory_id,
        high_watermark=-1 if high_watermark is None else high_watermark,
    )
    return FetchRequest(
        cluster_id=state.config.cluster_id,
        replica_state=FetchRequest.ReplicaState(replica_id=state.config.node_id),
        max_wait_ms=int(state.config.fetch_wait_s * 1000),
        min_bytes=0,
        max_bytes=state.config.fetch_max_bytes,
        topics=[topic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[part])],
    )


def fetch_response(
    state: RaftState,
    *,
    error: int = NONE,
    place: Place | None = None,
    records: LogSlice | bytes = b"",
) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse
    high_watermark = own_high_watermark(state) if error == NONE else None
    part = topic.PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=-1 if high_watermark is None else high_watermark,
        log_start_offset=state.log.start_offset,
        current_leader=topic.PartitionData.LeaderIdAndEpoch(
            leader_id=leader_field(state), leader_epoch=state.epoch
        ),
        records=records,
    )
    if isinstance(place, Diverging):
        part.diverging_epoch = topic.PartitionData.EpochEndOffset(
            epoch=place.end.epoch, end_offset=place.end.end_offset
        )
    elif isinstance(place, NeedsSnapshot):
        part.snapshot_id = topic.PartitionData.SnapshotId(
            end_offset=place.id.end_offset, epoch=place.id.epoch
        )
    return FetchResponse(
        responses=[topic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[part])],
        node_endpoints=_nodes(state, FetchResponse.NodeEndpoint),
    )


# FetchSnapshot ------------------------------------------------------------------------------
def snapshot_request(state: RaftState, snapshot: SnapshotId, position: int) -> FetchSnapshotRequest:
    topic = FetchSnapshotRequest.TopicSnapshot
    kind = topic.PartitionSnapshot
    part = kind(
        partition=0,
        current_leader_epoch=state.epoch,
        snapshot_id=kind.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=state.config.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=state.config.cluster_id,
        replica_id=state.config.node_id,
        max_bytes=state.config.snapshot_max_bytes,
        topics=[topic(name=METADATA_TOPIC, partitions=[part])],
    )


def snapshot_response(
    state: RaftState,
    snapshot: SnapshotId,
    *,
    error: int = NONE,
    position: int = 0,
    piece: SnapshotSlice | bytes = b"",
) -> FetchSnapshotResponse:
    topic = FetchSnapshotResponse.TopicSnapshot
    kind = topic.PartitionSnapshot
    part = kind(
        index=0,
        error_code=error,
        snapshot_id=kind.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        current_leader=kind.LeaderIdAndEpoch(
            leader_id=leader_field(state), leader_epoch=state.epoch
        ),
        size=0,
        position=position,
        unaligned_records=piece,
    )
    return FetchSnapshotResponse(
        topics=[topic(name=METADATA_TOPIC, partitions=[part])],
        node_endpoints=_nodes(state, FetchSnapshotResponse.NodeEndpoint),
    )


# UpdateRaftVoter ----------------------------------------------------------------------------
def update_request(state: RaftState) -> UpdateRaftVoterRequest:
    return UpdateRaftVoterRequest(
        cluster_id=state.config.cluster_id,
        current_leader_epoch=state.epoch,
        voter_id=state.config.node_id,
        voter_directory_id=state.config.directory_id,
        listeners=_listeners(UpdateRaftVoterRequest.Listener, state),
        k_raft_version_feature=UpdateRaftVoterRequest.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=state.config.max_kraft_version
        ),
    )


def _nodes(state: RaftState, kind: Any) -> list[Any]:
    """Return the leader's address in the form of answers."""
    node = state.leader_node()
    if node is None or state.leader_id is None:
        return []
    return [kind(node_id=state.leader_id, host=node.host, port=node.port)]


def leader_in(response: Any) -> Node | None:
    """Return the leader's address in an answer."""
    leaders = [Node(n.node_id, n.host, n.port) for n in response.node_endpoints]
    return leaders[0] if leaders else None
