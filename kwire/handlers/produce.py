"""Produce (API key 0): appends one batch per partition.

Every partition succeeds or fails on its own. All batches are in the page cache before the request
waits: first for the disk, where a topic's ``flush.messages`` demands it, for all logs at the same
time; then, with acks=all, for the in-sync replicas, at most for the request's timeout. Meanwhile
the connection's next Produce may start (:mod:`kwire.net.waiting_answers`). A request with acks=0
gets no response; an error closes its connection, because the producer would not notice otherwise.

Before a transaction's first batch in a partition is appended, the transaction coordinator must
confirm the partition (KIP-890). All partitions of a request are verified together.

Unlike Kafka, which never answers a request with null records, kwire rejects them.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kwire.codec.emit_flat import Values
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from kwire.drive import give_way
from kwire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopicException,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    TransactionalIdAuthorizationFailed,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.handlers.shared.verifying import ADDS_PARTITIONS, UNVERIFIED, Verifications, verify
from kwire.net.framing import Disconnect
from kwire.net.waiting_answers import Unfinished
from kwire.records.header import HEADER_SIZE, BatchHeader, Buffer, parse
from kwire.records.validate import check_produced
from kwire.replica.partition import ACKS_ALL, Partition, ProduceResult
from kwire.replica.replicas import ReplicaService
from kwire.replica.unpacking import correct_timestamp
from kwire.replica.verification import Guard, TransactionalBatch
from kwire.types import INTERNAL_TOPICS, ZERO_UUID
from kwire.waits import Slow, Steps

Topic = ProduceRequest.TopicProduceData
Requested = Topic.PartitionProduceData
TopicAnswer = ProduceResponse.TopicProduceResponse
Answer = TopicAnswer.PartitionProduceResponse
Leader = Answer.LeaderIdAndEpoch
BadRecord = Answer.BatchIndexAndErrorMessage

_ADMIN_CLIENT: Final = "__admin_client"
_NO_LEADER: Final = Leader()
_TURN_COST: Final = 64
"""The cost of appended batches after which other tasks get a turn: about a millisecond. A batch
costs 1, plus 1 for every :data:`_COST_BYTES` of its records."""
_COST_BYTES: Final = 16 << 10
_ACKS: Final = (-1, 0, 1)
_ACKNOWLEDGED: Final = (ACKS_ALL, 1)
_REPEATED: Final = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NetworkException,
    NotCoordinator,
)
"""Verification errors after which some producers would not resend the batch."""
_ERRORS_WITH_LOG_START: Final = (OutOfOrderSequenceNumber, InvalidProducerEpoch, InvalidTimestamp)
"""The errors that the log itself raises. The handler does not await between the append and the
answer, so the answer has the log start at the time of the append."""


def _refuse_partition(index: int, error: KafkaError, log_start: int = -1) -> Answer:
    return Answer(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=log_start,
        error_message=error.text,
        record_errors=[
            BadRecord(batch_index=at, batch_index_error_message=text)
            for at, text in error.record_errors
        ],
    )


def refuse(request: ProduceRequest, error: KafkaError) -> ProduceResponse | None:
    if request.acks == 0:
        raise Disconnect(f"produce without acknowledgement failed: {error}")
    return ProduceResponse(
        responses=[
            TopicAnswer(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _refuse_partition(p.index, error) for p in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


class _Waiting(NamedTuple):
    """An appended batch that waits for disk or replicas; a failure replaces its answer."""

    partition: Partition
    produced: ProduceResult
    answers: list[Answer]
    position: int


_Batch: TypeAlias = tuple[Buffer, BatchHeader]
"""A checked batch and its header."""


def produce_one(
    context: Context, acks: int, timeout_ms: int, topic: str | bytes, index: int, records: Buffer
) -> Values | Unfinished[ProduceResponse] | None:
    """Append the only batch of a request; the same as :func:`produce` does for the usual batch."""
    if acks not in _ACKNOWLEDGED:
        return None
    replicas = context.replicas
    name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else ("", topic)
    partition = _find(context, replicas, name, topic_id, index)
    if acks == ACKS_ALL and partition.leader is not None and len(partition.leader.isr) > 1:
        return None  # The request will wait, and for that it has to be decoded.
    header = check_produced(records, max_message_bytes=partition.config.max_message_bytes)
    batch = _check_records(replicas, partition, records, header)
    if isinstance(batch, Slow):
        return None
    records, header = batch
    appended = replicas.append(partition, records, header, acks, context.clock.now_ms())
    if _must_wait(partition, appended, acks):
        answers = [_accept(index, appended)]
        topics = [TopicAnswer(name=name, topic_id=topic_id, partition_responses=answers)]
        waiting = [_Waiting(partition, appended, answers, 0)]
        return Unfinished(
            _wait(context, waiting, acks, timeout_ms, ProduceResponse(responses=topics))
        )
    return topic, index, appended.base_offset, appended.append_time_ms, appended.log_start


_FLAT: Final = Flat(
    function=produce_one,
    since=9,
    request_ones=("topic_data", "partition_data"),
    response_ones=("responses", "partition_responses"),
    response_fields=(
        "name",
        "topic_id",
        "index",
        "base_offset",
        "log_append_time_ms",
        "log_start_offset",
        "throttle_time_ms",
    ),
)


@handles(ProduceRequest, refuse=refuse, flat=_FLAT)
def produce(
    context: Context, request: ProduceRequest
) -> Steps[ProduceResponse | Unfinished[ProduceResponse] | None]:
    if request.acks not in _ACKS:
        raise InvalidRequiredAcks
    replicas = context.replicas
    waiting: list[_Waiting] = []
    response = ProduceResponse()
    verified: Verifications = {}
    if request.transactional_id is not None:
        verified = yield partial(_verify, context, request, request.transactional_id)
    cost = 0
    for topic in request.topic_data:
        answers: list[Answer] = []
        for requested in topic.partition_data:
            if cost >= _TURN_COST:
                yield give_way
                cost = 0
            cost += 1 + len(requested.records or b"") // _COST_BYTES
            try:
                partition = _find(context, replicas, topic.name, topic.topic_id, requested.index)
                header = check_produced(
                    requested.records,
                    max_message_bytes=partition.config.max_message_bytes,
                    transactional_id=request.transactional_id,
                    zstd_allowed=request.zstd_allowed,
                )
                guard = _guard_of(request, partition, verified) if header.is_transactional else None
                batch = _check_records(replicas, partition, requested.records, header)
                if isinstance(batch, Slow):
                    batch = yield batch.finish
                records, header = batch
                now_ms = context.clock.now_ms()
                appended = replicas.append(
                    partition, records, header, request.acks, now_ms, guard=guard
                )
            except KafkaError as error:
                answers.append(_refuse_with_hint(context, topic, requested.index, error, response))
                continue
            if _must_wait(partition, appended, request.acks):
                waiting.append(_Waiting(partition, appended, answers, len(answers)))
            answers.append(_accept(requested.index, appended))
        response.responses.append(
            TopicAnswer(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    if waiting:
        wait = _wait(context, waiting, request.acks, request.timeout_ms, response)
        if request.acks:
            return Unfinished(wait)
        yield wait
    if request.acks:
        return response
    _close_on_error(response)
    return None


def _find(
    context: Context, replicas: ReplicaService, name: str, topic_id: bytes, index: int
) -> Partition:
    """Return a partition that the client may write to."""
    if context.services.authorizer is not None:
        _check_may_write(context, name, topic_id)
    partition = replicas.partitions.look_up(name, topic_id, index)
    if partition.topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
        raise InvalidTopicException
    return partition


def _must_wait(partition: Partition, appended: ProduceResult, acks: int) -> bool:
    """Return whether an appended batch may not be acknowledged yet."""
    return not appended.is_stored or (
        acks == ACKS_ALL and partition.high_watermark < appended.end_offset
    )


def _accept(index: int, appended: ProduceResult) -> Answer:
    return Answer(
        index=index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time_ms,
        log_start_offset=appended.log_start,
        current_leader=_NO_LEADER,
    )


def _check_records(
    replicas: ReplicaService, partition: Partition, records: Buffer, header: BatchHeader
) -> _Batch | Slow[_Batch]:
    """Return a batch that may be appended; a thread checks large records and compresses them."""
    config = partition.config
    if replicas.checks_records or config.cleanup_compact:
        checked = replicas.unpacker.check_here(records, header, keys=config.cleanup_compact)
        if checked is None:
            return Slow(partial(_check_in_thread, replicas, partition, records, header))
        if header.base_timestamp + checked.max_delta != header.max_timestamp:
            records, header = correct_timestamp(records, header, checked.max_delta)
    if config.compression_type != "producer":
        return Slow(partial(replicas.recompress, partition, records, header))
    return records, header


async def _check_in_thread(
    replicas: ReplicaService, partition: Partition, records: Buffer, header: BatchHeader
) -> _Batch:
    config = partition.config
    keys = config.cleanup_compact
    checked = await replicas.unpacker.check_in_thread(records, header, keys=keys)
    if header.base_timestamp + checked.max_delta != header.max_timestamp:
        records, header = correct_timestamp(records, header, checked.max_delta)
    if config.compression_type != "producer":
        return await replicas.recompress(partition, records, header)
    return records, header


def _refuse_with_hint(
    context: Context, topic: Topic, index: int, error: KafkaError, response: ProduceResponse
) -> Answer:
    """Return the answer for a batch that was not appended; it names the leader if that helps."""
    answer = _refuse_partition(index, error, _log_start(context, topic, index, error))
    add_leader_hint(
        context,
        error,
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=index,
        answer=answer,
        response=response,
    )
    return answer


def _check_may_write(context: Context, name: str, topic_id: bytes) -> None:
    """Reject a topic that the client may not write, whether or not it exists."""
    name = name or context.topic_name(topic_id) or ""
    if name:
        context.check_allowed("Write", "Topic", name)


def _log_start(context: Context, topic: Topic, index: int, error: KafkaError) -> int:
    """Return the log start, which a producer needs after a gap, or -1 for other errors."""
    if not isinstance(error, _ERRORS_WITH_LOG_START):
        return -1
    return context.replicas.partitions.look_up(topic.name, topic.topic_id, index).log.log_start


async def _verify(
    context: Context, request: ProduceRequest, transactional_id: str
) -> Verifications:
    """Verify the transactional batches of a request; the append does all other checks."""
    batches: list[tuple[Partition, TransactionalBatch]] = []
    partitions = context.replicas.partitions
    is_allowed = context.is_allowed("Write", "TransactionalId", transactional_id)
    for topic in request.topic_data:
        for requested in topic.partition_data:
            batch = _transactional_batch(requested.records)
            if batch is not None:
                if not is_allowed:
                    raise TransactionalIdAuthorizationFailed
                with suppress(KafkaError):  # The append reports the error.
                    partition = partitions.look_up(topic.name, topic.topic_id, requested.index)
                    batches.append((partition, batch))
    if not batches:
        return {}
    if len({batch[:2] for _, batch in batches}) > 1:
        raise InvalidProducerIdMapping("the batches of a transaction have several producers")
    return await verify(context, transactional_id, batches, request.transaction_support)


def _transactional_batch(records: Buffer | None) -> TransactionalBatch | None:
    if records is None or len(records) < HEADER_SIZE:
        return None
    header = parse(records)
    if not header.is_transactional or header.is_control or header.producer_id < 0:
        return None
    return TransactionalBatch(header.producer_id, header.producer_epoch, header.base_sequence)


def _guard_of(
    request: ProduceRequest, partition: Partition, verified: Verifications
) -> Guard | None:
    """Return the guard for an append, or raise the verification error that the producer gets.

    Producers of any version resend a batch after NOT_ENOUGH_REPLICAS, without new metadata.
    """
    guard, error = verified.get(partition.log.partition, UNVERIFIED)
    if error is None:
        return guard
    is_busy = isinstance(error, ConcurrentTransactions)
    if isinstance(error, _REPEATED) or (is_busy and request.transaction_support < ADDS_PARTITIONS):
        raise NotEnoughReplicas(f"the transaction coordinator answered {error}")
    if isinstance(error, InvalidTxnState):
        raise InvalidTxnState("the partition was not added to the transaction")
    raise error


def _wait(
    context: Context,
    waiting: list[_Waiting],
    acks: int,
    timeout_ms: int,
    response: ProduceResponse,
) -> Callable[[], Awaitable[ProduceResponse]]:
    """Return the wait for the acknowledgement of all batches, whose timeout begins now."""
    deadline = context.replicas.now() + timeout_ms / 1000
    return partial(_wait_acknowledged, context, waiting, acks, deadline, response)


async def _wait_acknowledged(
    context: Context,
    waiting: list[_Waiting],
    acks: int,
    deadline: float,
    response: ProduceResponse,
) -> ProduceResponse:
    """Return the response once every batch is acknowledged, has failed or missed the deadline."""
    replicas = context.replicas
    for partition, produced, answers, position in waiting:
        try:
            await replicas.wait_acknowledged(partition, produced, acks, deadline)
        except KafkaError as error:
            answers[position] = _refuse_partition(answers[position].index, error)
            add_leader_hint(
                context,
                error,
                topic=partition.topic,
                topic_id=partition.topic_id,
                partition=partition.partition,
                answer=answers[position],
                response=response,
            )
    return response


def _close_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise Disconnect(
                    f"produce without acknowledgement failed topic={topic.name} "
                    f"partition={answer.index} error={answer.error_code}"
                )
