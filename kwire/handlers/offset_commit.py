"""OffsetCommit (API key 8): stores the offsets up to which a group has read.

Topics are named, or from version 10 onwards given by id.
"""

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.offset_topics import commit_existing, refuse
from kwire.waits import Steps


@handles(OffsetCommitRequest, refuse=refuse)
def offset_commit(context: Context, request: OffsetCommitRequest) -> Steps[OffsetCommitResponse]:
    context.check_allowed("Read", "Group", request.group_id)
    return (yield from commit_existing(context, request, context.groups.commit))
