"""Requests to a node with 10,000 partitions, about all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_records import DeleteRecordsRequest
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.codec.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.drive import run_steps
from kwire.metrics import LOG_SIZE
from kwire.net.http_pages import join_lines
from kwire.node.pages import pages
from tests.support.handlers.broker import one_batch
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene
from tests.turns.logs import producers

TOPICS: Final = 100
PARTITIONS: Final = 100
ALL: Final = TOPICS * PARTITIONS
NAMES: Final = [f"topic-{number}" for number in range(TOPICS)]


@asynccontextmanager
async def node_with_partitions(meter: TurnMeter) -> AsyncIterator[MeteredNode]:
    settings = {
        "metadata_log_max_snapshot_interval_ms": "60000",
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
        "transaction_state_log_num_partitions": "1",
        "transaction_state_log_replication_factor": "1",
        "transaction_state_log_min_isr": "1",
    }
    async with metered_node(meter, **settings) as node:
        await node.create_all(NAMES, PARTITIONS)
        assert len(node.parts.replicas.partitions) == ALL
        yield node


PARTITIONED = Scene("requests about partitions", node_with_partitions)
row = PARTITIONED.operation


@row("DescribeLogDirs of all", "partitions", ALL, "DescribeLogDirs")
async def describe_log_dirs(node: MeteredNode, size: int) -> None:
    await node.measure(DescribeLogDirsRequest(topics=None))


@row("ListPartitionReassignments", "partitions", ALL, "ListPartitionReassignments")
async def list_reassignments(node: MeteredNode, size: int) -> None:
    await node.measure(ListPartitionReassignmentsRequest(topics=None))


@row("CreateTopics of one topic", "partitions", 2_000, "CreateTopics")
async def create_large_topic(node: MeteredNode, size: int) -> None:
    shape = CreateTopicsRequest.CreatableTopic
    topic = shape(name="large", num_partitions=size, replication_factor=1)
    (answer,) = await node.measure(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    assert not answer.topics[0].error_code
    with node.meter.measuring():
        await trio.sleep(30)


@row("CreatePartitions", "partitions", 2_000, "CreatePartitions", after="CreateTopics of one topic")
async def create_partitions(node: MeteredNode, size: int) -> None:
    shape = CreatePartitionsRequest.CreatePartitionsTopic
    topic = shape(name="large", count=2 * size, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
    (answer,) = await node.measure(request)
    assert not answer.results[0].error_code
    with node.meter.measuring():
        await trio.sleep(30)


@row("Metadata of all topics", "partitions", ALL, "Metadata")
async def metadata(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(MetadataRequest(topics=None))
    assert sum(len(topic.partitions) for topic in answer.topics) >= size


@row("DescribeTopicPartitions", "partitions", ALL, "DescribeTopicPartitions")
async def describe_topic_partitions(node: MeteredNode, size: int) -> None:
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in NAMES]
    await node.measure(DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=size))


@row("DescribeConfigs of all topics", "settings", TOPICS, "DescribeConfigs")
async def describe_configs(node: MeteredNode, size: int) -> None:
    shape = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        shape(resource_type=2, resource_name=name, configuration_keys=None) for name in NAMES
    ]
    await node.measure(DescribeConfigsRequest(resources=resources, include_synonyms=True))


@row("ListOffsets of the ends", "partitions", ALL, "ListOffsets")
async def list_offsets(node: MeteredNode, size: int) -> None:
    shape = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        shape(
            name=name,
            partitions=[
                shape.ListOffsetsPartition(partition_index=index, timestamp=-1)
                for index in range(PARTITIONS)
            ],
        )
        for name in NAMES
    ]
    await node.measure(ListOffsetsRequest(replica_id=-1, topics=topics))


@row("OffsetForLeaderEpoch", "partitions", ALL, "OffsetForLeaderEpoch")
async def offset_for_leader_epoch(node: MeteredNode, size: int) -> None:
    shape = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = [
        shape(
            topic=name,
            partitions=[
                shape.OffsetForLeaderPartition(partition=index, leader_epoch=0)
                for index in range(PARTITIONS)
            ],
        )
        for name in NAMES
    ]
    await node.measure(OffsetForLeaderEpochRequest(topics=topics))


def fetch_of_all(session_id: int, epoch: int) -> FetchRequest:
    shape = FetchRequest.FetchTopic
    topics = [
        shape(
            topic=name,
            partitions=[
                shape.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
                for index in range(PARTITIONS)
            ],
        )
        for name in NAMES
    ]
    return FetchRequest(
        session_id=session_id, session_epoch=epoch, max_wait_ms=500, min_bytes=1, topics=topics
    )


@row("Fetch in a session", "partitions", ALL, "Fetch")
async def fetch(node: MeteredNode, size: int) -> None:
    """The first, of all; one that names all again; one of changes; one that ends the session."""
    (first,) = await node.measure(fetch_of_all(0, 0), version=12)
    assert sum(len(topic.partitions) for topic in first.responses) == size
    (second,) = await node.measure(fetch_of_all(first.session_id, 1), version=12)
    assert not second.error_code
    third = fetch_of_all(first.session_id, 2)
    third.topics = []
    await node.measure(third, fetch_of_all(first.session_id, -1), version=12)


@row("Produce", "partitions", ALL, "Produce")
async def produce(node: MeteredNode, size: int) -> None:
    shape = ProduceRequest.TopicProduceData
    batch = one_batch()
    topics = [
        shape(
            name=name,
            partition_data=[
                shape.PartitionProduceData(index=index, records=batch)
                for index in range(PARTITIONS)
            ],
        )
        for name in NAMES
    ]
    await node.measure(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), version=9)


@row("DeleteRecords", "partitions", ALL, "DeleteRecords")
async def delete_records(node: MeteredNode, size: int) -> None:
    shape = DeleteRecordsRequest.DeleteRecordsTopic
    topics = [
        shape(
            name=name,
            partitions=[
                shape.DeleteRecordsPartition(partition_index=index, offset=-1)
                for index in range(PARTITIONS)
            ],
        )
        for name in NAMES
    ]
    await node.measure(DeleteRecordsRequest(topics=topics, timeout_ms=60_000))


@row("DescribeProducers", "producers", ALL, "DescribeProducers")
async def describe_producers(node: MeteredNode, size: int) -> None:
    partition = node.parts.replicas.partitions.get(NAMES[0], 0)
    run_steps(partition.log.producers.restoring(producers(size)))
    shape = DescribeProducersRequest.TopicRequest
    await node.measure(
        DescribeProducersRequest(topics=[shape(name=NAMES[0], partition_indexes=[0])])
    )
    partition.log.producers.clear()


@row("snapshot of the metadata", "partitions", ALL, "raftmeta.metadata.snapshotter.run")
async def snapshot(node: MeteredNode, size: int) -> None:
    with node.meter.measuring():
        await trio.sleep(65)


@row("page of metrics", "partitions", ALL)
async def show_metrics(node: MeteredNode, size: int) -> None:
    make_page = pages(node.server)["/metrics"]
    with node.meter.measuring():
        body = await join_lines((await make_page()).lines)
    assert body.count(b"\n" + LOG_SIZE.name.encode()) >= size
