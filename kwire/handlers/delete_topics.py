"""DeleteTopics (API key 20): deletes topics by name or id; each topic fails or succeeds alone."""

from copy import copy
from functools import partial

from kwire import errors
from kwire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.mutation_quota import RATE as MUTATION_RATE
from kwire.raftmeta.controller.topics import decide_delete_topics

Result = DeleteTopicsResponse.DeletableTopicResult
Topic = DeleteTopicsRequest.DeleteTopicState


def refuse(request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    responses = [
        Result(
            name=topic.name,
            topic_id=topic.topic_id,
            error_code=error.code,
            error_message=error.text,
        )
        for topic in request.topics
    ]
    return DeleteTopicsResponse(responses=responses)


@handles(DeleteTopicsRequest, refuse=refuse)
async def delete_topics(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    allowed, denied = [], []
    slices = Slices(context.clock.now)
    for topic in request.topics:
        await slices.pause()
        refusal = _refusal(context, topic)
        if refusal is None:
            allowed.append(topic)
        else:
            denied.append(refusal)
    rest = copy(request)  # The original is needed if the request fails as a whole.
    rest.topics = allowed
    permit = context.mutation_permit(strict_since=5)
    response = await context.decide(partial(decide_delete_topics, permit=permit), rest)
    response.throttle_time_ms = context.count_throttle(MUTATION_RATE, permit.throttle_ms)
    response.responses += denied
    return response


def _refusal(context: Context, topic: Topic) -> Result | None:
    """Return the refusal for a topic that the client may not delete; None if it may.

    The ids are those of the controller, which decides: it knows a new topic before this node has
    published it. For a topic requested by id, the refusal omits the name if the client may not
    describe the topic.
    """
    image = context.controller.state.image
    requested = image.topics.get(topic.topic_id)
    name = topic.name if topic.name is not None or requested is None else requested.name
    if name is None or context.is_allowed("Delete", "Cluster", CLUSTER):
        return None
    if context.is_allowed("Delete", "Topic", name):
        return None
    is_described = context.is_allowed("Describe", "Topic", name)
    if is_described and topic.name is not None and topic.name not in image.topic_ids:
        return None  # The controller will reject the unknown name.
    described_name = name if is_described else topic.name
    return Result(
        name=described_name,
        topic_id=topic.topic_id,
        error_code=errors.TopicAuthorizationFailed.code,
        error_message="Topic authorization failed.",
    )
