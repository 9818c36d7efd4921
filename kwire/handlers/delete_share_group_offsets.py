"""DeleteShareGroupOffsets (API key 92): deletes the state of topics of a group without members."""

from kwire.codec.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from kwire.errors import InvalidGroupId, TopicAuthorizationFailed
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_share_groups
from kwire.types import ZERO_UUID

Topic = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic


@handles(DeleteShareGroupOffsetsRequest)
async def delete_share_group_offsets(
    context: Context, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    check_share_groups(context)
    context.check_allowed("Delete", "Group", request.group_id)
    if not request.group_id:
        raise InvalidGroupId
    refused: list[Topic] = []
    allowed: list[str] = []
    for topic in request.topics:
        if context.is_allowed("Read", "Topic", topic.topic_name):
            allowed.append(topic.topic_name)
        else:
            code = TopicAuthorizationFailed.code
            refused.append(Topic(topic_name=topic.topic_name, topic_id=ZERO_UUID, error_code=code))
    deleted = await context.groups.share.delete_offsets(request.group_id, allowed)
    return DeleteShareGroupOffsetsResponse(responses=refused + deleted)
