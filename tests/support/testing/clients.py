"""Requests of a client to a test broker, over one connection each."""

import time
from collections.abc import Callable

from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kwire.codec.messages.end_txn import EndTxnRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.list_transactions import ListTransactionsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.net.listener import Address
from kwire.records.build import New, batch
from kwire.testing.wire import WireClient

GROUP, TRANSACTION = 0, 1


def partition_counts(address: Address) -> dict[str, int]:
    """Return the number of partitions of each topic, according to Metadata."""
    with WireClient(*address) as client:
        topics = client.call(MetadataRequest(topics=None), 12).topics
    return {topic.name: len(topic.partitions) for topic in topics if topic.name is not None}


def produce(
    client: WireClient,
    topic: str,
    value: bytes = b"value",
    *,
    key: bytes | None = None,
    acks: int = -1,
) -> int:
    """Produce one record to partition 0; return the error code."""
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(
        index=0, records=batch([New(key, value)], timestamp_ms=1_700_000_000_000)
    )
    request = ProduceRequest(
        acks=acks, timeout_ms=5000, topic_data=[data(name=topic, partition_data=[partition])]
    )
    response = client.call(request, 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def find_coordinator(client: WireClient, kind: int, key: str) -> None:
    """Wait until the coordinator of a group or transactional id can be asked."""
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    while client.call(request, 4).coordinators[0].error_code:
        time.sleep(0.001)


def commit(client: WireClient, group: str, topic: str, offset: int) -> None:
    """Commit an offset of partition 0."""
    find_coordinator(client, GROUP, group)
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    spot = shape.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[shape(name=topic, partitions=[spot])]
    )
    while client.call(request, 9).topics[0].partitions[0].error_code:
        time.sleep(0.001)


def join_group(client: WireClient, group: str) -> tuple[str, int]:
    """Join a group as its only member; return the member id and the generation."""
    find_coordinator(client, GROUP, group)
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = client.call(request, 3)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=b"all"
    )
    synced = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
    )
    assert client.call(synced, 3).error_code == 0
    return joined.member_id, joined.generation_id


def heartbeat(client: WireClient, group: str, member: tuple[str, int]) -> int:
    """Send a heartbeat of a member; return the error code."""
    request = HeartbeatRequest(group_id=group, member_id=member[0], generation_id=member[1])
    code: int = client.call(request, 3).error_code
    return code


def groups(client: WireClient) -> list[str]:
    return [group.group_id for group in client.call(ListGroupsRequest(), 4).groups]


def begin_transactional_id(client: WireClient, transactional_id: str) -> InitProducerIdResponse:
    """Register a transactional id with its coordinator; return its producer id and epoch."""
    find_coordinator(client, TRANSACTION, transactional_id)
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=10_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    while (response := client.call(request, 4)).error_code:
        time.sleep(0.001)
    return response


def transactional_ids(client: WireClient) -> list[str]:
    listed = client.call(ListTransactionsRequest(), 0).transaction_states
    return [state.transactional_id for state in listed]


def begin_transaction(client: WireClient, transactional_id: str, topic: str) -> Callable[..., None]:
    """Begin a transaction with partition 0 of a topic; return a function that ends it."""
    producer = begin_transactional_id(client, transactional_id)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    client.call(add, 3)

    def end(*, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        assert client.call(request, 3).error_code == 0

    return end


def produce_to_partitions(
    client: WireClient, topic: str, partitions: list[int], version: int
) -> dict[int, int]:
    """Produce one record to each partition by one request; return the error codes."""
    data = ProduceRequest.TopicProduceData
    records = batch([New(None, b"value")], timestamp_ms=1_700_000_000_000)
    topics = client.call(MetadataRequest(topics=None), 12).topics
    (topic_id,) = [each.topic_id for each in topics if each.name == topic]
    named = data(
        name=topic,
        topic_id=topic_id,
        partition_data=[data.PartitionProduceData(index=i, records=records) for i in partitions],
    )
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[named])
    (answer,) = client.call(request, version).responses
    return {each.index: each.error_code for each in answer.partition_responses}


def fetch(
    client: WireClient,
    topic: str,
    partitions: list[int],
    session_id: int = 0,
    session_epoch: int = 0,
    records: list[bytes] | None = None,
) -> tuple[int, dict[int, int]]:
    """Fetch from the begin; return the session's id and the error codes of the partitions.

    The records of the partitions are added to ``records``.
    """
    shape = FetchRequest.FetchTopic
    named = shape(
        topic=topic,
        partitions=[
            shape.FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=1000)
            for i in partitions
        ],
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[named] if partitions else [],
    )
    response = client.call(request, 12)
    assert response.error_code == 0
    answers = [each for answer in response.responses for each in answer.partitions]
    if records is not None:
        records += [bytes(each.records) for each in answers]
    return response.session_id, {each.partition_index: each.error_code for each in answers}


def start_offset(client: WireClient, topic: str) -> int:
    """Return the first offset of partition 0."""
    return _offset(client, topic, 0, -2)


def end_offset(client: WireClient, topic: str, partition: int = 0) -> int:
    """Return the end offset of a partition."""
    return _offset(client, topic, partition, -1)


def _offset(client: WireClient, topic: str, partition: int, timestamp: int) -> int:
    shape = ListOffsetsRequest.ListOffsetsTopic
    spot = shape.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[shape(name=topic, partitions=[spot])])
    offset: int = client.call(request, 7).topics[0].partitions[0].offset
    return offset
