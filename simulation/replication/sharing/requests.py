"""The requests of share members as messages, and what their responses say."""

from collections.abc import Collection, Mapping, Sequence

import attrs

from kwire import errors
from kwire.codec.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from kwire.codec.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from kwire.records.header import headers
from kwire.records.iterate import records
from simulation.replication.sharing.book import RENEW, offsets_of

Answer = ShareFetchResponse | ShareAcknowledgeResponse
Batch = tuple[int, int, Sequence[int]]
"""First offset, last offset and types of acknowledgements: one for all records, or one for each."""
Batches = Mapping[int, Sequence[Batch]]
"""The acknowledgements of a request by partition."""
FetchPartition = ShareFetchRequest.FetchTopic.FetchPartition
AcknowledgePartition = ShareAcknowledgeRequest.AcknowledgeTopic.AcknowledgePartition


@attrs.frozen
class Held:
    """Acquired records of one partition; both offsets are inclusive."""

    index: int
    first: int
    last: int
    has_record: frozenset[int]
    """The offsets that have a record; the others are those of markers."""
    arrived_at: float


def fetch_topic(
    topic_id: bytes, indexes: Collection[int], batches: Batches
) -> ShareFetchRequest.FetchTopic:
    """Return the part of a ShareFetch that names partitions, with acknowledgements."""
    partitions = []
    for index in sorted(indexes):
        acknowledged = [
            FetchPartition.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=list(types)
            )
            for first, last, types in batches.get(index, ())
        ]
        partition = FetchPartition(partition_index=index, acknowledgement_batches=acknowledged)
        partitions.append(partition)
    return ShareFetchRequest.FetchTopic(topic_id=topic_id, partitions=partitions)


def acknowledge_topic(
    topic_id: bytes, batches: Batches
) -> ShareAcknowledgeRequest.AcknowledgeTopic:
    """Return the part of a ShareAcknowledge with the acknowledgements."""
    partitions = []
    for index, each in batches.items():
        acknowledged = [
            AcknowledgePartition.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=list(types)
            )
            for first, last, types in each
        ]
        partition = AcknowledgePartition(
            partition_index=index, acknowledgement_batches=acknowledged
        )
        partitions.append(partition)
    return ShareAcknowledgeRequest.AcknowledgeTopic(topic_id=topic_id, partitions=partitions)


def renews(batches: Batches) -> bool:
    """Return whether a request with these acknowledgements renews locks."""
    return any(RENEW in types for each in batches.values() for _, _, types in each)


def kinds_of(batches: Sequence[Batch]) -> dict[int, int]:
    """Return the types by offset."""
    return {
        offset: types[0] if len(types) == 1 else types[offset - first]
        for first, last, types in batches
        for offset in range(first, last + 1)
    }


def code_of(answer: Answer, index: int) -> int | None:
    """Return the result of a partition's acknowledgements; None if nothing says what it is."""
    if answer.error_code != errors.NONE:
        return None
    if isinstance(answer, ShareAcknowledgeResponse):
        codes = {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}
    else:
        codes = {
            p.partition_index: p.acknowledge_error_code
            for t in answer.responses
            for p in t.partitions
        }
    return codes.get(index)


def acquired_of(
    answer: Answer,
) -> list[tuple[int, list[tuple[int, int, int]], dict[int, bytes]]]:
    """Return the acquired batches of each partition, and the values of their records by offset."""
    if isinstance(answer, ShareAcknowledgeResponse):
        return []
    answers = []
    for topic in answer.responses:
        for partition in topic.partitions:
            acquired = [
                (each.first_offset, each.last_offset, each.delivery_count)
                for each in partition.acquired_records
            ]
            if acquired:
                values = _values(bytes(partition.records or b""))
                acquired_offsets = {offset for offset, _ in offsets_of(acquired)}
                own = {
                    offset: value for offset, value in values.items() if offset in acquired_offsets
                }
                answers.append((partition.partition_index, acquired, own))
    return answers


def _values(data: bytes) -> dict[int, bytes]:
    """Return the values of records by offset, without those of markers."""
    return {
        record.offset: bytes(record.value or b"")
        for place, header in headers(data)
        if not header.is_control
        for record in records(data, place, header)
    }
