"""The replica layer as coordinators see it: a log to append to, and to replay from.

Fits ``kwire.coordinator.service.CoordinatorLog``. What a coordinator writes is trusted, is
committed with acks=all, and is read back from its own leader alone, committed or not.
"""

from collections.abc import Callable
from math import inf
from typing import Final

import attrs

from kwire.records.header import Buffer, headers, parse
from kwire.replica.partition import ACKS_ALL
from kwire.replica.service import ReplicaService
from kwire.types import TopicPartition

READ_BYTES: Final = 1 << 20
"""How much of a log one read of a loading coordinator takes."""


@attrs.define(eq=False)
class ReplicaCoordinatorLog:
    """Coordinators' logs are partitions like any other."""

    replicas: ReplicaService
    now_ms: Callable[[], int]

    def append(self, partition: TopicPartition, batch: bytes) -> int:
        """Append as the partition's leader; the log end after it. Raises KafkaError."""
        found = self.replicas.leader(*partition)
        done = found.append(
            batch,
            parse(batch),
            ACKS_ALL,
            self.replicas.now(),
            self.now_ms(),
            from_client=False,
        )
        self.replicas.appended(found, done)
        return done.end_offset

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Start and end of the log."""
        log = self.replicas.get(*partition).log
        return log.start_offset, log.end_offset

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.replicas.get(*partition).high_watermark

    async def committed(self, partition: TopicPartition, end_offset: int) -> None:
        """Return when everything before ``end_offset`` is committed; raises if leadership goes."""
        await self.replicas.committed(self.replicas.leader(*partition), end_offset, inf)

    async def read(self, partition: TopicPartition, offset: int) -> Buffer:
        """Whole batches from the one with ``offset`` on; empty at the end."""
        log = self.replicas.get(*partition).log
        with log.read(offset, READ_BYTES, end_offset=log.written_offset) as region:
            data = region.read()
        end = 0
        for pos, header in headers(data):
            end = pos + header.size
        return memoryview(data)[:end]
