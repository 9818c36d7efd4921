"""StreamsGroupHeartbeat (API key 88): a member of a streams group (KIP-1071) joins or stays.

With the same request, a member leaves and reports its tasks; the response contains the tasks that
it should have. The coordinator creates the internal topics of the application, if the client may
create them. As in Kafka, it is served from `streams.version` 1 onwards.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.streams_group_heartbeat import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kwire.drive import give_way
from kwire.errors import InvalidTopicException, StreamsInvalidTopology
from kwire.group.decision_builder import Client
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_streams_groups
from kwire.raftmeta.metadata.topic_names import check_topic_name
from kwire.types import INTERNAL_TOPICS

if TYPE_CHECKING:
    from kwire.group.streams.configuration import InternalTopic

Topology = StreamsGroupHeartbeatRequest.Topology
Creatable = CreateTopicsRequest.CreatableTopic

_MISSING_INTERNAL_TOPICS: Final = 3
_SHOWN: Final = 3
"""The number of topics whose creation failure a response explains."""
_REFUSED: Final = {
    "member_id": "",
    "member_epoch": 0,
    "heartbeat_interval_ms": 0,
    "task_offset_interval_ms": 0,
    "endpoint_information_epoch": 0,
}


@handles(StreamsGroupHeartbeatRequest, refused=_REFUSED)
async def streams_group_heartbeat(
    context: Context, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse:
    check_streams_groups(context)
    context.check_allowed("Read", "Group", request.group_id)
    if request.topology is not None:
        _check_topics(context, request.topology)
        await give_way()  # Decoding and checking a large topology has taken a while.
    from kwire.group.streams.checks import check_heartbeat

    check_heartbeat(request)
    client = Client(client_id=context.client_id, client_host=f"/{context.client_host}")
    beaten = await context.groups.streams.heartbeat(request, client)
    if beaten.missing:
        _create(context, beaten.missing, beaten.response)
    return beaten.response


def _check_topics(context: Context, topology: Topology) -> None:
    """Reject a topology with invalid topics, or with topics that the client may not see."""
    names = dict.fromkeys(
        name
        for each in topology.subtopologies
        for name in (
            *each.source_topics,
            *each.repartition_sink_topics,
            *(topic.name for topic in each.repartition_source_topics),
            *(topic.name for topic in each.state_changelog_topics),
        )
    )
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        raise StreamsInvalidTopology(
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is "
            "prohibited."
        )
    invalid = [name for name in names if not _is_valid(name)]
    if invalid:
        raise StreamsInvalidTopology(f"Topic names {','.join(invalid)} are not valid topic names.")
    for name in names:
        context.check_allowed("Describe", "Topic", name)


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicException:
        return False
    return True


def _create(
    context: Context, missing: "Sequence[InternalTopic]", response: StreamsGroupHeartbeatResponse
) -> None:
    """Start to create internal topics, or tell the member why they cannot be created."""
    if not context.is_allowed("Create", "Cluster", CLUSTER):
        names = [t.name for t in missing if not context.is_allowed("Create", "Topic", t.name)]
        if names:
            _explain(response, f"Unauthorized to CREATE on topics {', '.join(names)}.")
            return
    failures = context.groups.streams.create(
        missing, partial(_create_topics, context), response.heartbeat_interval_ms
    )
    if failures:
        shown = ", ".join(f"{n} ({reason})" for n, reason in list(failures.items())[:_SHOWN])
        rest = len(failures) - _SHOWN
        _explain(response, f"Creation failed: {shown}{f' and {rest} more' if rest > 0 else ''}.")


def _explain(response: StreamsGroupHeartbeatResponse, text: str) -> None:
    """Append a text to the status that reports missing internal topics."""
    for status in response.status or ():
        if status.status_code == _MISSING_INTERNAL_TOPICS:
            status.status_detail = f"{status.status_detail}; {text}"
            return
    status = Status(status_code=_MISSING_INTERNAL_TOPICS, status_detail=text)
    response.status = [*(response.status or ()), status]


async def _create_topics(context: Context, topics: "Sequence[InternalTopic]") -> Mapping[str, str]:
    """Create topics for the client; return the reasons for failures, by topic name."""
    by_name = {topic.name: _creatable(topic) for topic in topics}
    results = await context.topic_creation.create(
        list(by_name), by_name.__getitem__, context.requester
    )
    return {
        name: result.error_message or f"error code {result.error_code}"
        for name, result in results.items()
        if result.error_code
    }


def _creatable(topic: "InternalTopic") -> Creatable:
    return Creatable(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=[
            Creatable.CreatableTopicConfig(name=name, value=text) for name, text in topic.configs
        ],
    )
