"""Fetch requests to a broker under test, and the records of its responses."""

from typing import Any

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.records import header, iterate
from tests.support.handlers.broker import Broker, topic_id

Topic = FetchRequest.FetchTopic
FetchPartition = Topic.FetchPartition
PartitionData = FetchResponse.FetchableTopicResponse.PartitionData


def at(
    name: str, offset: int = 0, partition: int = 0, max_bytes: int = 1 << 20, **more: Any
) -> Topic:
    """Return the part of a request that reads one partition from an offset."""
    return Topic(
        topic=name,
        topic_id=topic_id(name),
        partitions=[
            FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, **more
            )
        ],
    )


def request(*topics: Topic, **changes: Any) -> FetchRequest:
    """Return a request that does not wait, unless ``changes`` say so."""
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": list(topics)}
    return FetchRequest(**(fields | changes))


async def fetch(
    subject: Broker, *topics: Topic, version: int = 12, **changes: Any
) -> list[PartitionData]:
    """Return the partitions of the response."""
    answer = await subject.call(request(*topics, **changes), version)
    assert answer.error_code == 0
    return [p for t in answer.responses for p in t.partitions]


def values(answer: PartitionData) -> list[tuple[int, bytes | None]]:
    """Return offset and value of each record."""
    buf = bytes(answer.records)
    return [
        (record.offset, record.value)
        for pos, head in header.headers(buf)
        for record in iterate.records(buf, pos, head)
    ]


class Fetcher:
    """A client with a session over all partitions of the topic."""

    def __init__(self, subject: Broker, replica: int = -1, **fields: int) -> None:
        self.subject, self.replica, self.fields = subject, replica, fields
        self.id = self.epoch = 0

    async def fetch(
        self, *partitions: int, offset: int = 0, removed: tuple[int, ...] = (), wait_ms: int = 0
    ) -> dict[int, Any]:
        """Name partitions at an offset; return the partitions of the response."""
        named = [
            Topic.FetchPartition(partition=p, fetch_offset=offset, partition_max_bytes=1 << 20)
            for p in partitions
        ]
        removal = FetchRequest.ForgottenTopic(topic_id=topic_id("t"), partitions=list(removed))
        answer = await self.subject.call(
            request(
                *([Topic(topic_id=topic_id("t"), partitions=named)] if named else []),
                session_id=self.id,
                session_epoch=self.epoch,
                forgotten_topics_data=[removal] if removed else [],
                max_wait_ms=wait_ms,
                replica_state=FetchRequest.ReplicaState(replica_id=self.replica),
                **self.fields,
            ),
            17,
        )
        assert answer.error_code == 0
        self.id, self.epoch = answer.session_id, self.epoch + 1
        return {p.partition_index: p for topic in answer.responses for p in topic.partitions}
