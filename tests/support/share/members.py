"""Members of a share group that fetch from a broker under test."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.share_acknowledge import ShareAcknowledgeRequest
from kwire.codec.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from kwire.handlers.shared.context import ClientConnection
from kwire.records import header, iterate
from kwire.share.persister import UNINITIALIZED, InitialState
from kwire.share.sessions import FINAL_EPOCH
from kwire.share.settings import ShareSettings
from kwire.share.share_partitions import ShareService
from tests.support.handlers.broker import Broker, broker, topic_id
from tests.support.share.persister import MemoryPersister

GROUP = "g"
Row = ShareFetchResponse.ShareFetchableTopicResponse.PartitionData
FetchTopic = ShareFetchRequest.FetchTopic
FetchAcknowledgement = FetchTopic.FetchPartition.AcknowledgementBatch
AcknowledgeTopic = ShareAcknowledgeRequest.AcknowledgeTopic
AcknowledgePartition = AcknowledgeTopic.AcknowledgePartition


@attrs.define
class ShareNode:
    """A broker with share groups."""

    broker: Broker
    service: ShareService
    persister: MemoryPersister
    settings: dict[str, Any]
    """The settings of the group, by their names in :class:`ShareSettings`."""

    async def initialize(self, start: int = UNINITIALIZED, partitions: int = 1) -> None:
        """Initialize the share partitions of topic t, as the group coordinator does."""
        states = dict.fromkeys(range(partitions), InitialState(0, start))
        await self.persister.initialize(GROUP, topic_id("t"), states)

    def member(self, name: str) -> "Member":
        return Member(self, name)


@asynccontextmanager
async def share_node(**settings: Any) -> AsyncIterator[ShareNode]:
    """Run a broker that serves share groups with these settings of its groups."""
    subject, persister = broker(), MemoryPersister()
    await subject.publish(r.FeatureLevelRecord(name="share.version", feature_level=1))
    async with trio.open_nursery() as nursery:
        service = ShareService(
            subject.replicas,
            persister,
            lambda group_id: ShareSettings(**settings),
            subject.wall,
            nursery.start_soon,
        )
        subject.replace(share=lambda: service)
        subject.replicas.roles.subscribe(service.on_role_changed)
        nursery.start_soon(service.run)
        await nursery.start(subject.replicas.fetch_waits.run)
        yield ShareNode(subject, service, persister, settings)
        nursery.cancel_scope.cancel()


@attrs.define
class Member:
    """A client with a share session over topic t."""

    node: ShareNode
    name: str
    epoch: int = 0
    error: int = 0
    """The error of the last request."""
    connection: ClientConnection = attrs.field(factory=ClientConnection)

    async def fetch(
        self,
        *partitions: int,
        acknowledge: Mapping[tuple[int, int], list[int]] | None = None,
        **fields: Any,
    ) -> list[Row]:
        """Fetch, naming partitions, and acknowledge offsets of partition 0; return the rows."""
        batches = [
            FetchAcknowledgement(first_offset=first, last_offset=last, acknowledge_types=types)
            for (first, last), types in (acknowledge or {}).items()
        ]
        named = dict.fromkeys([*partitions, *([0] if batches else [])])
        topic = FetchTopic(
            topic_id=topic_id("t"),
            partitions=[
                FetchTopic.FetchPartition(
                    partition_index=each, acknowledgement_batches=[] if each else batches
                )
                for each in named
            ],
        )
        defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500}
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch,
            topics=[topic] if named else [],
            **{**defaults, **fields},
        )
        response = await self.node.broker.call(request, connection=self.connection)
        self.error = response.error_code
        if not self.error:
            self.epoch += 1
        return [row for each in response.responses for row in each.partitions]

    async def acknowledge(self, acknowledgements: Mapping[tuple[int, int], list[int]]) -> int:
        """Acknowledge offsets of partition 0; return the partition's error."""
        request = self.acknowledgement(acknowledgements)
        response = await self.node.broker.call(request, connection=self.connection)
        self.error = response.error_code
        if self.error:
            return self.error
        self.epoch += 1
        return next((row.error_code for t in response.responses for row in t.partitions), 0)

    def acknowledgement(
        self, acknowledgements: Mapping[tuple[int, int], list[int]]
    ) -> ShareAcknowledgeRequest:
        """Return the request that acknowledges offsets of partition 0."""
        batches = [
            AcknowledgePartition.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=types
            )
            for (first, last), types in acknowledgements.items()
        ]
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        topic = AcknowledgeTopic(topic_id=topic_id("t"), partitions=[partition])
        return ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch,
            is_renew_ack=any(4 in types for types in acknowledgements.values()),
            topics=[topic] if batches else [],
        )

    async def leave(self) -> None:
        """End the session."""
        self.epoch = FINAL_EPOCH
        await self.acknowledge({})


def deliveries(row: Row) -> list[tuple[int, int, int]]:
    """Return first offset, last offset and delivery count of the acquired records."""
    return [
        (each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records
    ]


def values(row: Row) -> list[bytes | None]:
    """Return the values of the records that were sent."""
    data = bytes(row.records)
    return [
        record.value
        for position, head in header.headers(data)
        for record in iterate.records(data, position, head)
    ]
