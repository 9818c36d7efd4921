"""Measure the cost of decoding and encoding the most frequent messages.

    python benchmarks/codec.py [--run-ms N]

One line per message: microseconds to decode, microseconds to encode, the smallest of several runs.
"""

import argparse
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kwire.codec.compile import decoder, encode, encoder
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.codec.messages.metadata import MetadataResponse
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse

ID = bytes(range(16))


def list_offsets(count: int) -> ListOffsetsRequest:
    Topic = ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        Topic.ListOffsetsPartition(partition_index=index, current_leader_epoch=3, timestamp=-1)
        for index in range(count)
    ]
    return ListOffsetsRequest(replica_id=-1, topics=[Topic(name="topic", partitions=partitions)])


def offsets_listed(count: int) -> ListOffsetsResponse:
    Topic = ListOffsetsResponse.ListOffsetsTopicResponse
    partitions = [
        Topic.ListOffsetsPartitionResponse(partition_index=index, offset=7, leader_epoch=3)
        for index in range(count)
    ]
    return ListOffsetsResponse(topics=[Topic(name="topic", partitions=partitions)])


def produce(count: int) -> ProduceRequest:
    Topic = ProduceRequest.TopicProduceData
    partitions = [
        Topic.PartitionProduceData(index=index, records=bytes(16_000)) for index in range(count)
    ]
    topic = Topic(name="topic", topic_id=ID, partition_data=partitions)
    return ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[topic])


def produce_response(count: int) -> ProduceResponse:
    Topic = ProduceResponse.TopicProduceResponse
    partitions = [
        Topic.PartitionProduceResponse(index=index, base_offset=9) for index in range(count)
    ]
    topic = Topic(name="topic", topic_id=ID, partition_responses=partitions)
    return ProduceResponse(responses=[topic])


def fetch(count: int) -> FetchRequest:
    Topic = FetchRequest.FetchTopic
    partitions = [
        Topic.FetchPartition(partition=index, fetch_offset=1 << 33, partition_max_bytes=1 << 20)
        for index in range(count)
    ]
    topics = [Topic(topic="topic", topic_id=ID, partitions=partitions)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics)


def fetch_response(count: int) -> FetchResponse:
    Topic = FetchResponse.FetchableTopicResponse
    partitions = [
        Topic.PartitionData(partition_index=index, high_watermark=1 << 33, records=bytes(100))
        for index in range(count)
    ]
    return FetchResponse(responses=[Topic(topic="topic", topic_id=ID, partitions=partitions)])


def metadata(topics: int, partitions: int) -> MetadataResponse:
    Topic = MetadataResponse.MetadataResponseTopic
    Partition = Topic.MetadataResponsePartition
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node, host="localhost", port=9092)
            for node in range(3)
        ],
        topics=[
            Topic(
                name=f"topic-{number}",
                topic_id=ID,
                partitions=[
                    Partition(
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=4,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                        offline_replicas=[],
                    )
                    for index in range(partitions)
                ],
            )
            for number in range(topics)
        ],
    )


def cases() -> Iterator[tuple[str, Any, int]]:
    yield "ListOffsets request, 100 partitions", list_offsets(100), 5
    yield "ListOffsets request, 100 partitions", list_offsets(100), 11
    yield "ListOffsets response, 100 partitions", offsets_listed(100), 5
    yield "ListOffsets response, 100 partitions", offsets_listed(100), 11
    for version in (9, 12, 13):
        yield "Produce request, 3 partitions", produce(3), version
    yield "Produce response, 3 partitions", produce_response(3), 13
    yield "Fetch request, 1 partition", fetch(1), 17
    yield "Fetch request, 100 partitions", fetch(100), 17
    yield "Fetch response, 1 partition", fetch_response(1), 17
    yield "Fetch response, 100 partitions", fetch_response(100), 17
    yield "Metadata response, 10 x 10 partitions", metadata(10, 10), 12


def best(function: Callable[[], object], run_s: float) -> float:
    """Return the microseconds of one call, the smallest of 25 runs of about this time each."""
    timer = timeit.Timer(function)
    number = max(1, int(run_s / min(timer.repeat(5, 1))))
    return min(timer.repeat(25, number)) / number * 1e6


def pieces(write: Callable[[Any, list[Any]], None], message: Any) -> None:
    write(message, [])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the codec of the most frequent messages.")
    parser.add_argument("--run-ms", type=float, default=20, help="the time of one of 25 runs")
    run_s = parser.parse_args().run_ms / 1000
    for name, message, version in cases():
        wire = memoryview(encode(message, version))
        read, write = decoder(type(message), version), encoder(type(message), version)
        decode_us = best(partial(read, wire, 0), run_s)
        encode_us = best(partial(pieces, write, message), run_s)
        print(f"{name:38} v{version:<3} decode {decode_us:7.1f} us   encode {encode_us:7.1f} us")


if __name__ == "__main__":
    main()
