"""TxnOffsetCommit (API key 28): offsets that take effect when the producer's transaction commits.

The group's partition is verified with the transaction coordinator as a partition with records is
(KIP-890).  Topics and partitions that do not exist fail alone.
"""

from collections.abc import Callable

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kwire.coordinator.decision import TransactionalProducer
from kwire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    KafkaError,
    KafkaStorageError,
    NetworkException,
    NotCoordinator,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.verifying import verify
from kwire.raftmeta.metadata.image import TopicImage
from kwire.replica.partition import Partition
from kwire.replica.verification import Guard, TransactionalBatch
from kwire.types import CONSUMER_OFFSETS, ZERO_UUID

RequestTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
ResponseTopic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic

Codes = dict[tuple[str, int], int]
"""The error code by topic name and partition."""


def _refuse_topic(topic: RequestTopic, error: KafkaError) -> ResponseTopic:
    return _answer(topic, lambda _: error.code)


def _answer(topic: RequestTopic, code: Callable[[int], int]) -> ResponseTopic:
    return ResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            ResponseTopic.TxnOffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=code(partition.partition_index),
            )
            for partition in topic.partitions
        ],
    )


def refuse(request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(topics=[_refuse_topic(topic, error) for topic in request.topics])


@handles(TxnOffsetCommitRequest, refuse=refuse)
async def txn_offset_commit(
    context: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    context.check_allowed("Write", "TransactionalId", request.transactional_id)
    context.check_allowed("Read", "Group", request.group_id)
    images: list[TopicImage | KafkaError] = [_find(context, topic) for topic in request.topics]
    existing = [
        _existing(topic, image)
        for topic, image in zip(request.topics, images, strict=True)
        if isinstance(image, TopicImage)
    ]
    codes = await _commit(context, request, [topic for topic in existing if topic.partitions])
    missing = UnknownTopicOrPartition.code

    def answer(topic: RequestTopic, image: TopicImage | KafkaError) -> ResponseTopic:
        if isinstance(image, KafkaError):
            return _refuse_topic(topic, image)
        return _answer(topic, lambda index: codes.get((image.name, index), missing))

    pairs = zip(request.topics, images, strict=True)
    return TxnOffsetCommitResponse(topics=[answer(topic, image) for topic, image in pairs])


def _find(context: Context, topic: RequestTopic) -> TopicImage | KafkaError:
    image = context.image
    if topic.topic_id != ZERO_UUID:
        topic_image = image.topics.get(topic.topic_id)
        missing: KafkaError = UnknownTopicId()
    else:
        topic_image = image.topic(topic.name)
        missing = UnknownTopicOrPartition()
    if not context.is_allowed("Read", "Topic", topic_image.name if topic_image else topic.name):
        return TopicAuthorizationFailed()
    return topic_image or missing


def _existing(topic: RequestTopic, image: TopicImage) -> CommitTopic:
    """Return the topic with its name and its id, and only the partitions that exist."""
    return CommitTopic(
        name=image.name,
        topic_id=image.id,
        partitions=[
            CommitTopic.OffsetCommitRequestPartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                committed_metadata=partition.committed_metadata,
            )
            for partition in topic.partitions
            if partition.partition_index in image.partitions
        ],
    )


async def _commit(
    context: Context, request: TxnOffsetCommitRequest, topics: list[CommitTopic]
) -> Codes:
    """Commit these partitions and return their error codes; a KafkaError fails only these."""
    if not topics:
        return {}
    commit = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )
    try:
        guard = await _verify(context, request)
        producer = TransactionalProducer(request.producer_id, request.producer_epoch, guard)
        reply = await context.groups.commit_in_transaction(commit, producer)
    except KafkaError as error:
        return {
            (topic.name, partition.partition_index): error.code
            for topic in topics
            for partition in topic.partitions
        }
    return _codes(reply)


def _codes(reply: OffsetCommitResponse) -> Codes:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in reply.topics
        for partition in topic.partitions
    }


async def _verify(context: Context, request: TxnOffsetCommitRequest) -> Guard | None:
    """Return the guard for the append; raises the verification's error."""
    if not request.group_id:
        raise InvalidGroupId
    partition = _groups_partition(context, request.group_id)
    batch = TransactionalBatch(request.producer_id, request.producer_epoch)
    results = await verify(
        context, request.transactional_id, [(partition, batch)], request.transaction_support
    )
    guard, error = results[partition.log.partition]
    if isinstance(error, NetworkException):
        raise CoordinatorLoadInProgress  # Older clients repeat the request for it.
    if isinstance(error, NotLeaderOrFollower):
        raise NotCoordinator
    if error is not None:
        raise error
    return guard


def _groups_partition(context: Context, group_id: str) -> Partition:
    index = context.groups.partition_of(group_id)
    try:
        return context.replicas.partitions.get_led(CONSUMER_OFFSETS, index)
    except UnknownTopicOrPartition:
        raise CoordinatorNotAvailable from None
    except (NotLeaderOrFollower, KafkaStorageError):
        raise NotCoordinator from None
