"""WriteTxnMarkers (API key 27): ends transactions in partitions that this broker leads.

Transaction coordinators and administrators send it. Each partition succeeds or fails alone; the
response waits until the markers are replicated. The results of one producer's markers are merged,
as in Kafka.
"""

from collections.abc import Generator

from kwire.codec.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kwire.drive import Slices, run_in_slices, run_steps
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.replica.transaction_ports import TransactionMarker
from kwire.types import TopicPartition

RequestMarker = WriteTxnMarkersRequest.WritableTxnMarker
Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = Result.WritableTxnMarkerTopicResult
PartitionResult = TopicResult.WritableTxnMarkerPartitionResult

Codes = dict[int, dict[str, dict[int, int]]]
"""The error code by producer id, topic and partition."""


def refuse(request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    codes: Codes = {}
    for marker in request.markers:
        for partition in _partitions(marker):
            _set(codes, marker.producer_id, partition, error.code)
    return _answer(codes)


@handles(WriteTxnMarkersRequest, refuse=refuse)
async def write_txn_markers(
    context: Context, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    if not context.is_allowed("Alter", "Cluster", CLUSTER) and not context.is_allowed(
        "ClusterAction", "Cluster", CLUSTER
    ):
        raise ClusterAuthorizationFailed
    slices = Slices()
    markers = [
        TransactionMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            partitions=_partitions(marker),
            transaction_version=marker.transaction_version,
        )
        for marker in request.markers
    ]
    await slices.pause()
    codes: Codes = {}
    results = await context.broker.markers.write_markers(markers)
    for marker, result in zip(markers, results, strict=True):
        for partition, code in result.items():
            _set(codes, marker.producer_id, partition, code)
            await slices.pause()
    return await run_in_slices(_answering(codes))


def _partitions(marker: RequestMarker) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index)
        for topic in marker.topics
        for index in topic.partition_indexes
    ]


def _set(codes: Codes, producer_id: int, partition: TopicPartition, code: int) -> None:
    of_producer = codes.setdefault(producer_id, {})
    of_producer.setdefault(partition.topic, {})[partition.partition] = code


def _answer(codes: Codes) -> WriteTxnMarkersResponse:
    return run_steps(_answering(codes))


def _answering(codes: Codes) -> Generator[None, None, WriteTxnMarkersResponse]:
    response = WriteTxnMarkersResponse()
    for producer_id, topics in codes.items():
        result = Result(producer_id=producer_id)
        response.markers.append(result)
        for name, partitions in topics.items():
            answers: list[PartitionResult] = []
            result.topics.append(TopicResult(name=name, partitions=answers))
            for index, code in partitions.items():
                answers.append(PartitionResult(partition_index=index, error_code=code))
                yield
    return response
