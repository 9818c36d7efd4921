"""OffsetCommit (API key 8): stores the offsets up to which a group has read.

Topics are identified by name, or by id from version 10 onwards.
"""

from functools import partial
from typing import Final

from kwire.codec.emit_flat import Values
from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.group import usual_requests
from kwire.group.commit_records import CommittedOffset
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.handlers.shared.offset_topics import commit_existing, refuse
from kwire.waits import Slow, Steps


def commit_values(
    context: Context,
    group_id: str,
    epoch: int,
    member_id: str,
    topics: list[tuple[str | bytes, list[CommittedOffset]]],
) -> Values | Slow[Values] | None:
    """Commit the offsets of a member's request in the usual shape, if all its partitions exist."""
    context.check_allowed("Read", "Group", group_id)
    image, commits = context.image, usual_requests.Commits()
    for topic, offsets in topics:
        if not offsets:
            return None
        topic_image = image.topic(topic) if isinstance(topic, str) else image.topics.get(topic)
        if topic_image is None or not context.is_allowed("Read", "Topic", topic_image.name):
            return None
        for partition, *_ in offsets:
            if partition not in topic_image.partitions:
                return None
        commits.append(((topic_image.name, topic_image.id), offsets))
    if not commits:
        return None
    committed = usual_requests.commit(context.groups, group_id, epoch, member_id, commits)
    if committed is False:
        return None
    values = ([(topic, [(each[0], 0) for each in offsets]) for topic, offsets in topics],)
    return values if committed is True else Slow(partial(_after, committed, values))


async def _after(committed: Slow[None], values: Values) -> Values:
    await committed.finish()
    return values


_FLAT: Final = Flat(
    function=commit_values,
    since=9,
    request_few=("topics", "partitions"),
    request_texts=("committed_metadata",),
    response_few=("topics", "partitions"),
    response_fields=("name", "topic_id", "partition_index", "error_code", "throttle_time_ms"),
)


@handles(OffsetCommitRequest, refuse=refuse, flat=_FLAT)
def offset_commit(context: Context, request: OffsetCommitRequest) -> Steps[OffsetCommitResponse]:
    context.check_allowed("Read", "Group", request.group_id)
    return (yield from commit_existing(context, request, context.groups.commit))
