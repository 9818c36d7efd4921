"""CreateTopics (API key 19): answered once this node serves the new topics.

Each topic fails or succeeds alone. A name that occurs twice in a request fails, and so does the
name of the metadata log. If a client may create a topic but not describe it, the response omits the
topic's settings.
"""

from copy import copy
from functools import partial

from kwire import errors
from kwire.codec.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.mutation_quota import RATE as MUTATION_RATE
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.types import METADATA_TOPIC

Result = CreateTopicsResponse.CreatableTopicResult


def refuse(request: CreateTopicsRequest, error: KafkaError) -> CreateTopicsResponse:
    topics = [
        Result(name=name, error_code=error.code, error_message=error.text)
        for name in dict.fromkeys(topic.name for topic in request.topics)
    ]
    return CreateTopicsResponse(topics=topics)


@handles(CreateTopicsRequest, refuse=refuse)
async def create_topics(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    refusals = await _refusals(context, request)
    rest = copy(request)  # The original is needed if the request fails as a whole.
    rest.topics = [topic for topic in request.topics if topic.name not in refusals]
    permit = context.mutation_permit(strict_since=6)
    response = await context.decide(partial(decide_create_topics, permit=permit), rest)
    response.throttle_time_ms = context.count_throttle(MUTATION_RATE, permit.throttle_ms)
    slices = Slices(context.clock.now)
    for result in response.topics:
        await slices.pause()
        if result.error_code == errors.NONE and not context.is_allowed(
            "DescribeConfigs", "Topic", result.name
        ):
            result.topic_config_error_code = errors.TopicAuthorizationFailed.code
            result.num_partitions = result.replication_factor = -1
            result.configs = None
    response.topics += refusals.values()
    return response


async def _refusals(context: Context, request: CreateTopicsRequest) -> dict[str, Result]:
    """Return the errors of topics that are rejected without asking the controller, by name."""
    names = [topic.name for topic in request.topics]
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    cluster = context.is_allowed("Create", "Cluster", CLUSTER)
    refusals = {}
    slices = Slices(context.clock.now)
    for name, count in counts.items():
        await slices.pause()
        code, text = errors.InvalidRequest.code, "Duplicate topic name."
        if count == 1 and name == METADATA_TOPIC:
            text = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        elif count == 1:
            if cluster or context.is_allowed("Create", "Topic", name):
                continue
            code, text = errors.TopicAuthorizationFailed.code, "Authorization failed."
        refusals[name] = Result(name=name, error_code=code, error_message=text)
    return refusals
