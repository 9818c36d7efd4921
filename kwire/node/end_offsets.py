"""The end offsets of partitions, including those led by other brokers; for the lag of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.errors import KafkaError, NotLeaderOrFollower, error_class
from kwire.replica.partition import FetchIsolation
from kwire.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kwire.net.connection_pool import ConnectionPool
    from kwire.node.other_brokers import OtherBrokers
    from kwire.replica.replicas import ReplicaService

_CLIENT: Final = -1
_LATEST: Final = -1
_READ_UNCOMMITTED: Final = 0

Ends = dict[TopicPartition, int | KafkaError]


@attrs.frozen(eq=False, repr=False)
class EndOffsets:
    """Asks the leaders of partitions for their high watermarks."""

    replicas: ReplicaService
    others: OtherBrokers
    pool: ConnectionPool

    async def ask(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | KafkaError]:
        """Return the end offset of each partition, or why it is unknown."""
        ends: Ends = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self.others.leader_of(partition)
            if leader is None or leader < 0:
                ends[partition] = NotLeaderOrFollower()
            elif leader == self.others.node:
                ends[partition] = await self._local(partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        async with trio.open_nursery() as nursery:
            for leader, led in by_leader.items():
                nursery.start_soon(self._ask_broker, leader, led, ends)
        return ends

    async def _local(self, partition: TopicPartition) -> int | KafkaError:
        try:
            led = self.replicas.partitions.get_led(*partition)
            position = await self.replicas.locate(led, _LATEST, FetchIsolation.HIGH_WATERMARK)
        except KafkaError as error:
            return error
        return position.offset

    async def _ask_broker(
        self, broker: int, partitions: Sequence[TopicPartition], ends: Ends
    ) -> None:
        """Ask one broker, and store its answers in ``ends``."""
        try:
            response = await self.others.call(self.pool, broker, _request(partitions))
        except KafkaError as error:
            ends.update(dict.fromkeys(partitions, error))
            return
        for topic in response.topics:
            for each in topic.partitions:
                key = TopicPartition(topic.name, each.partition_index)
                code = each.error_code
                ends[key] = error_class(code)() if code else each.offset


def _request(partitions: Sequence[TopicPartition]) -> ListOffsetsRequest:
    shape = ListOffsetsRequest.ListOffsetsTopic
    topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, shape(name=name, partitions=[]))
        topic.partitions.append(
            shape.ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
        )
    return ListOffsetsRequest(
        replica_id=_CLIENT, isolation_level=_READ_UNCOMMITTED, topics=list(topics.values())
    )
