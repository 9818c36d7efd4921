"""FindCoordinator (API key 10): the broker that coordinates a group, transactional id or state.

The state is that of a share partition; brokers ask for its coordinator. The first request creates
the internal topic; while its partition has no leader yet, the response is
COORDINATOR_NOT_AVAILABLE, and clients retry.

A broker whose lease is over does not return itself as the coordinator, because its metadata may be
old; it closes the connection instead. After an error, the client would ask the same broker again
(librdkafka prefers the broker that it used last), although other brokers know the new coordinator.
"""

import logging
from enum import IntEnum
from functools import partial
from typing import Final

from kwire.codec.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kwire.drive import Slices
from kwire.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.net.framing import Disconnect
from kwire.share.keys import SharePartition
from kwire.types import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    TopicPartition,
    uuid_bytes,
)
from kwire.waits import Steps

logger = logging.getLogger(__name__)

Coordinator = FindCoordinatorResponse.Coordinator

MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the"
    " message was sent to an incompatible broker. See the broker logs for more details."
)
"""Kafka's error text for an invalid request."""


class KeyType(IntEnum):
    """The kind of key: a group, a transactional id or a share partition."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


_TOPICS: Final = {
    KeyType.GROUP: CONSUMER_OFFSETS,
    KeyType.TRANSACTION: TRANSACTION_STATE,
    KeyType.SHARE: SHARE_GROUP_STATE,
}
"""The topic whose partitions determine the coordinators, by kind of key."""
_RESOURCES: Final = {KeyType.GROUP: "Group", KeyType.TRANSACTION: "TransactionalId"}
"""The type of resource that a client must be allowed to describe, by kind of key."""


def _refuse_key(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=-1,
        host="",
        port=-1,
        error_code=error.code,
        error_message=error.text or "",
    )


def refuse(request: FindCoordinatorRequest, error: KafkaError) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[_refuse_key(key, error) for key in request.coordinator_keys]
    )


@handles(FindCoordinatorRequest, refuse=refuse)
def find_coordinator(
    context: Context, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    if request.key_type not in list(KeyType):
        raise InvalidRequest(MALFORMED)
    kind = KeyType(request.key_type)
    topic = _TOPICS.get(kind)
    if (
        topic is not None
        and context.image.topic(topic) is None
        and (yield partial(_may_find_some, context, kind, request.coordinator_keys))
    ):
        yield partial(_create, context, topic)

    def answer(key: str) -> Coordinator:
        try:
            return _find(context, kind, key)
        except KafkaError as error:
            return _refuse_key(key, error)

    response = FindCoordinatorResponse(coordinators=[])
    slices = Slices()
    for key in request.coordinator_keys:
        response.coordinators.append(answer(key))
        if slices.is_over:
            yield slices.pause
    return response


async def _may_find_some(context: Context, kind: KeyType, keys: list[str]) -> bool:
    """Return whether the client may look up at least one of these coordinators."""
    if kind is KeyType.SHARE:
        return context.is_allowed("ClusterAction", "Cluster", CLUSTER)
    slices = Slices()
    for key in keys:
        if context.is_allowed("Describe", _RESOURCES[kind], key):
            return True
        await slices.pause()
    return False


async def _create(context: Context, topic: str) -> None:
    """Create the topic; if that fails, the client is asked to retry.

    No failure is final: brokers that are missing, fenced or shutting down may come back, and log
    directories may be uncordoned.
    """
    try:
        await context.topic_creation.ensure_topic(topic)
    except KafkaError as error:
        logger.warning("internal topic not created topic=%s error=%r", topic, error)


def _find(context: Context, kind: KeyType, key: str) -> Coordinator:
    topic, partition = _partition(context, kind, key)
    image = context.image
    state = image.partition(topic, partition)
    broker = None if state is None else image.brokers.get(state.leader)
    endpoint = broker.endpoint(context.listener) if broker and broker.is_active else None
    if broker is None or endpoint is None:
        raise CoordinatorNotAvailable
    if broker.id == context.replicas.node and context.replicas.is_lease_over:
        raise Disconnect("the broker's session may have ended")
    return Coordinator(
        key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message=""
    )


def _partition(context: Context, kind: KeyType, key: str) -> TopicPartition:
    """Return the partition whose leader coordinates the key."""
    if kind is KeyType.TRANSACTION:
        context.check_allowed("Describe", _RESOURCES[kind], key)
        return TopicPartition(TRANSACTION_STATE, context.transactions.partition_of(key))
    if kind is KeyType.GROUP:
        context.check_allowed("Describe", _RESOURCES[kind], key)
        return TopicPartition(CONSUMER_OFFSETS, context.groups.partition_of(key))
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    of = _share_partition(key)
    return TopicPartition(SHARE_GROUP_STATE, context.share_states.partition_of(of))


def _share_partition(key: str) -> SharePartition:
    """Return the share partition of a key; raises InvalidRequest."""
    try:
        group_id, topic_id, partition = key.rsplit(":", 2)
        if not group_id:
            raise InvalidRequest
        return SharePartition(group_id, uuid_bytes(topic_id), int(partition))
    except ValueError as error:
        raise InvalidRequest from error
