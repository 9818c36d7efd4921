"""StreamsGroupDescribe (API key 89): streams groups and their members; each group fails alone."""

from collections.abc import Iterable, Iterator

from kwire.codec.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.described_groups import describe_groups, refusing
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_streams_groups

Group = StreamsGroupDescribeResponse.DescribedGroup


@handles(StreamsGroupDescribeRequest, refuse=refusing(StreamsGroupDescribeResponse, Group))
async def streams_group_describe(
    context: Context, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    check_streams_groups(context)
    groups = await describe_groups(
        context,
        request,
        Group,
        context.groups.streams.describe,
        _topics_of,
        "The described group uses topics that the client is not authorized to describe.",
    )
    return StreamsGroupDescribeResponse(groups=groups)


def _topics_of(group: Group) -> Iterator[Iterable[str]]:
    subtopologies = None if group.topology is None else group.topology.subtopologies
    for each in subtopologies or ():
        yield each.source_topics
        yield each.repartition_sink_topics
        yield (topic.name for topic in each.repartition_source_topics)
        yield (topic.name for topic in each.state_changelog_topics)
