"""ListOffsets requests to a broker under test."""

from typing import Any

from kwire.codec.messages.list_offsets import ListOffsetsRequest
from tests.support.handlers.broker import Broker


async def offsets(
    subject: Broker, timestamp: int, *, version: int = 11, epoch: int = -1, **changes: Any
) -> tuple[int, int, int, int]:
    """Return error, offset, timestamp and leader epoch for partition 0 of the topic."""
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=epoch
    )
    topics = [topic(name="t", partitions=[partition])]
    fields: dict[str, Any] = {"replica_id": -1, "topics": topics}
    answer = await subject.call(
        ListOffsetsRequest(**(fields | changes)),
        version,
    )
    (result,) = answer.topics[0].partitions
    return result.error_code, result.offset, result.timestamp, result.leader_epoch
