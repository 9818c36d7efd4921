"""DescribeQuorum: the leader's view of its replicas."""

from kwire import errors
from kwire.codec.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ReplicaState,
)
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import OBSERVER_SESSION_S, RaftState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterEndpoint
from kwire.types import METADATA_TOPIC, ZERO_UUID

Topic = DescribeQuorumResponse.TopicData


def describe(state: RaftState, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Answer DescribeQuorum; a node that is not the leader returns an error."""
    if messages.partition_of(request) is None:
        return DescribeQuorumResponse(error_code=errors.InvalidRequest.code)
    role = state.role
    if not isinstance(role, Leader):
        refused = _partition(state, errors.NotLeaderOrFollower.code)
        refused.error_message = "This node does not lead the metadata quorum."
        return _answer(refused)
    part = _partition(state, errors.NONE)
    part.error_message = ""
    part.high_watermark = -1 if state.high_watermark is None else state.high_watermark
    part.current_voters = [_replica(state, role, voter.key) for voter in state.voters]
    part.observers = [_replica(state, role, key) for key in observers(state, role)]
    answer = _answer(part)
    answer.nodes = [
        _node(voter.id, voter.endpoints or _own_endpoints(state, voter.id))
        for voter in state.voters
    ]
    return answer


def observers(state: RaftState, role: Leader) -> list[ReplicaKey]:
    """Return the replicas that are not voters and fetched within ``OBSERVER_SESSION_S``."""
    return [
        key
        for key, replica in role.replicas.items()
        if not state.voters.has(key) and state.now - replica.fetched_at < OBSERVER_SESSION_S
    ]


def _own_endpoints(state: RaftState, node_id: int) -> tuple[VoterEndpoint, ...]:
    return state.config.endpoints if node_id == state.config.node_id else ()


def _node(node_id: int, endpoints: tuple[VoterEndpoint, ...]) -> DescribeQuorumResponse.Node:
    listener = DescribeQuorumResponse.Node.Listener
    return DescribeQuorumResponse.Node(
        node_id=node_id,
        listeners=[listener(name=e.name, host=e.host, port=e.port) for e in endpoints],
    )


def _answer(part: Topic.PartitionData) -> DescribeQuorumResponse:
    topic = Topic(topic_name=METADATA_TOPIC, partitions=[part])
    return DescribeQuorumResponse(error_message="", topics=[topic])


def _partition(state: RaftState, error: int) -> Topic.PartitionData:
    return Topic.PartitionData(
        partition_index=0,
        error_code=error,
        leader_id=messages.leader_field(state) if error == errors.NONE else -1,
        leader_epoch=state.epoch if error == errors.NONE else 0,
        high_watermark=-1,
    )


def _replica(state: RaftState, role: Leader, key: ReplicaKey) -> ReplicaState:
    if key.id == state.config.node_id:
        return ReplicaState(
            replica_id=key.id,
            replica_directory_id=key.directory_id,
            log_end_offset=state.log.end_offset,
            last_fetch_timestamp=state.now_ms,
            last_caught_up_timestamp=state.now_ms,
        )
    is_named = key.directory_id != ZERO_UUID
    replicas = [r for k, r in role.replicas.items() if (k == key if is_named else k.id == key.id)]
    best = max(replicas, key=lambda r: r.fetched_at, default=None)
    return ReplicaState(
        replica_id=key.id,
        replica_directory_id=key.directory_id,
        log_end_offset=best.end_offset if best else -1,
        last_fetch_timestamp=best.fetched_at_ms if best else -1,
        last_caught_up_timestamp=best.caught_up_at_ms if best else -1,
    )
