"""TxnOffsetCommit (API key 28): offsets that take effect when the producer's transaction commits.

The transaction coordinator must verify the group's partition, just like a partition to which
records are written (KIP-890). Topics and partitions that do not exist fail alone.
"""

from collections.abc import Generator
from functools import partial

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kwire.coordinator.decision import TransactionalProducer
from kwire.drive import run_in_slices, run_steps
from kwire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    KafkaError,
    KafkaStorageError,
    NetworkException,
    NotCoordinator,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared import offset_topics
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.offset_topics import A_STEP
from kwire.handlers.shared.verifying import verify
from kwire.replica.partition import Partition
from kwire.replica.verification import Guard, TransactionalBatch
from kwire.types import CONSUMER_OFFSETS
from kwire.waits import Slow, Steps

CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
ResponseTopic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


def refuse(request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    return run_steps(_response(offset_topics.refuse(run_steps(_commit_of(request)), error)))


@handles(TxnOffsetCommitRequest, refuse=refuse)
def txn_offset_commit(
    context: Context, request: TxnOffsetCommitRequest
) -> Steps[TxnOffsetCommitResponse]:
    context.check_allowed("Write", "TransactionalId", request.transactional_id)
    context.check_allowed("Read", "Group", request.group_id)

    async def commit(existing: OffsetCommitRequest) -> OffsetCommitResponse:
        guard = await _verify(context, request)
        producer = TransactionalProducer(request.producer_id, request.producer_epoch, guard)
        return await context.groups.commit_in_transaction(existing, producer)

    requested = yield partial(run_in_slices, _commit_of(request))
    reply = yield from offset_topics.commit_existing(
        context, requested, lambda existing: Slow(partial(commit, existing))
    )
    response: TxnOffsetCommitResponse = yield partial(run_in_slices, _response(reply))
    return response


def _commit_of(
    request: TxnOffsetCommitRequest,
) -> Generator[None, None, OffsetCommitRequest]:
    """Convert the request to a commit outside a transaction, in steps."""
    commit = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    for topic in request.topics:
        partitions: list[CommitTopic.OffsetCommitRequestPartition] = []
        commit.topics.append(
            CommitTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
        for first in range(0, len(topic.partitions), A_STEP):
            partitions += [
                CommitTopic.OffsetCommitRequestPartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    committed_metadata=partition.committed_metadata,
                )
                for partition in topic.partitions[first : first + A_STEP]
            ]
            yield
    return commit


def _response(
    response: OffsetCommitResponse,
) -> Generator[None, None, TxnOffsetCommitResponse]:
    answer = TxnOffsetCommitResponse()
    for topic in response.topics:
        partitions: list[ResponseTopic.TxnOffsetCommitResponsePartition] = []
        answer.topics.append(
            ResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
        for first in range(0, len(topic.partitions), A_STEP):
            partitions += [
                ResponseTopic.TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=partition.error_code
                )
                for partition in topic.partitions[first : first + A_STEP]
            ]
            yield
    return answer


async def _verify(context: Context, request: TxnOffsetCommitRequest) -> Guard | None:
    """Return the guard for the append; raises the verification's error."""
    if not request.group_id:
        raise InvalidGroupId
    if context.replicas.is_lease_over:  # Nothing to verify: another broker coordinates the group.
        raise NotCoordinator
    partition = _groups_partition(context, request.group_id)
    batch = TransactionalBatch(request.producer_id, request.producer_epoch)
    results = await verify(
        context, request.transactional_id, [(partition, batch)], request.transaction_support
    )
    guard, error = results[partition.log.partition]
    if isinstance(error, NetworkException):
        raise CoordinatorLoadInProgress  # Older clients retry after this error.
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
