"""Builders and readers of the messages between raft nodes.

All messages concern one partition, ``__cluster_metadata-0``; :func:`partition_of` returns None for
a request about anything else, which is then rejected.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, overload

from kwire import errors
from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft.events import LogSlice, SnapshotSlice
from kwire.raftmeta.raft.leader_view import own_high_watermark
from kwire.raftmeta.raft.log_state import Diverging, NeedsSnapshot, OffsetValidation, SnapshotId
from kwire.raftmeta.raft.quorum_state import NO_NODE
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.voters import Node, ReplicaKey
from kwire.types import METADATA_TOPIC, METADATA_TOPIC_ID

if TYPE_CHECKING:  # An alias for type checking only.
    from kwire.raftmeta.raft.events import RaftResponse

NONE: Final = errors.NONE

PartitionResponse: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
)
"""The answers that name partitions, each with the leader's address."""

_FIELDS: Final[Mapping[type, tuple[str, str]]] = {
    VoteRequest: ("topic_name", "partition_index"),
    BeginQuorumEpochRequest: ("topic_name", "partition_index"),
    EndQuorumEpochRequest: ("topic_name", "partition_index"),
    DescribeQuorumRequest: ("topic_name", "partition_index"),
    FetchRequest: ("topic", "partition"),
    FetchSnapshotRequest: ("name", "partition"),
}
"""The fields with the topic's name and the partition's index in each request."""

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
_Listener = TypeVar(
    "_Listener", BeginQuorumEpochRequest.LeaderEndpoint, UpdateRaftVoterRequest.Listener
)
_NodeEndpoint = TypeVar(
    "_NodeEndpoint",
    VoteResponse.NodeEndpoint,
    BeginQuorumEpochResponse.NodeEndpoint,
    EndQuorumEpochResponse.NodeEndpoint,
    FetchResponse.NodeEndpoint,
    FetchSnapshotResponse.NodeEndpoint,
)


class _Address(Protocol):
    """The address of a node in a response."""

    node_id: int
    host: str
    port: int


class _Topic(Protocol[P_co]):
    @property
    def partitions(self) -> Sequence[P_co]: ...


class _WithTopics(Protocol[P_co]):
    """A request or response about partitions; the names of the topics' fields differ."""

    @property
    def topics(self) -> Sequence[_Topic[P_co]]: ...


def partition_of(request: _WithTopics[P]) -> P | None:
    """Return a request's only partition; None if the request is about anything else."""
    name_field, index_field = _FIELDS[type(request)]
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic = request.topics[0]
    partition = topic.partitions[0]
    is_named = getattr(topic, name_field) == METADATA_TOPIC or (
        isinstance(topic, FetchRequest.FetchTopic) and topic.topic_id == METADATA_TOPIC_ID
    )
    return partition if is_named and getattr(partition, index_field) == 0 else None


@overload
def answer_of(response: _WithTopics[P]) -> P | None: ...
@overload
def answer_of(
    response: FetchResponse,
) -> FetchResponse.FetchableTopicResponse.PartitionData | None: ...
def answer_of(response: _WithTopics[P] | FetchResponse) -> object | None:
    """Return an answer's data about the metadata partition; None if it has none."""
    topics: Sequence[_Topic[object]]
    topics = response.responses if isinstance(response, FetchResponse) else response.topics
    return topics[0].partitions[0] if topics and topics[0].partitions else None


def leader_field(state: RaftState) -> int:
    return NO_NODE if state.leader_id is None else state.leader_id


def _listeners(kind: type[_Listener], state: RaftState) -> list[_Listener]:
    return [kind(name=e.name, host=e.host, port=e.port) for e in state.config.endpoints]


# Vote ---------------------------------------------------------------------------------------
def vote_request(state: RaftState, voter: ReplicaKey, *, pre_vote: bool) -> VoteRequest:
    topic = VoteRequest.TopicData
    last_epoch, end_offset = state.log.end
    part = topic.PartitionData(
        partition_index=0,
        replica_epoch=state.epoch,
        replica_id=state.config.node_id,
        replica_directory_id=state.config.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=last_epoch,
        last_offset=end_offset,
        pre_vote=pre_vote,
    )
    return VoteRequest(
        cluster_id=state.config.cluster_id,
        voter_id=voter.id,
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])],
    )


def vote_response(state: RaftState, *, granted: bool = False, error: int = NONE) -> VoteResponse:
    topic = VoteResponse.TopicData
    part = topic.PartitionData(
        partition_index=0,
        error_code=error,
        leader_id=leader_field(state),
        leader_epoch=state.epoch,
        vote_granted=granted,
    )
    return VoteResponse(
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])],
        node_endpoints=_nodes(state, VoteResponse.NodeEndpoint),
    )


# BeginQuorumEpoch, EndQuorumEpoch -----------------------------------------------------------
def begin_request(state: RaftState, voter: ReplicaKey) -> BeginQuorumEpochRequest:
    topic = BeginQuorumEpochRequest.TopicData
    part = topic.PartitionData(
        partition_index=0,
        voter_directory_id=voter.directory_id,
        leader_id=state.config.node_id,
        leader_epoch=state.epoch,
    )
    return BeginQuorumEpochRequest(
        cluster_id=state.config.cluster_id,
        voter_id=voter.id,
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])],
        leader_endpoints=_listeners(BeginQuorumEpochRequest.LeaderEndpoint, state),
    )


def begin_response(state: RaftState, error: int = NONE) -> BeginQuorumEpochResponse:
    topic = BeginQuorumEpochResponse.TopicData
    part = topic.PartitionData(
        partition_index=0,
        error_code=error,
        leader_id=leader_field(state),
        leader_epoch=state.epoch,
    )
    return BeginQuorumEpochResponse(
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])],
        node_endpoints=_nodes(state, BeginQuorumEpochResponse.NodeEndpoint),
    )


def end_request(state: RaftState, preferred: tuple[ReplicaKey, ...]) -> EndQuorumEpochRequest:
    """Build EndQuorumEpoch, like Kafka without the leader's endpoints, which are not needed."""
    topic = EndQuorumEpochRequest.TopicData
    candidate = topic.PartitionData.ReplicaInfo
    part = topic.PartitionData(
        partition_index=0,
        leader_id=state.config.node_id,
        leader_epoch=state.epoch,
        preferred_candidates=[
            candidate(candidate_id=k.id, candidate_directory_id=k.directory_id) for k in preferred
        ],
    )
    return EndQuorumEpochRequest(
        cluster_id=state.config.cluster_id,
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])],
    )


def end_response(state: RaftState, error: int = NONE) -> EndQuorumEpochResponse:
    topic = EndQuorumEpochResponse.TopicData
    part = topic.PartitionData(
        partition_index=0,
        error_code=error,
        leader_id=leader_field(state),
        leader_epoch=state.epoch,
    )
    return EndQuorumEpochResponse(
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])],
        node_endpoints=_nodes(state, EndQuorumEpochResponse.NodeEndpoint),
    )


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
    validation: OffsetValidation | None = None,
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
    if isinstance(validation, Diverging):
        part.diverging_epoch = topic.PartitionData.EpochEndOffset(
            epoch=validation.end.epoch, end_offset=validation.end.end_offset
        )
    elif isinstance(validation, NeedsSnapshot):
        part.snapshot_id = topic.PartitionData.SnapshotId(
            end_offset=validation.id.end_offset, epoch=validation.id.epoch
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


def _nodes(state: RaftState, kind: type[_NodeEndpoint]) -> list[_NodeEndpoint]:
    """Return the leader's address in the form of an answer's node endpoints."""
    node = state.leader_node()
    if node is None or state.leader_id is None:
        return []
    return [kind(node_id=state.leader_id, host=node.host, port=node.port)]


def name_leader_on(listener: str, state: RaftState, response: "RaftResponse") -> None:
    """Replace the leader's address in an answer by its address on another listener.

    While controllers move from one listener to another, some nodes use the old listener and some
    the new one: as in Kafka, each node gets an address on the listener that it uses, or none.
    """
    if not isinstance(response, PartitionResponse):
        return
    nodes: Sequence[_Address] = response.node_endpoints
    for node in nodes:
        voter = state.voters.get(node.node_id)
        is_self = node.node_id == state.config.node_id
        endpoints = state.config.endpoints if is_self else voter.endpoints if voter else ()
        endpoint = next((each for each in endpoints if each.name == listener), None)
        if endpoint is None:
            response.node_endpoints = []
        else:
            node.host, node.port = endpoint.host, endpoint.port


def leader_in(response: PartitionResponse) -> Node | None:
    """Return the leader's address given in an answer."""
    leaders = [Node(n.node_id, n.host, n.port) for n in response.node_endpoints]
    return leaders[0] if leaders else None
