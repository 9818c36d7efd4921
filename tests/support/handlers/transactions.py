"""Transactions for tests of one broker: a scripted coordinator, and requests of producers."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import trio

from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.write_txn_markers import WriteTxnMarkersRequest
from kwire.errors import InvalidTxnState
from kwire.types import TopicPartition


@attrs.define
class ScriptedVerifier:
    """A TransactionVerifier that answers what a test says; by default no partition is known."""

    codes: dict[TopicPartition, int] = attrs.field(factory=dict)
    default: int = InvalidTxnState.code
    questions: list[tuple[str, int, int, list[TopicPartition], bool]] = attrs.field(factory=list)
    """Transactional id, producer id, epoch, partitions, and whether these were to be added."""
    answers: trio.Event | None = None
    """Set it to hold answers back until the event is set."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool = False,
    ) -> Mapping[TopicPartition, int]:
        self.questions.append(
            (transactional_id, producer_id, producer_epoch, list(partitions), add)
        )
        answer = {tp: self.codes.get(tp, self.default) for tp in partitions}
        if self.answers is not None:
            await self.answers.wait()
        return answer


def produce_request(
    batch: bytes, topic: str = "t", index: int = 0, transactional_id: str | None = "tx"
) -> ProduceRequest:
    data = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            data(
                name=topic,
                partition_data=[data.PartitionProduceData(index=index, records=batch)],
            )
        ],
    )


def markers_request(
    *topics: tuple[str, list[int]],
    producer_id: int = 5,
    epoch: int = 0,
    commit: bool = True,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> WriteTxnMarkersRequest:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    return WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=commit,
                topics=[
                    marker.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in topics
                ],
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        ]
    )


def fetch_request(offset: int = 0, topic: str = "t", **changes: Any) -> FetchRequest:
    """Return a read_committed fetch of one partition."""
    of_topic = FetchRequest.FetchTopic
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "isolation_level": 1}
    partition = of_topic.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    return FetchRequest(
        topics=[of_topic(topic=topic, partitions=[partition])], **(fields | changes)
    )
