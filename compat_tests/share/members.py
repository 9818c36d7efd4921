"""Members of share groups that send each request themselves."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compat_tests.harness.wait import DEADLINE_SECONDS, eventually
from compat_tests.harness.wire import connect
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.share_acknowledge import ShareAcknowledgeRequest
from kwire.codec.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.records import build, header, iterate
from kwire.testing.wire import WireClient

GROUP_RESOURCE = 32
Row = ShareFetchResponse.ShareFetchableTopicResponse.PartitionData
FetchTopic = ShareFetchRequest.FetchTopic
FetchPartition = FetchTopic.FetchPartition
AcknowledgeTopic = ShareAcknowledgeRequest.AcknowledgeTopic
AcknowledgePartition = AcknowledgeTopic.AcknowledgePartition
Acknowledgements = Mapping[tuple[int, int], Sequence[int]]
READY_S = DEADLINE_SECONDS


def create_topic(address: str, name: str, **settings: str) -> bytes:
    """Create a topic with one partition and return its id."""
    configs = [
        CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
        for key, value in settings.items()
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, configs=configs
    )
    with connect(address) as client:
        response = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        (created,) = response.topics
        assert created.error_code == 0, created
        deadline = time.monotonic() + READY_S
        while True:
            named = MetadataRequest.MetadataRequestTopic(name=name)
            (metadata,) = client.call(MetadataRequest(topics=[named]), 12).topics
            if not metadata.error_code and all(not p.error_code for p in metadata.partitions):
                return created.topic_id
            assert time.monotonic() < deadline, metadata


def produce(address: str, name: str, *values: bytes, **batch: Any) -> int:
    """Append a batch to the topic's first partition and return its base offset.

    The records are new: the broker may look for records to delete in the middle of a test.
    """
    now_ms = int(time.time() * 1000)
    data = build.batch(
        [build.New(b"k", value) for value in values], timestamp_ms=now_ms, leader_epoch=-1, **batch
    )
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=data)
    topic = ProduceRequest.TopicProduceData(name=name, partition_data=[partition])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    with connect(address) as client:
        (answer,) = client.call(request, 9).responses[0].partition_responses
    assert answer.error_code == 0, answer
    return answer.base_offset


def configure_group(address: str, group: str, **settings: str) -> None:
    """Set configurations of a group; `_` stands for a dot."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=GROUP_RESOURCE,
        resource_name=group,
        configs=[
            IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
                name=name.replace("_", "."), config_operation=0, value=value
            )
            for name, value in settings.items()
        ],
    )
    with connect(address) as client:
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        response = client.call(request, 1)
    assert response.responses[0].error_code == 0, response.responses[0]


@attrs.define
class ShareMember:
    """A member of a share group, with a session over one topic."""

    client: WireClient
    group: str
    topic: str
    topic_id: bytes
    id: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    """The epoch of its next request in the share session."""
    member_epoch: int = 0
    error: int = 0
    """The error of the last request."""

    @classmethod
    def join(cls, address: str, group: str, topic: str, topic_id: bytes) -> ShareMember:
        """Join a group, and wait until the member has the topic's partition."""
        member = cls(connect(address), group, topic, topic_id)
        deadline = time.monotonic() + READY_S
        while not member.heartbeat():
            assert time.monotonic() < deadline, f"no assignment, error {member.error}"
            time.sleep(0.1)
        return member

    def heartbeat(self) -> bool:
        """Send a heartbeat; return whether it brought an assignment with partitions."""
        if self.error or not self.member_epoch:  # The coordinator's topic may not exist yet.
            self.client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group]), 4)
        joins = self.member_epoch == 0
        response = self.client.call(
            ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.id,
                member_epoch=self.member_epoch,
                subscribed_topic_names=[self.topic] if joins else None,
            ),
            1,
        )
        self.error = response.error_code
        if self.error:
            return False
        self.member_epoch = response.member_epoch
        assignment = response.assignment
        return assignment is not None and bool(assignment.topic_partitions)

    def fetch(
        self,
        *,
        acknowledge: Acknowledgements | None = None,
        names_partition: bool | None = None,
        forgets: bool = False,
        version: int = 2,
        **fields: Any,
    ) -> Row | None:
        """Fetch and return the partition's row; None if the response has none."""
        batches = [
            FetchPartition.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=list(types)
            )
            for (first, last), types in (acknowledge or {}).items()
        ]
        is_named = self.epoch == 0 if names_partition is None else names_partition
        partition = FetchPartition(partition_index=0, acknowledgement_batches=batches)
        topics = [FetchTopic(topic_id=self.topic_id, partitions=[partition])]
        forgotten = ShareFetchRequest.ForgottenTopic(topic_id=self.topic_id, partitions=[0])
        defaults = {"max_wait_ms": 500, "min_bytes": 1, "max_records": 500, "batch_size": 500}
        response = self.client.call(
            ShareFetchRequest(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.epoch,
                topics=topics if is_named or batches else [],
                forgotten_topics_data=[forgotten] if forgets else [],
                **{**defaults, **fields},
            ),
            version,
        )
        self.error = response.error_code
        if not self.error and self.epoch >= 0:
            self.epoch += 1
        rows = [row for topic in response.responses for row in topic.partitions]
        return rows[0] if rows else None

    def receive(self, **fields: Any) -> Row:
        """Fetch until there are records: the share partition may still be loading its state."""

        def some() -> Row | None:
            row = self.fetch(**fields)
            return row if row is not None and row.acquired_records else None

        return eventually(some, "records")

    def acknowledge(self, acknowledgements: Acknowledgements, *, version: int = 2) -> int:
        """Acknowledge offsets; return the error of the partition or of the request."""
        batches = [
            AcknowledgePartition.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=list(types)
            )
            for (first, last), types in acknowledgements.items()
        ]
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        topic = AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])
        response = self.client.call(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.epoch,
                is_renew_ack=any(4 in types for types in acknowledgements.values()),
                topics=[topic] if batches else [],
            ),
            version,
        )
        self.error = response.error_code
        if self.error:
            return self.error
        if self.epoch >= 0:
            self.epoch += 1
        return next((row.error_code for t in response.responses for row in t.partitions), 0)

    def close(self) -> None:
        self.client.close()


def deliveries(row: Row | None) -> list[tuple[int, int]]:
    """Return offset and delivery count of each acquired record."""
    if row is None:
        return []
    return [
        (offset, each.delivery_count)
        for each in row.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    ]


def ranges(row: Row | None) -> list[tuple[int, int, int]]:
    """Return first offset, last offset and delivery count of the acquired batches."""
    records = [] if row is None else row.acquired_records
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in records]


def values(row: Row | None) -> list[bytes | None]:
    """Return the values of the records that were sent."""
    data = b"" if row is None else bytes(row.records)
    return [
        record.value
        for position, head in header.headers(data)
        for record in iterate.records(data, position, head)
    ]
