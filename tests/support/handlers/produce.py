"""Produce requests to a broker under test."""

from typing import Any

from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from tests.support.handlers.broker import Broker

Topic = ProduceRequest.TopicProduceData
Data = Topic.PartitionProduceData


def request(*parts: tuple[str, int, bytes | None], **changes: Any) -> ProduceRequest:
    """Return a request with the batches of ``parts``: topic, partition and bytes."""
    topics: dict[str, Topic] = {}
    for name, index, records in parts:
        topic = topics.setdefault(name, Topic(name=name))
        topic.partition_data.append(Data(index=index, records=records))
    fields: dict[str, Any] = {"acks": -1, "timeout_ms": 1000, "topic_data": list(topics.values())}
    return ProduceRequest(**(fields | changes))


async def produce(
    subject: Broker, *parts: tuple[str, int, bytes | None], version: int = 9, **changes: Any
) -> list[ProduceResponse.TopicProduceResponse.PartitionProduceResponse]:
    """Return the partitions of the response."""
    answer = await subject.call(request(*parts, **changes), version)
    return [p for t in answer.responses for p in t.partition_responses]
