"""FindCoordinator (API key 10): the broker that coordinates a group.

The first request creates `__consumer_offsets`; while its partition has no leader yet the answer is
COORDINATOR_NOT_AVAILABLE, and clients ask again. Transactions and share groups have no coordinator
here and get the same answer.
"""

import logging
from enum import IntEnum
from typing import Final

from kwire.codec.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kwire.drive import Slices
from kwire.errors import (
    CoordinatorNotAvailable,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.internal_topics import lacks_replication
from kwire.types import CONSUMER_OFFSETS

log = logging.getLogger(__name__)

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
async def find_coordinator(
    context: Context, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if request.key_type not in list(KeyType):
        raise InvalidRequest(MALFORMED)
    kind = KeyType(request.key_type)
    if kind is KeyType.GROUP and context.image.topic(CONSUMER_OFFSETS) is None:
        await _create(context)

    def answer(key: str) -> Coordinator:
        try:
            return _find(context, kind, key)
        except KafkaError as error:
            return _refuse_key(key, error)

    response = FindCoordinatorResponse(coordinators=[])
    slices = Slices()
    for key in request.coordinator_keys:
        response.coordinators.append(answer(key))
        await slices.pause()
    return response


async def _create(context: Context) -> None:
    """Create the topic; if that fails the client's answer is to try again.

    Raises InvalidReplicationFactor when trying again would not help: there are as many brokers as
    the topic is to have replicas, and yet it cannot have them.
    """
    try:
        result = await context.topic_creation.ensure_topic(CONSUMER_OFFSETS)
    except KafkaError as error:
        log.warning("internal topic not created topic=%s error=%r", CONSUMER_OFFSETS, error)
        return
    if result is not None and lacks_replication(result, context.config, len(context.image.brokers)):
        raise InvalidReplicationFactor(result.error_message)


def _find(context: Context, kind: KeyType, key: str) -> Coordinator:
    if kind is KeyType.TRANSACTION:
        context.check_allowed("Describe", "TransactionalId", key)
        raise CoordinatorNotAvailable
    if kind is KeyType.SHARE:
        if key.count(":") < 2:  # group, topic id, partition
            raise InvalidRequest
        raise CoordinatorNotAvailable
    context.check_allowed("Describe", "Group", key)
    image = context.image
    state = image.partition(CONSUMER_OFFSETS, context.groups.partition_of(key))
    broker = None if state is None else image.brokers.get(state.leader)
    endpoint = broker.endpoint(context.listener) if broker and broker.is_active else None
    if broker is None or endpoint is None:
        raise CoordinatorNotAvailable
    return Coordinator(
        key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message=""
    )
