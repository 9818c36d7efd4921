"""Produce (API key 0): appends one batch per partition.

Every partition succeeds or fails on its own. All batches are in the page cache before the request
waits. It waits first for the disk, if a topic's ``flush.messages`` requires that, for all logs
together; then, with acks=all, for the in-sync replicas, until the request's timeout. Meanwhile the
connection's next Produce may start (:mod:`kwire.net.waiting_answers`). A request with acks=0 gets
no response; an error closes its connection, because the producer would not notice otherwise.

Before a transaction's first batch in a partition is appended, the transaction coordinator must
confirm the partition (KIP-890). All partitions of a request are verified together.

Unlike Kafka, which never answers a request with null records, kwire rejects them.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from kwire.codec.emit_flat import Values
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from kwire.drive import give_way, run_by_size, run_in_slices, run_steps
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
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    TransactionalIdAuthorizationFailed,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.handlers.shared.verifying import (
    ADDS_PARTITIONS,
    UNVERIFIED,
    Verifications,
    Verified,
    verify,
)
from kwire.net.framing import Disconnect
from kwire.net.waiting_answers import Unfinished
from kwire.records.header import HEADER_SIZE, TRANSACTIONAL, BatchHeader, Buffer, parse
from kwire.records.validate import check_produced
from kwire.replica.partition import ACKS_ALL, Partition, ProduceResult
from kwire.replica.replicas import ReplicaService
from kwire.replica.unpacking import correct_timestamp
from kwire.replica.verification import Guard, TransactionalBatch, is_open
from kwire.types import INTERNAL_TOPICS, ZERO_UUID, TopicPartition
from kwire.waits import Slow, Steps, run_until_wait

TopicAnswer = ProduceResponse.TopicProduceResponse
Answer = TopicAnswer.PartitionProduceResponse
BadRecord = Answer.BatchIndexAndErrorMessage

_ADMIN_CLIENT: Final = "__admin_client"
_NO_LEADER: Final = Answer.LeaderIdAndEpoch()
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
    OperationNotAttempted,
)
"""Verification errors after which some producers would not resend the batch.

OPERATION_NOT_ATTEMPTED: the coordinator does not know another partition of the request yet.
"""
_NAMED_AT_MOST: Final = 1_000
"""The largest number of records of a rejected batch that the answer may name."""
_ERRORS_WITH_LOG_START: Final = (OutOfOrderSequenceNumber, InvalidProducerEpoch, InvalidTimestamp)
"""The errors that the log itself raises. The handler does not await between the append and the
answer, so the answer has the log start at the time of the append."""


class _Place(NamedTuple):
    """The position of a batch's result: the index of its topic, and its index in the topic."""

    topic: int
    partition: int


class _Waiting(NamedTuple):
    """An appended batch that waits for the disk or replicas; a failure replaces its result."""

    place: _Place
    partition: Partition
    produced: ProduceResult


class _Failed(NamedTuple):
    """A batch that was not appended or is not acknowledged."""

    place: _Place
    error: KafkaError
    log_start: int = -1
    """The log start, which a producer needs after a gap; -1 for other errors."""


_Answered: TypeAlias = tuple[str | bytes, list[tuple[int, int, int, int]]]
"""A topic, and each partition's index, base offset, append time and log start."""


class _Appended(NamedTuple):
    """The results of the batches of one request."""

    topics: list[_Answered]
    waiting: list[_Waiting]
    failed: list[_Failed]

    @property
    def batch_count(self) -> int:
        return sum(len(answers) for _, answers in self.topics)


class _Rules(NamedTuple):
    """The rules for a request, which depend on its version and its transaction."""

    transactional_id: str | None = None
    zstd_allowed: bool = True
    transaction_support: int = ADDS_PARTITIONS
    verified: Mapping[TopicPartition, Verified] = MappingProxyType({})
    is_usual: bool = True
    """True if the answer may be the values of a response."""


_USUAL: Final = _Rules()
_Batch: TypeAlias = tuple[Buffer, BatchHeader]
"""A checked batch and its header."""
_Topic: TypeAlias = tuple[str | bytes, Iterable[tuple[int, Buffer]]]
"""The name or id of a topic, and its partitions with their batches."""
_Topics: TypeAlias = list[tuple[str | bytes, list[tuple[int, Buffer]]]]
"""The same for all topics of a request in the usual shape."""
_Answer: TypeAlias = ProduceResponse | Values | None
"""A response, the values of a response in the usual shape, or None without acknowledgement."""


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


def produce_values(
    context: Context, transactional_id: str | None, acks: int, timeout_ms: int, topics: _Topics
) -> Slow[_Answer | Unfinished[_Answer]] | Unfinished[_Answer] | _Answer:
    """Append the batches of a request in the usual shape that expects a response.

    Transactional batches must not need verification.
    """
    if acks not in _ACKNOWLEDGED:
        return None
    rules = _USUAL
    if transactional_id is not None:
        if not _are_in_open_transactions(context, transactional_id, topics):
            return None
        rules = _Rules(transactional_id)
    return run_until_wait(_produce(context, acks, timeout_ms, topics, rules))


_FLAT: Final = Flat(
    function=produce_values,
    since=7,
    request_few=("topic_data", "partition_data"),
    request_texts=("transactional_id",),
    response_few=("responses", "partition_responses"),
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
def produce(context: Context, request: ProduceRequest) -> Steps[_Answer | Unfinished[_Answer]]:
    if request.acks not in _ACKS:
        raise InvalidRequiredAcks
    verified: Verifications = {}
    if request.transactional_id is not None:
        verified = yield partial(_verify, context, request, request.transactional_id)
    rules = _Rules(
        request.transactional_id,
        request.zstd_allowed,
        request.transaction_support,
        verified,
        is_usual=False,
    )
    topics: Iterable[_Topic] = (
        (
            topic.topic_id if request.uses_topic_ids else topic.name,
            ((data.index, data.records) for data in topic.partition_data),
        )
        for topic in request.topic_data
    )
    return (yield from _produce(context, request.acks, request.timeout_ms, topics, rules))


def _produce(
    context: Context, acks: int, timeout_ms: int, topics: Iterable[_Topic], rules: _Rules
) -> Steps[_Answer | Unfinished[_Answer]]:
    """Append the batches of one request."""
    replicas, now_ms = context.replicas, context.services.clock.now_ms
    answered: list[_Answered] = []
    waiting: list[_Waiting] = []
    failed: list[_Failed] = []
    cost = 0
    for topic, requested in topics:
        answers: list[tuple[int, int, int, int]] = []
        for index, records in requested:
            if cost >= _TURN_COST:
                yield give_way
                cost = 0
            cost += 1 + len(records or b"") // _COST_BYTES
            try:
                partition = _find(context, replicas, topic, index)
                config = partition.log.config
                header = check_produced(
                    records,
                    max_message_bytes=config.max_message_bytes,
                    transactional_id=rules.transactional_id,
                    zstd_allowed=rules.zstd_allowed,
                )
                is_guarded = header.attributes & TRANSACTIONAL
                guard = _guard_of(rules, partition) if is_guarded else None
                batch = _check_records(replicas, partition, records, header, now_ms)
                if isinstance(batch, Slow):
                    batch = yield batch.finish
                records, header = batch
                done = replicas.append(partition, records, header, acks, now_ms(), guard=guard)
            except KafkaError as error:
                place = _Place(len(answered), len(answers))
                log_start = _log_start(replicas, topic, index, error)
                if isinstance(error, InvalidTimestamp) and replicas.checks_records and acks:
                    yield partial(
                        _name_records, replicas, partition, records, header, now_ms, error
                    )
                failed.append(_Failed(place, error, log_start))
                answers.append((index, -1, -1, log_start))
                continue
            base_offset, appended_ms, log_start, end, _, _, _, is_stored = done
            if not is_stored or (acks == ACKS_ALL and partition.log.high_watermark < end):
                place = _Place(len(answered), len(answers))
                waiting.append(_Waiting(place, partition, done))
            answers.append((index, base_offset, appended_ms, log_start))
        answered.append((topic, answers))
    if rules.is_usual and not failed and not waiting:
        return (answered,)
    appended = _Appended(answered, waiting, failed)
    if waiting:
        deadline = replicas.now() + timeout_ms / 1000
        wait = partial(_wait_acknowledged, context, acks, deadline, appended, rules)
        if acks:
            return Unfinished(wait)
        yield wait
        return None
    steps = _answer(context, acks, appended, rules)
    if appended.batch_count <= _TURN_COST:
        return run_steps(steps)
    answer: _Answer = yield partial(run_in_slices, steps)
    return answer


def _find(context: Context, replicas: ReplicaService, topic: str | bytes, index: int) -> Partition:
    """Return a partition that the client may write to."""
    if context.services.authorizer is not None:
        _check_may_write(context, topic)
    partition = replicas.partitions.look_up(topic, index)
    if partition.topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
        raise InvalidTopicException
    return partition


def _check_records(
    replicas: ReplicaService,
    partition: Partition,
    records: Buffer,
    header: BatchHeader,
    now_ms: Callable[[], int],
) -> _Batch | Slow[_Batch]:
    """Check a batch, with large records in a thread, which also recompresses them if needed."""
    config = partition.log.config
    if replicas.checks_records or config.cleanup_compact:
        checked = replicas.unpacker.check_here(records, header, keys=config.cleanup_compact)
        if checked is None:
            return Slow(partial(_check_in_thread, replicas, partition, records, header, now_ms))
        _, _, min_delta, max_delta = checked
        if min_delta < 0:
            config.check_oldest(header, min_delta, now_ms())
        if header.base_timestamp + max_delta != header.max_timestamp:
            records, header = correct_timestamp(records, header, max_delta)
    if config.compression_type != "producer":
        return Slow(partial(replicas.recompress, partition, records, header))
    return records, header


async def _check_in_thread(
    replicas: ReplicaService,
    partition: Partition,
    records: Buffer,
    header: BatchHeader,
    now_ms: Callable[[], int],
) -> _Batch:
    config = partition.config
    keys = config.cleanup_compact
    checked = await replicas.unpacker.check_in_thread(records, header, keys=keys)
    if checked.min_delta < 0:
        config.check_oldest(header, checked.min_delta, now_ms())
    if header.base_timestamp + checked.max_delta != header.max_timestamp:
        records, header = correct_timestamp(records, header, checked.max_delta)
    if config.compression_type != "producer":
        return await replicas.recompress(partition, records, header)
    return records, header


async def _name_records(
    replicas: ReplicaService,
    partition: Partition,
    records: Buffer,
    header: BatchHeader,
    now_ms: Callable[[], int],
    error: InvalidTimestamp,
) -> None:
    """Add to the error of a batch each record that caused it, if the batch is not too large.

    Without them, a producer fails every record of the batch for its timestamp.
    """
    if error.record_errors or header.record_count > _NAMED_AT_MOST:
        return
    config, now = partition.config, now_ms()
    limits = (now, config.timestamp_before_max_ms, config.timestamp_after_max_ms)
    error.record_errors = await replicas.unpacker.find_untimely(records, header, *limits)


def _answer(
    context: Context, acks: int, appended: _Appended, rules: _Rules
) -> Generator[None, None, _Answer]:
    """Return the response to a request, pausing after each partition.

    Raises Disconnect if a batch that needs no acknowledgement has failed.
    """
    if not acks:
        _close_on_error(appended)
        return None
    if rules.is_usual and not appended.failed:
        return (appended.topics,)
    response = ProduceResponse()
    for topic, answered in appended.topics:
        name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else ("", topic)
        answers = TopicAnswer(name=name, topic_id=topic_id)
        response.responses.append(answers)
        for index, base_offset, append_time_ms, log_start in answered:
            answers.partition_responses.append(
                Answer(
                    index=index,
                    base_offset=base_offset,
                    log_append_time_ms=append_time_ms,
                    log_start_offset=log_start,
                    current_leader=_NO_LEADER,
                )
            )
            yield
    for place, error, log_start in appended.failed:
        answers = response.responses[place.topic]
        index = answers.partition_responses[place.partition].index
        answer = _refuse_partition(index, error, log_start)
        answers.partition_responses[place.partition] = answer
        add_leader_hint(
            context,
            error,
            topic=answers.name,
            topic_id=answers.topic_id,
            partition=index,
            answer=answer,
            response=response,
        )
        yield
    return response


def _close_on_error(appended: _Appended) -> None:
    for place, error, _ in appended.failed:
        topic, answers = appended.topics[place.topic]
        index, *_ = answers[place.partition]
        raise Disconnect(
            f"produce without acknowledgement failed topic={topic!r} "
            f"partition={index} error={error.code}"
        )


def _check_may_write(context: Context, topic: str | bytes) -> None:
    """Reject a topic that the client may not write, whether or not it exists."""
    name = topic if isinstance(topic, str) else context.image.topic_name(topic)
    if name is not None:
        context.check_allowed("Write", "Topic", name)


def _log_start(replicas: ReplicaService, topic: str | bytes, index: int, error: KafkaError) -> int:
    """Return the log start, which a producer needs after a gap; -1 for other errors."""
    if not isinstance(error, _ERRORS_WITH_LOG_START):
        return -1
    with suppress(KafkaError):  # the topic was deleted while a thread checked the batch
        return replicas.partitions.look_up(topic, index).log.log_start
    return -1


async def _verify(
    context: Context, request: ProduceRequest, transactional_id: str
) -> Verifications:
    """Verify the transactional batches of a request; the append does all other checks.

    Partitions to which the client may not write are left out: the transaction would include them,
    and its end would write markers to them.
    """
    batches: list[tuple[Partition, TransactionalBatch]] = []
    is_allowed = context.is_allowed("Write", "TransactionalId", transactional_id)
    for topic in request.topic_data:
        topic_ref = topic.topic_id if request.uses_topic_ids else topic.name
        for requested in topic.partition_data:
            batch = _transactional_batch(requested.records)
            if batch is not None:
                if not is_allowed:
                    raise TransactionalIdAuthorizationFailed
                with suppress(KafkaError):  # The append will report the error.
                    partition = _find(context, context.replicas, topic_ref, requested.index)
                    batches.append((partition, batch))
    if not batches:
        return {}
    if len({batch[:2] for _, batch in batches}) > 1:
        raise InvalidProducerIdMapping("the batches of a transaction have several producers")
    return await verify(context, transactional_id, batches, request.transaction_support)


def _are_in_open_transactions(context: Context, transactional_id: str, topics: _Topics) -> bool:
    """Return whether each batch continues a transaction, so that no verification is needed."""
    if not (
        context.config.transaction_partition_verification_enable
        and context.is_allowed("Write", "TransactionalId", transactional_id)
    ):
        return False
    partitions, first = context.replicas.partitions, None
    for topic, requested in topics:
        for index, records in requested:
            batch = _transactional_batch(records)
            if batch is None or (first is not None and batch[:2] != first):
                return False
            first = batch[:2]
            partition = partitions.look_up(topic, index)
            if partition.leader is None or not is_open(
                partition.log.producers.get(batch.producer_id), batch.epoch
            ):
                return False
    return True


def _transactional_batch(records: Buffer | None) -> TransactionalBatch | None:
    if records is None or len(records) < HEADER_SIZE:
        return None
    header = parse(records)
    if not header.is_transactional or header.is_control or header.producer_id < 0:
        return None
    return TransactionalBatch(header.producer_id, header.producer_epoch, header.base_sequence)


def _guard_of(rules: _Rules, partition: Partition) -> Guard | None:
    """Return the guard for an append, or raise the verification error that the producer gets.

    Producers of any version resend a batch after NOT_ENOUGH_REPLICAS, without new metadata.
    """
    guard, error = rules.verified.get(partition.log.partition, UNVERIFIED)
    if error is None:
        return guard
    is_busy = isinstance(error, ConcurrentTransactions)
    if isinstance(error, _REPEATED) or (is_busy and rules.transaction_support < ADDS_PARTITIONS):
        raise NotEnoughReplicas(f"the transaction coordinator answered {error}")
    if isinstance(error, InvalidTxnState):
        raise InvalidTxnState("the partition was not added to the transaction")
    raise error


async def _wait_acknowledged(
    context: Context, acks: int, deadline: float, appended: _Appended, rules: _Rules
) -> _Answer:
    """Return the response once every batch is acknowledged, has failed or missed the deadline."""
    replicas = context.replicas
    for place, partition, produced in appended.waiting:
        try:
            await replicas.wait_acknowledged(partition, produced, acks, deadline)
        except KafkaError as error:
            appended.failed.append(_Failed(place, error))
    answer = _answer(context, acks, appended, rules)
    return await run_by_size(answer, appended.batch_count, _TURN_COST)
