"""ShareAcknowledge (API key 79): a member of a share group acknowledges records.

It is answered once the new states are stored. The session epoch -1 ends the member's session, and
its remaining records are released.
"""

from collections.abc import Sequence

from kwire.codec.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.handlers.shared.share_requests import (
    Errors,
    acknowledge,
    check_request,
    share_service,
)
from kwire.share.sessions import FINAL_EPOCH, Ref

TopicAnswer = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
Answer = TopicAnswer.PartitionData
Batch = ShareAcknowledgeRequest.AcknowledgeTopic.AcknowledgePartition.AcknowledgementBatch


@handles(ShareAcknowledgeRequest)
async def share_acknowledge(
    context: Context, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    service = share_service(context)
    key = check_request(context, request.group_id, request.member_id)
    service.sessions.begin_acknowledge(key, request.share_session_epoch)
    session = service.sessions.find(key)
    batches: dict[Ref, Sequence[Batch]] = {
        (topic.topic_id, partition.partition_index): partition.acknowledgement_batches
        for topic in request.topics
        for partition in topic.partitions
    }
    errors = await acknowledge(context, service, key, batches, may_renew=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        await service.end_session(session)
    return _response(context, errors, service.settings(key.group_id).lock_ms)


def _response(context: Context, errors: Errors, lock_ms: int) -> ShareAcknowledgeResponse:
    response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
    topics: dict[bytes, TopicAnswer] = {}
    for (topic_id, partition), error in errors.items():
        if topic_id not in topics:
            topics[topic_id] = TopicAnswer(topic_id=topic_id)
            response.responses.append(topics[topic_id])
        answer = Answer(
            partition_index=partition,
            current_leader=Answer.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
        )
        topics[topic_id].partitions.append(answer)
        if error is not None:
            answer.error_code, answer.error_message = error.code, error.text
            add_leader_hint(
                context,
                error,
                topic="",
                topic_id=topic_id,
                partition=partition,
                answer=answer,
                response=response,
            )
    return response
