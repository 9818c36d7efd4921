"""Loads of a broker that runs alone: each prepares itself, and returns what is to be measured."""

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from confluent_kafka import Producer

from kwire.codec.frame import request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_records import DeleteRecordsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.records.build import New, batch
from kwire.testing.wire import WireClient

TIMEOUT_SECONDS: Final = 300.0
"""The time that a client waits for an answer: a slow peer is to be measured, too."""
SEGMENTS: Final = 300
STARTING: Final = (3, 5, 6)
"""Error codes of a new topic's partition that its broker does not serve yet."""
SEGMENT_BYTES: Final = 64 * 1024
TRANSACTIONAL_PRODUCERS: Final = 20
ABORTED: Final = 10_000
FILLED_BATCHES: Final = 2_000
SCRUBBED_SECONDS: Final = 10.0
"""The time in which a broker scrubs its segments at full rate, for some passes."""
VERBOSE: Final = "STALLS_VERBOSE" in os.environ


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


class Load:
    """The work that another client gives the broker at ``port``; each method is one load."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.number = 0

    def client(self) -> WireClient:
        return WireClient("127.0.0.1", self.port, timeout_s=TIMEOUT_SECONDS)

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """Create a new topic for a load and return its name."""
        self.number += 1
        name = f"load-{self.number}"
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1
        )
        topic.configs = [
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(
                name=key.replace("_", "."), value=value
            )
            for key, value in configs.items()
        ]
        with self.client() as client:
            response = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
        assert response.topics[0].error_code == 0, response
        return name

    def fill(self, topic: str, batches: int, size: int, timestamp: Callable[[int], int]) -> None:
        """Append ``batches`` batches of one record of ``size`` bytes."""
        with self.client() as client:
            for number in range(batches):
                data = batch([New(None, bytes(size))], timestamp_ms=timestamp(number))
                self.append(client, topic, data)

    def append(self, client: WireClient, topic: str, data: bytes) -> None:
        """Append a batch to a topic, once its broker serves it."""
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=data)
        topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic_data])
        while error := self.produce(client, request):
            assert error in STARTING, error
            time.sleep(0.05)

    def produce(self, client: WireClient, request: ProduceRequest) -> int:
        """Send a request of one partition and return its error code."""
        response = client.call(request, 9)
        code: int = response.responses[0].partition_responses[0].error_code
        return code

    def segments(self, setting: str = "internal_segment_bytes") -> str:
        """Create a topic of 300 closed segments, a second apart, and return its name.

        ``setting``: their size, under the name that lets it be small.
        """
        now = int(time.time() * 1000)
        topic = self.topic(1, **{setting: str(SEGMENT_BYTES)})
        self.fill(topic, SEGMENTS + 1, SEGMENT_BYTES - 500, lambda n: now - (SEGMENTS - n) * 1000)
        return topic

    # Each of the following methods prepares its load and returns the function to be measured.

    def idle(self) -> Callable[[], object]:
        return lambda: time.sleep(1)

    def create_2000_partitions(self) -> Callable[[], object]:
        return lambda: [self.topic(100) for _ in range(20)]

    def create_one_topic_of_2000(self) -> Callable[[], object]:
        return lambda: self.topic(2000)

    def delete_2000_partitions(self) -> Callable[[], object]:
        names = [self.topic(100) for _ in range(20)]
        time.sleep(8)  # Files are created after the answer.
        states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]

        def load() -> None:
            with self.client() as client:
                client.call(DeleteTopicsRequest(topics=states, timeout_ms=60_000), 6)

        return load

    def groups_40_members_120(self) -> Callable[[], object]:
        with self.client() as client:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["group-0"])
            while client.call(request, 4).coordinators[0].error_code:
                time.sleep(0.2)

        def load() -> None:
            with ThreadPoolExecutor(120) as pool:
                list(pool.map(self.member, range(120)))

        return load

    def member(self, number: int) -> None:
        """Join a group of three, sync, and leave, four times."""
        group = f"group-{number % 40}"
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(100))
        with self.client() as client:
            for _ in range(4):
                join = JoinGroupRequest(
                    group_id=group,
                    session_timeout_ms=30_000,
                    rebalance_timeout_ms=3_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=[protocol],
                )
                for _ in range(20):
                    joined = client.call(join, 5)
                    if joined.member_id:
                        join.member_id = joined.member_id
                    if joined.error_code:
                        time.sleep(0.02)
                        continue
                    sync = SyncGroupRequest(
                        group_id=group,
                        generation_id=joined.generation_id,
                        member_id=joined.member_id,
                        assignments=[
                            SyncGroupRequest.SyncGroupRequestAssignment(
                                member_id=member.member_id, assignment=bytes(100)
                            )
                            for member in joined.members
                        ],
                    )
                    if client.call(sync, 3).error_code == 0:
                        break
                leaving = LeaveGroupRequest.MemberIdentity(member_id=join.member_id)
                client.call(LeaveGroupRequest(group_id=group, members=[leaving]), 3)

    def connections_5000(self) -> Callable[[], object]:
        frame = request_frame(18, 0, 1, "many", ApiVersionsRequest())

        def load() -> None:
            socks = []
            for _ in range(5000):
                sock = socket.create_connection(("127.0.0.1", self.port), 30)
                sock.sendall(frame)
                socks.append(sock)
            for sock in socks:
                sock.close()

        return load

    def reader_of_100_mb_answers(self) -> Callable[[], object]:
        topic = self.topic()
        self.fill(topic, 330, 900_000, lambda n: int(time.time() * 1000))

        def load() -> None:
            part = FetchRequest.FetchTopic.FetchPartition(
                partition=0, fetch_offset=0, partition_max_bytes=100 << 20
            )
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=100 << 20,
                topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
            )
            with self.client() as client:
                for _ in range(5):
                    client.send(request, 11)
                    remaining = int.from_bytes(receive(client.sock, 4), "big")
                    while remaining:
                        remaining -= len(client.sock.recv(min(remaining, 1 << 20)))

        return load

    def reader_of_10000_aborted_transactions(self) -> Callable[[], object]:
        topic = self.topic()
        with ThreadPoolExecutor(TRANSACTIONAL_PRODUCERS) as pool:
            list(pool.map(partial(self.abort, topic), range(TRANSACTIONAL_PRODUCERS)))

        def load() -> None:
            with self.client() as client:
                for max_bytes in (1_000, 100_000, 50 << 20):
                    for _ in range(5):
                        client.call(self.committed_fetch(topic, max_bytes), 11)

        return load

    def abort(self, topic: str, number: int) -> None:
        """Abort the share of one producer in the transactions of one record."""
        settings = {"bootstrap.servers": f"127.0.0.1:{self.port}", "linger.ms": 0}
        producer = Producer({**settings, "transactional.id": f"aborting-{number}"})
        producer.init_transactions(60)
        for _ in range(ABORTED // TRANSACTIONAL_PRODUCERS):
            producer.begin_transaction()
            producer.produce(topic, b"aborted")
            producer.flush(60)
            producer.abort_transaction(60)

    def committed_fetch(self, topic: str, max_bytes: int) -> FetchRequest:
        """Return a read_committed fetch from the beginning of a topic."""
        part = FetchRequest.FetchTopic.FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=max_bytes
        )
        return FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
        )

    def search_of_300_segments(self) -> Callable[[], object]:
        return self.search(self.segments())

    def search(self, topic: str) -> Callable[[], object]:
        """Return a search for four timestamps in a topic of :meth:`segments`."""
        now = int(time.time() * 1000)

        def load() -> None:
            with self.client() as client:
                for timestamp in (-3, now - 1000, now - SEGMENTS * 500, now + 10**9):
                    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=0, timestamp=timestamp
                    )
                    shape = ListOffsetsRequest.ListOffsetsTopic
                    topics = [shape(name=topic, partitions=[part])]
                    client.call(ListOffsetsRequest(replica_id=-1, topics=topics), 7)

        return load

    def delete_records_of_300_segments(self) -> Callable[[], object]:
        topic = self.segments()

        def load() -> None:
            part = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
                partition_index=0, offset=SEGMENTS
            )
            named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[part])
            with self.client() as client:
                client.call(DeleteRecordsRequest(topics=[named], timeout_ms=60_000), 2)

        return load

    def retention_of_300_segments(self) -> Callable[[], object]:
        topic = self.segments()

        def load() -> None:
            self.alter(topic, "retention.bytes", str(SEGMENT_BYTES))
            time.sleep(3)

        return load

    def alter(self, topic: str, setting: str, value: str | None) -> None:
        """Set a topic's setting; None removes it."""
        kinds = IncrementalAlterConfigsRequest.AlterConfigsResource
        operation = 1 if value is None else 0
        config = kinds.AlterableConfig(name=setting, config_operation=operation, value=value)
        resource = kinds(resource_type=2, resource_name=topic, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        with self.client() as client:
            assert client.call(request, 1).responses[0].error_code == 0

    def questions_about_10000_partitions(self) -> Callable[[], object]:
        names = [self.topic(100) for _ in range(100)]
        time.sleep(25)  # Files are created after the answers.
        partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
        ends = [
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=[partition(partition_index=n, timestamp=-1) for n in range(100)],
            )
            for name in names
        ]
        resource = DescribeConfigsRequest.DescribeConfigsResource
        configs = [
            resource(resource_type=2, resource_name=name, configuration_keys=None) for name in names
        ]
        questions = (
            (MetadataRequest(topics=None), 12),
            (DescribeLogDirsRequest(topics=None), 4),
            (ListOffsetsRequest(replica_id=-1, topics=ends), 7),
            (DescribeConfigsRequest(resources=configs, include_synonyms=True), 4),
        )

        def load() -> None:
            with self.client() as client:
                for request, version in questions:
                    started = time.monotonic()
                    client.call(request, version)
                    if VERBOSE:
                        seconds = time.monotonic() - started
                        print(type(request).__name__, f"{seconds * 1000:.0f} ms")

        return load

    def topic_of_200_mb(self) -> str:
        """Create a topic of 200 MB with 20,000 keys and return its name."""
        topic = self.topic(1, segment_bytes=str(16 << 20), min_cleanable_dirty_ratio="0.01")
        with self.client() as client:
            for number in range(FILLED_BATCHES):
                keys = range(number * 100, number * 100 + 100)
                entries = [New(b"key-%d" % (key % 20_000), bytes(1_000)) for key in keys]
                data = batch(entries, timestamp_ms=int(time.time() * 1000))
                self.append(client, topic, data)
        return topic

    def compaction_of_200_mb(self) -> Callable[[], object]:
        topic = self.topic_of_200_mb()

        def load() -> None:
            before = self.size(topic)
            self.alter(topic, "cleanup.policy", "compact")
            until = time.monotonic() + TIMEOUT_SECONDS
            while self.size(topic) > before / 2:
                assert time.monotonic() < until, "not compacted"
                time.sleep(0.2)

        return load

    def scrub_of_200_mb(self) -> Callable[[], object]:
        self.topic_of_200_mb()
        return lambda: time.sleep(SCRUBBED_SECONDS)

    def size(self, topic: str) -> int:
        """Return the bytes of a topic's segments, with those to be deleted."""
        topics = [DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])]
        with self.client() as client:
            answer = client.call(DescribeLogDirsRequest(topics=topics), 2)
        return sum(p.partition_size for d in answer.results for t in d.topics for p in t.partitions)
