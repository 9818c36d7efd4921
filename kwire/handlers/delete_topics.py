"""DeleteTopics (API key 20): deletes topics by name or id; one bad topic fails alone."""

from functools import partial

from kwire import errors
from kwire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.topics import decide_delete_topics

Result = DeleteTopicsResponse.DeletableTopicResult
Asked = DeleteTopicsRequest.DeleteTopicState


def failed(request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    responses = [
        Result(
            name=asked.name,
            topic_id=asked.topic_id,
            error_code=error.code,
            error_message=error.text,
        )
        for asked in request.topics
    ]
    return DeleteTopicsResponse(responses=responses)


@handles(DeleteTopicsRequest, failed=failed)
async def delete_topics(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    wanted, denied = [], []
    for asked in request.topics:
        refusal = _denied(context, asked)
        if refusal is None:
            wanted.append(asked)
        else:
            denied.append(refusal)
    request.topics = wanted
    permit = context.mutation_permit(strict_since=5)
    response = await context.decide(partial(decide_delete_topics, permit=permit), request)
    response.throttle_time_ms = permit.throttle_ms
    response.responses += denied
    return response


def _denied(context: Context, asked: Asked) -> Result | None:
    """Return the refusal of a topic that the client may not delete, or None if it may.

    The name of a topic given by id is left out if the client may not describe it.
    """
    found = context.image.topics.get(asked.topic_id)
    name = asked.name if asked.name is not None or found is None else found.name
    if name is None or context.is_allowed("Delete", "Cluster", CLUSTER):
        return None
    if context.is_allowed("Delete", "Topic", name):
        return None
    shown = name if context.is_allowed("Describe", "Topic", name) else asked.name
    code = errors.TopicAuthorizationFailed.code
    return Result(name=shown, topic_id=asked.topic_id, error_code=code)
