"""Converts the five requests about states to values by share partition, and back.

A request concerns one group. Coordinators read requests and write responses; persisters do the
opposite.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import Never, Protocol, TypeAlias, TypeVar

from kwire.codec.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from kwire.codec.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from kwire.codec.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
)
from kwire.codec.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from kwire.codec.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kwire.errors import NONE, KafkaError, error_class
from kwire.share.keys import SharePartition
from kwire.share.persister import (
    NO_LEADER_EPOCH,
    InitialState,
    ReadState,
    StateBatch,
    Summary,
)
from kwire.share.state.model import StateWrite

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P")
T_co = TypeVar("T_co", covariant=True)

Results: TypeAlias = Mapping[SharePartition, T | KafkaError]
"""The result or error of each share partition of a request."""
Items: TypeAlias = Iterator[tuple[SharePartition, T]]
"""The part of a request about each share partition."""
Answering: TypeAlias = Generator[None, None, T]
"""Builds a response in steps."""

_Request: TypeAlias = (
    InitializeShareGroupStateRequest
    | ReadShareGroupStateRequest
    | WriteShareGroupStateRequest
    | DeleteShareGroupStateRequest
    | ReadShareGroupStateSummaryRequest
)
_Response: TypeAlias = (
    InitializeShareGroupStateResponse
    | ReadShareGroupStateResponse
    | WriteShareGroupStateResponse
    | DeleteShareGroupStateResponse
    | ReadShareGroupStateSummaryResponse
)

_RequestBatch: TypeAlias = (
    WriteShareGroupStateRequest.WriteStateData.PartitionData.StateBatch
    | ReadShareGroupStateResponse.ReadStateResult.PartitionResult.StateBatch
)

_ReadResult: TypeAlias = ReadShareGroupStateResponse.ReadStateResult.PartitionResult
_SummaryResult: TypeAlias = (
    ReadShareGroupStateSummaryResponse.ReadStateSummaryResult.PartitionResult
)


class _NewTopic(Protocol[P, T_co]):
    """The class of a topic in a request or response."""

    def __call__(self, *, topic_id: bytes, partitions: list[P]) -> T_co: ...


class _NewResult(Protocol[T_co]):
    """The class of a partition in a response that contains only its error."""

    def __call__(self, *, partition: int, error_code: int, error_message: str | None) -> T_co: ...


def is_complete(request: _Request) -> bool:
    """Return whether a request names a group, and at least one partition of each topic.

    Any other request gets an empty response, as in Kafka.
    """
    return bool(request.group_id and request.topics) and all(
        topic.partitions for topic in request.topics
    )


def _state_batches(batches: Iterable[_RequestBatch]) -> list[StateBatch]:
    return [
        StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
        for b in batches
    ]


def share_partitions(request: _Request) -> Items[None]:
    """Yield the share partitions that a request names."""
    for topic in request.topics:
        for each in topic.partitions:
            yield SharePartition(request.group_id, topic.topic_id, each.partition), None


def refusing(request: _Request, error: KafkaError) -> Results[Never]:
    """Return the same error for each share partition."""
    return {of: error for of, _ in share_partitions(request)}


def _topics(
    new_topic: _NewTopic[P, T],
    partitions: Iterable[SharePartition],
    new_partition: Callable[[SharePartition], P],
) -> list[T]:
    """Return the topics of a request."""
    by_topic: dict[bytes, list[P]] = {}
    for of in partitions:
        by_topic.setdefault(of.topic_id, []).append(new_partition(of))
    return [new_topic(topic_id=topic_id, partitions=of) for topic_id, of in by_topic.items()]


def _answering(
    new_topic: _NewTopic[P, T],
    results: Results[R],
    new_partition: Callable[[SharePartition, R | KafkaError], P],
) -> Answering[list[T]]:
    """Build the topics of a response."""
    topics: list[T] = []
    by_topic: dict[bytes, list[P]] = {}
    for of, result in results.items():
        partitions = by_topic.get(of.topic_id)
        if partitions is None:
            partitions = by_topic[of.topic_id] = []
            topics.append(new_topic(topic_id=of.topic_id, partitions=partitions))
        partitions.append(new_partition(of, result))
        yield
    return topics


def _only_error(new_result: _NewResult[P]) -> Callable[[SharePartition, object], P]:
    """Return a function that converts a partition's error to its part of a response."""

    def new_partition(of: SharePartition, result: object) -> P:
        code, text = _error(result)
        return new_result(partition=of.partition, error_code=code, error_message=text)

    return new_partition


def _error(result: object) -> tuple[int, str | None]:
    return (result.code, result.text) if isinstance(result, KafkaError) else (NONE, None)


def _failure(code: int, text: str | None) -> KafkaError | None:
    return None if code == NONE else error_class(code)(text)


def failures(group_id: str, response: _Response) -> dict[SharePartition, KafkaError | None]:
    """Return the error of each share partition in a response."""
    return {
        SharePartition(group_id, topic.topic_id, each.partition): _failure(
            each.error_code, each.error_message
        )
        for topic in response.results
        for each in topic.partitions
    }


# InitializeShareGroupState


def initialize_request(
    group_id: str, states: Mapping[SharePartition, InitialState]
) -> InitializeShareGroupStateRequest:
    topic = InitializeShareGroupStateRequest.InitializeStateData
    topics = _topics(
        topic,
        states,
        lambda of: topic.PartitionData(
            partition=of.partition,
            state_epoch=states[of].state_epoch,
            start_offset=states[of].start_offset,
        ),
    )
    return InitializeShareGroupStateRequest(group_id=group_id, topics=topics)


def initial_states(request: InitializeShareGroupStateRequest) -> Items[InitialState]:
    for topic in request.topics:
        for each in topic.partitions:
            of = SharePartition(request.group_id, topic.topic_id, each.partition)
            yield of, InitialState(each.state_epoch, each.start_offset)


def initialize_response(results: Results[None]) -> Answering[InitializeShareGroupStateResponse]:
    topic = InitializeShareGroupStateResponse.InitializeStateResult
    topics = _answering(topic, results, _only_error(topic.PartitionResult))
    return InitializeShareGroupStateResponse(results=(yield from topics))


# ReadShareGroupState


def read_request(
    group_id: str, leader_epochs: Mapping[SharePartition, int]
) -> ReadShareGroupStateRequest:
    topic = ReadShareGroupStateRequest.ReadStateData
    topics = _topics(
        topic,
        leader_epochs,
        lambda of: topic.PartitionData(partition=of.partition, leader_epoch=leader_epochs[of]),
    )
    return ReadShareGroupStateRequest(group_id=group_id, topics=topics)


def leader_epochs(request: ReadShareGroupStateRequest) -> Items[int]:
    for topic in request.topics:
        for each in topic.partitions:
            of = SharePartition(request.group_id, topic.topic_id, each.partition)
            yield of, each.leader_epoch


def read_response(results: Results[ReadState]) -> Answering[ReadShareGroupStateResponse]:
    topic = ReadShareGroupStateResponse.ReadStateResult

    def new_partition(of: SharePartition, result: ReadState | KafkaError) -> _ReadResult:
        code, text = _error(result)
        state = result if isinstance(result, ReadState) else ReadState(code, 0, 0)
        return topic.PartitionResult(
            partition=of.partition,
            error_code=code,
            error_message=text,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=[
                topic.PartitionResult.StateBatch(
                    first_offset=batch.first_offset,
                    last_offset=batch.last_offset,
                    delivery_state=batch.delivery_state,
                    delivery_count=batch.delivery_count,
                )
                for batch in state.batches
            ],
        )

    topics = _answering(topic, results, new_partition)
    return ReadShareGroupStateResponse(results=(yield from topics))


def read_results(
    group_id: str, response: ReadShareGroupStateResponse
) -> dict[SharePartition, ReadState | KafkaError]:
    errors = failures(group_id, response)
    return {
        (of := SharePartition(group_id, topic.topic_id, each.partition)): errors[of]
        or ReadState(
            NONE,
            each.state_epoch,
            each.start_offset,
            _state_batches(each.state_batches),
        )
        for topic in response.results
        for each in topic.partitions
    }


# WriteShareGroupState


def write_request(
    group_id: str, writes: Mapping[SharePartition, StateWrite]
) -> WriteShareGroupStateRequest:
    topic = WriteShareGroupStateRequest.WriteStateData
    topics = _topics(topic, writes, lambda of: _partition_data(of, writes[of]))
    return WriteShareGroupStateRequest(group_id=group_id, topics=topics)


def _partition_data(
    of: SharePartition, write: StateWrite
) -> WriteShareGroupStateRequest.WriteStateData.PartitionData:
    partition = WriteShareGroupStateRequest.WriteStateData.PartitionData
    return partition(
        partition=of.partition,
        state_epoch=write.state_epoch,
        leader_epoch=write.leader_epoch,
        start_offset=write.start_offset,
        delivery_complete_count=write.delivery_complete_count,
        state_batches=[
            partition.StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in write.batches
        ],
    )


def writes(request: WriteShareGroupStateRequest) -> Items[StateWrite]:
    for topic in request.topics:
        for each in topic.partitions:
            of = SharePartition(request.group_id, topic.topic_id, each.partition)
            yield (
                of,
                StateWrite(
                    each.state_epoch,
                    each.leader_epoch,
                    each.start_offset,
                    each.delivery_complete_count,
                    _state_batches(each.state_batches),
                ),
            )


def write_response(results: Results[None]) -> Answering[WriteShareGroupStateResponse]:
    topic = WriteShareGroupStateResponse.WriteStateResult
    topics = _answering(topic, results, _only_error(topic.PartitionResult))
    return WriteShareGroupStateResponse(results=(yield from topics))


# DeleteShareGroupState


def delete_request(
    group_id: str, partitions: Collection[SharePartition]
) -> DeleteShareGroupStateRequest:
    topic = DeleteShareGroupStateRequest.DeleteStateData
    topics = _topics(topic, partitions, lambda of: topic.PartitionData(partition=of.partition))
    return DeleteShareGroupStateRequest(group_id=group_id, topics=topics)


def delete_response(results: Results[None]) -> Answering[DeleteShareGroupStateResponse]:
    topic = DeleteShareGroupStateResponse.DeleteStateResult
    topics = _answering(topic, results, _only_error(topic.PartitionResult))
    return DeleteShareGroupStateResponse(results=(yield from topics))


# ReadShareGroupStateSummary


def summary_request(
    group_id: str, partitions: Collection[SharePartition]
) -> ReadShareGroupStateSummaryRequest:
    topic = ReadShareGroupStateSummaryRequest.ReadStateSummaryData
    topics = _topics(
        topic,
        partitions,
        lambda of: topic.PartitionData(partition=of.partition, leader_epoch=NO_LEADER_EPOCH),
    )
    return ReadShareGroupStateSummaryRequest(group_id=group_id, topics=topics)


def summary_response(
    results: Results[Summary],
) -> Answering[ReadShareGroupStateSummaryResponse]:
    topic = ReadShareGroupStateSummaryResponse.ReadStateSummaryResult

    def new_partition(of: SharePartition, result: Summary | KafkaError) -> _SummaryResult:
        code, text = _error(result)
        state = result if isinstance(result, Summary) else Summary(code, 0, 0)
        return topic.PartitionResult(
            partition=of.partition,
            error_code=code,
            error_message=text,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
        )

    topics = _answering(topic, results, new_partition)
    return ReadShareGroupStateSummaryResponse(results=(yield from topics))


def summary_results(
    group_id: str, response: ReadShareGroupStateSummaryResponse
) -> dict[SharePartition, Summary | KafkaError]:
    errors = failures(group_id, response)
    return {
        (of := SharePartition(group_id, topic.topic_id, each.partition)): errors[of]
        or Summary(
            NONE,
            each.state_epoch,
            each.start_offset,
            each.leader_epoch,
            each.delivery_complete_count,
        )
        for topic in response.results
        for each in topic.partitions
    }
