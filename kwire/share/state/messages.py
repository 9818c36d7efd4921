"""The five requests about share partitions' states, as values by share partition and back.

A request is about one group. Coordinators read requests and write responses, persisters the other
way round.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Never, TypeAlias, TypeVar

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
from kwire.errors import BY_CODE, NONE, KafkaError, UnknownServerError
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


def is_complete(request: _Request) -> bool:
    """Return whether a request names a group, and partitions for each of its topics.

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


def _by_topic(partitions: Iterable[SharePartition]) -> dict[bytes, list[SharePartition]]:
    topics: dict[bytes, list[SharePartition]] = {}
    for of in partitions:
        topics.setdefault(of.topic_id, []).append(of)
    return topics


def _error(result: object) -> tuple[int, str | None]:
    return (result.code, result.text) if isinstance(result, KafkaError) else (NONE, None)


def _failure(code: int, text: str | None) -> KafkaError | None:
    return None if code == NONE else BY_CODE.get(code, UnknownServerError)(text)


def _failures(group_id: str, response: _Response) -> dict[SharePartition, KafkaError | None]:
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
    return InitializeShareGroupStateRequest(
        group_id=group_id,
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[
                    topic.PartitionData(
                        partition=of.partition,
                        state_epoch=states[of].state_epoch,
                        start_offset=states[of].start_offset,
                    )
                    for of in partitions
                ],
            )
            for topic_id, partitions in _by_topic(states).items()
        ],
    )


def initial_states(request: InitializeShareGroupStateRequest) -> Items[InitialState]:
    for topic in request.topics:
        for each in topic.partitions:
            of = SharePartition(request.group_id, topic.topic_id, each.partition)
            yield of, InitialState(each.state_epoch, each.start_offset)


def initialize_response(results: Results[None]) -> Answering[InitializeShareGroupStateResponse]:
    topic = InitializeShareGroupStateResponse.InitializeStateResult
    response = InitializeShareGroupStateResponse()
    topics: dict[bytes, InitializeShareGroupStateResponse.InitializeStateResult] = {}
    for of, result in results.items():
        if of.topic_id not in topics:
            topics[of.topic_id] = topic(topic_id=of.topic_id)
            response.results.append(topics[of.topic_id])
        code, text = _error(result)
        topics[of.topic_id].partitions.append(
            topic.PartitionResult(partition=of.partition, error_code=code, error_message=text)
        )
        yield
    return response


def initialize_results(
    group_id: str, response: InitializeShareGroupStateResponse
) -> dict[SharePartition, KafkaError | None]:
    return _failures(group_id, response)


# ReadShareGroupState


def read_request(
    group_id: str, leader_epochs: Mapping[SharePartition, int]
) -> ReadShareGroupStateRequest:
    topic = ReadShareGroupStateRequest.ReadStateData
    return ReadShareGroupStateRequest(
        group_id=group_id,
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[
                    topic.PartitionData(partition=of.partition, leader_epoch=leader_epochs[of])
                    for of in partitions
                ],
            )
            for topic_id, partitions in _by_topic(leader_epochs).items()
        ],
    )


def leader_epochs(request: ReadShareGroupStateRequest) -> Items[int]:
    for topic in request.topics:
        for each in topic.partitions:
            of = SharePartition(request.group_id, topic.topic_id, each.partition)
            yield of, each.leader_epoch


def read_response(results: Results[ReadState]) -> Answering[ReadShareGroupStateResponse]:
    topic = ReadShareGroupStateResponse.ReadStateResult
    response = ReadShareGroupStateResponse()
    topics: dict[bytes, ReadShareGroupStateResponse.ReadStateResult] = {}
    for of, result in results.items():
        if of.topic_id not in topics:
            topics[of.topic_id] = topic(topic_id=of.topic_id)
            response.results.append(topics[of.topic_id])
        code, text = _error(result)
        state = result if isinstance(result, ReadState) else ReadState(code, 0, 0)
        topics[of.topic_id].partitions.append(
            topic.PartitionResult(
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
        )
        yield
    return response


def read_results(
    group_id: str, response: ReadShareGroupStateResponse
) -> dict[SharePartition, ReadState | KafkaError]:
    failures = _failures(group_id, response)
    return {
        (of := SharePartition(group_id, topic.topic_id, each.partition)): failures[of]
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
    return WriteShareGroupStateRequest(
        group_id=group_id,
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[_partition_data(of, writes[of]) for of in partitions],
            )
            for topic_id, partitions in _by_topic(writes).items()
        ],
    )


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
    response = WriteShareGroupStateResponse()
    topics: dict[bytes, WriteShareGroupStateResponse.WriteStateResult] = {}
    for of, result in results.items():
        if of.topic_id not in topics:
            topics[of.topic_id] = topic(topic_id=of.topic_id)
            response.results.append(topics[of.topic_id])
        code, text = _error(result)
        topics[of.topic_id].partitions.append(
            topic.PartitionResult(partition=of.partition, error_code=code, error_message=text)
        )
        yield
    return response


def write_results(
    group_id: str, response: WriteShareGroupStateResponse
) -> dict[SharePartition, KafkaError | None]:
    return _failures(group_id, response)


# DeleteShareGroupState


def delete_request(
    group_id: str, partitions: Collection[SharePartition]
) -> DeleteShareGroupStateRequest:
    topic = DeleteShareGroupStateRequest.DeleteStateData
    return DeleteShareGroupStateRequest(
        group_id=group_id,
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[topic.PartitionData(partition=of.partition) for of in of_topic],
            )
            for topic_id, of_topic in _by_topic(partitions).items()
        ],
    )


def delete_response(results: Results[None]) -> Answering[DeleteShareGroupStateResponse]:
    topic = DeleteShareGroupStateResponse.DeleteStateResult
    response = DeleteShareGroupStateResponse()
    topics: dict[bytes, DeleteShareGroupStateResponse.DeleteStateResult] = {}
    for of, result in results.items():
        if of.topic_id not in topics:
            topics[of.topic_id] = topic(topic_id=of.topic_id)
            response.results.append(topics[of.topic_id])
        code, text = _error(result)
        topics[of.topic_id].partitions.append(
            topic.PartitionResult(partition=of.partition, error_code=code, error_message=text)
        )
        yield
    return response


def delete_results(
    group_id: str, response: DeleteShareGroupStateResponse
) -> dict[SharePartition, KafkaError | None]:
    return _failures(group_id, response)


# ReadShareGroupStateSummary


def summary_request(
    group_id: str, partitions: Collection[SharePartition]
) -> ReadShareGroupStateSummaryRequest:
    topic = ReadShareGroupStateSummaryRequest.ReadStateSummaryData
    return ReadShareGroupStateSummaryRequest(
        group_id=group_id,
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[
                    topic.PartitionData(partition=of.partition, leader_epoch=NO_LEADER_EPOCH)
                    for of in of_topic
                ],
            )
            for topic_id, of_topic in _by_topic(partitions).items()
        ],
    )


def summary_response(
    results: Results[Summary],
) -> Answering[ReadShareGroupStateSummaryResponse]:
    topic = ReadShareGroupStateSummaryResponse.ReadStateSummaryResult
    response = ReadShareGroupStateSummaryResponse()
    topics: dict[bytes, ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = {}
    for of, result in results.items():
        if of.topic_id not in topics:
            topics[of.topic_id] = topic(topic_id=of.topic_id)
            response.results.append(topics[of.topic_id])
        code, text = _error(result)
        state = result if isinstance(result, Summary) else Summary(code, 0, 0)
        topics[of.topic_id].partitions.append(
            topic.PartitionResult(
                partition=of.partition,
                error_code=code,
                error_message=text,
                state_epoch=state.state_epoch,
                leader_epoch=state.leader_epoch,
                start_offset=state.start_offset,
                delivery_complete_count=state.delivery_complete_count,
            )
        )
        yield
    return response


def summary_results(
    group_id: str, response: ReadShareGroupStateSummaryResponse
) -> dict[SharePartition, Summary | KafkaError]:
    failures = _failures(group_id, response)
    return {
        (of := SharePartition(group_id, topic.topic_id, each.partition)): failures[of]
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
