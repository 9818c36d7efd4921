"""CreatePartitions (API key 37): adds partitions to topics; each topic fails or succeeds alone."""

from copy import copy
from functools import partial

from kwire import errors
from kwire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.mutation_quota import RATE as MUTATION_RATE
from kwire.raftmeta.controller.topics import decide_create_partitions

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


def refuse(request: CreatePartitionsRequest, error: KafkaError) -> CreatePartitionsResponse:
    results = [
        Result(name=topic.name, error_code=error.code, error_message=error.text)
        for topic in request.topics
    ]
    return CreatePartitionsResponse(results=results)


@handles(CreatePartitionsRequest, refuse=refuse)
async def create_partitions(
    context: Context, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    allowed, denied = [], []
    slices = Slices(context.clock.now)
    for topic in request.topics:
        await slices.pause()
        if context.is_allowed("Alter", "Topic", topic.name):
            allowed.append(topic)
        else:
            code = errors.TopicAuthorizationFailed.code
            denied.append(Result(name=topic.name, error_code=code))
    rest = copy(request)  # The original is needed if the request fails as a whole.
    rest.topics = allowed
    permit = context.mutation_permit(strict_since=3)
    response = await context.decide(partial(decide_create_partitions, permit=permit), rest)
    response.throttle_time_ms = context.count_throttle(MUTATION_RATE, permit.throttle_ms)
    response.results += denied
    return response
