"""Metadata (API key 3): brokers, topics and the leaders of their partitions.

Topics are requested by name or, from version 12 onwards, by id; an empty list means none, null
means all. Topics with unknown names are created if client and broker allow it, and the response
then includes the new topics. In Kafka the client has to ask again, because the response predates
the creation.

The response shows a single image, however long it takes: 1.8 us per partition, in slices. Equal
requests share its encoding until the image changes, unless it depends on the client.
"""

import logging
from collections.abc import Hashable
from functools import partial
from typing import Final, TypeAlias

from kwire import errors
from kwire.codec.compile import decode
from kwire.codec.messages.metadata import MetadataRequest, MetadataResponse
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.authorized_operations import authorized_operations, cluster_operations
from kwire.handlers.shared.client_view import (
    ClientView,
    any_controller_id,
    unknown_topic_code,
    with_endpoints,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.shared_response import SharedResponse
from kwire.raftmeta.metadata.image import MetadataImage, TopicImage
from kwire.types import INTERNAL_TOPICS, ZERO_UUID
from kwire.waits import Steps

logger = logging.getLogger(__name__)

Topic = MetadataResponse.MetadataResponseTopic
Partition = Topic.MetadataResponsePartition
Broker = MetadataResponse.MetadataResponseBroker

_NOT_REQUESTED: Final = -2147483648
_SHARED_TOPICS_MAX: Final = 256
"""The largest number of named topics in a request whose response is shared."""
_THROTTLE_SINCE: Final = 3
_NO_THROTTLE: Final = bytes(4)
"""The first field of a response since that version: no throttle time."""
_Answer: TypeAlias = MetadataResponse | SharedResponse
_PARTITIONS_AT_ONCE: Final = 128
"""The number of partitions between two checks of the clock: about a quarter of a millisecond."""


def refuse(request: MetadataRequest, error: KafkaError) -> MetadataResponse:
    topics = [
        Topic(error_code=error.code, name=topic.name, topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(error_code=error.code, topics=topics)


@handles(MetadataRequest, refuse=refuse)
def metadata(context: Context, request: MetadataRequest) -> Steps[_Answer]:
    key = _shared_key(context, request)
    if key is not None:
        frames = context.services.metadata_frames.of(context.image)
        if key in frames:
            build = partial(_read, frames[key], request.version)
            return SharedResponse(build, frames, _NO_THROTTLE, _THROTTLE_SINCE, key)
    may_create = request.allow_auto_topic_creation and context.config.auto_create_topics_enable
    slices = Slices(context.clock.now)
    refused: dict[str, int] = {}
    if may_create and request.topics:
        missing, refused = yield from _missing(context, request.topics, slices)
        if missing:
            yield partial(_create, context, missing)
    image = context.image
    view = ClientView(image, context.listener)
    topics = yield from _topics(context, view, image, request, slices)
    for topic in topics:
        if topic.error_code:
            topic.error_code = refused.get(topic.name or "", topic.error_code)
    if request.include_topic_authorized_operations:
        yield from _add_operations(context, topics, slices)
    operations = _NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(context)
    response = MetadataResponse(
        brokers=_brokers(context, image),
        cluster_id=context.services.cluster_id,
        controller_id=any_controller_id(context, image),
        topics=topics,
        cluster_authorized_operations=operations,
    )
    is_current = image is context.image
    if key is None or not is_current or view.has_errors or any(each.error_code for each in topics):
        return response
    frames = context.services.metadata_frames.with_room(image)
    return SharedResponse(lambda: response, frames, _NO_THROTTLE, _THROTTLE_SINCE, key)


def _add_operations(context: Context, topics: list[Topic], slices: Slices) -> Steps[None]:
    """Add the operations that the client may perform on each topic."""
    for topic in topics:
        denied = topic.error_code == errors.TopicAuthorizationFailed.code
        if topic.name is not None and not denied:
            topic.topic_authorized_operations = authorized_operations(context, "Topic", topic.name)
        if slices.is_over:
            yield slices.pause


def _read(shared: bytes, version: int) -> MetadataResponse:
    """Return the response whose encoding is shared."""
    own = _NO_THROTTLE if version >= _THROTTLE_SINCE else b""
    return decode(MetadataResponse, own + shared, version)


def _shared_key(context: Context, request: MetadataRequest) -> Hashable:
    """Return what the response depends on besides the image; None if that is the client, too.

    Errors depend on the version in ways of their own, so responses with errors are not shared.
    """
    if (
        context.services.authorizer is not None
        or context.image.quotas
        or request.include_topic_authorized_operations
        or request.include_cluster_authorized_operations
        or request.version == 0
        or len(request.topics or ()) > _SHARED_TOPICS_MAX
    ):
        return None
    topics = request.topics
    named = topics if topics is None else tuple((each.name, each.topic_id) for each in topics)
    return context.listener, request.version, named


def _topics(
    context: Context,
    view: ClientView,
    image: MetadataImage,
    request: MetadataRequest,
    slices: Slices,
) -> Steps[list[Topic]]:
    """Describe the requested topics, or all that the client may see."""
    topics = []
    if request.topics is None:
        for topic in image.topics.values():
            if context.is_allowed("Describe", "Topic", topic.name):
                topics.append((yield from _topic(view, topic, slices)))
            elif slices.is_over:
                yield slices.pause
        return topics
    by_key = {(requested.name or "", requested.topic_id): requested for requested in request.topics}
    for requested in by_key.values():
        description = _find(context, image, requested)
        if isinstance(description, TopicImage):
            description = yield from _topic(view, description, slices)
        topics.append(description)
    return topics


def _missing(
    context: Context, requested: list[MetadataRequest.MetadataRequestTopic], slices: Slices
) -> Steps[tuple[list[str], dict[str, int]]]:
    """Return the unknown names among the requested topics that the client may create.

    Also return the error codes of topics that the client may describe but not create.
    """
    missing, refused = [], {}
    for topic in requested:
        if slices.is_over:
            yield slices.pause
        name = topic.name
        if name is None or topic.topic_id != ZERO_UUID or name in context.image.topic_ids:
            continue
        if not context.is_allowed("Describe", "Topic", name):
            continue
        cluster = context.is_allowed("Create", "Cluster", CLUSTER)
        if not cluster and not context.is_allowed("Create", "Topic", name):
            refused[name] = errors.TopicAuthorizationFailed.code
        elif unknown_topic_code(name) == errors.UnknownTopicOrPartition.code:
            missing.append(name)
    return missing, refused


async def _create(context: Context, missing: list[str]) -> None:
    """Create topics; those that cannot be created stay unknown, so that clients ask again.

    Any other error would be final to Java's consumer, which fails with it. No failure is final
    here: brokers that are fenced or shutting down may come back.
    """
    try:
        await context.topic_creation.ensure_topics(missing, context.requester)
    except KafkaError as error:
        logger.warning("topics not created count=%d error=%r", len(missing), error)


def _find(
    context: Context, image: MetadataImage, requested: MetadataRequest.MetadataRequestTopic
) -> TopicImage | Topic:
    """Return a requested topic that the client may see, or the answer if there is none."""
    if requested.name is None or requested.topic_id != ZERO_UUID:
        topic = image.topics.get(requested.topic_id)
        if topic is None:
            return Topic(
                error_code=errors.UnknownTopicId.code, name=None, topic_id=requested.topic_id
            )
        if not context.is_allowed("Describe", "Topic", topic.name):
            code = errors.TopicAuthorizationFailed.code
            return Topic(error_code=code, name=None, topic_id=topic.id)
        return topic
    if not context.is_allowed("Describe", "Topic", requested.name):
        return Topic(error_code=errors.TopicAuthorizationFailed.code, name=requested.name)
    topic = image.topic(requested.name)
    if topic is not None:
        return topic
    return Topic(
        error_code=unknown_topic_code(requested.name),
        name=requested.name,
        is_internal=requested.name in INTERNAL_TOPICS,
    )


def _topic(view: ClientView, topic: TopicImage, slices: Slices) -> Steps[Topic]:
    partitions = []
    for index in range(len(topic.partitions)):
        if index % _PARTITIONS_AT_ONCE == 0 and slices.is_over:
            yield slices.pause
        partitions.append(view.describe(Partition, index, topic.partitions[index]))
    return Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
    )


def _brokers(context: Context, image: MetadataImage) -> list[Broker]:
    """Return the live brokers, or only this node if there are none.

    Some clients (librdkafka) never ask again if the response lists no brokers, and this node is
    able to answer them.
    """
    brokers = image.live_brokers()
    own = image.brokers.get(context.config.node_id)
    if not brokers and own is not None:
        brokers = [own]
    return [
        Broker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in with_endpoints(brokers, context.listener)
    ]
