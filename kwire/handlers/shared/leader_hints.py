"""The current leader, which Produce and Fetch add to errors to save clients a request (KIP-951).

Only errors that mean "not here", "no longer here" or "in a later epoch" carry a hint, and only if
the leader has an address on this listener.
"""

from typing import TYPE_CHECKING, TypeVar

from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.produce import ProduceResponse
from kwire.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower
from kwire.handlers.shared.context import Context

if TYPE_CHECKING:  # Share groups are rarely used.
    from kwire.codec.messages.share_acknowledge import ShareAcknowledgeResponse
    from kwire.codec.messages.share_fetch import ShareFetchResponse

Answer = TypeVar(
    "Answer",
    FetchResponse.FetchableTopicResponse.PartitionData,
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse,
    "ShareFetchResponse.ShareFetchableTopicResponse.PartitionData",
    "ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse.PartitionData",
)
Response = TypeVar(
    "Response", FetchResponse, ProduceResponse, "ShareFetchResponse", "ShareAcknowledgeResponse"
)


def add_leader_hint(
    context: Context,
    error: KafkaError,
    *,
    topic: str,
    topic_id: bytes,
    partition: int,
    answer: Answer,
    response: Response,
) -> None:
    """Add the leader to a partition's response, and its address to the whole response.

    The topic is identified by its name, or by its id if the name is empty.
    """
    if not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
        return
    # Share groups' rows have a leader in any case: 0 would be a broker.
    answer.current_leader = type(answer).LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    image = context.image
    topic_image = image.topic(topic) if topic else image.topics.get(topic_id)
    state = None if topic_image is None else topic_image.partitions.get(partition)
    broker = None if state is None else image.brokers.get(state.leader)
    endpoint = None if broker is None else broker.endpoint(context.listener)
    if state is None or broker is None or endpoint is None:
        return
    if state.leader == context.config.node_id and isinstance(error, NotLeaderOrFollower):
        return  # The metadata visible to these requests is older than the role.
    answer.current_leader = type(answer).LeaderIdAndEpoch(
        leader_id=state.leader, leader_epoch=state.leader_epoch
    )
    if all(node.node_id != state.leader for node in response.node_endpoints):
        response.node_endpoints.append(
            type(response).NodeEndpoint(
                node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
        )
