"""Measure the latency of an idle client while another keeps the broker busy, beside Apache Kafka.

    python benchmarks/stalls.py [--peers kwire,kafka] [--only NAME,...] [--rounds N]

A prober in a process of its own sends ApiVersions every millisecond over one connection. For each
load the table has the longest and the 99th percentile of its round trips, in milliseconds; "idle"
has them without a load, which is the share of the machine itself. The peers run in turn.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness.broker import Broker, make_broker  # noqa: E402
from kwire.codec.frame import request_frame  # noqa: E402
from kwire.codec.messages.api_versions import ApiVersionsRequest  # noqa: E402
from kwire.codec.messages.create_topics import CreateTopicsRequest  # noqa: E402
from kwire.codec.messages.delete_records import DeleteRecordsRequest  # noqa: E402
from kwire.codec.messages.delete_topics import DeleteTopicsRequest  # noqa: E402
from kwire.codec.messages.describe_configs import DescribeConfigsRequest  # noqa: E402
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest  # noqa: E402
from kwire.codec.messages.fetch import FetchRequest  # noqa: E402
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest  # noqa: E402
from kwire.codec.messages.incremental_alter_configs import (  # noqa: E402
    IncrementalAlterConfigsRequest,
)
from kwire.codec.messages.join_group import JoinGroupRequest  # noqa: E402
from kwire.codec.messages.leave_group import LeaveGroupRequest  # noqa: E402
from kwire.codec.messages.list_offsets import ListOffsetsRequest  # noqa: E402
from kwire.codec.messages.metadata import MetadataRequest  # noqa: E402
from kwire.codec.messages.produce import ProduceRequest  # noqa: E402
from kwire.codec.messages.sync_group import SyncGroupRequest  # noqa: E402
from kwire.records.build import New, batch  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402

SETTINGS: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "10",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "file.delete.delay.ms": "1000",
}
PROBE_SECONDS: Final = 0.001
AFTERMATH_SECONDS: Final = 2.0
"""The time given to work that a request started and that goes on after its answer."""
SEGMENTS: Final = 300
STARTING: Final = (3, 5, 6)
"""Error codes of a new topic's partition that its broker does not serve yet."""
SEGMENT_BYTES: Final = 64 * 1024
VERBOSE: Final = "STALLS_VERBOSE" in os.environ


def probe(port: int, pipe: Connection) -> None:
    """Measure round trips until the pipe closes; send the times and lengths of all, in seconds."""
    os.nice(-5)
    frame = request_frame(18, 0, 1, "prober", ApiVersionsRequest())
    trips: list[tuple[float, float]] = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe.send("ready")
        while not pipe.poll():
            started = time.monotonic()
            sock.sendall(frame)
            size = 4 + int.from_bytes(receive(sock, 4), "big")
            receive(sock, size - 4)
            trips.append((started, time.monotonic() - started))
            time.sleep(PROBE_SECONDS)
    pipe.send(trips)


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
        return WireClient("127.0.0.1", self.port, timeout_s=120)

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

    def segments(self) -> str:
        """Create a topic of 300 closed segments, a second apart, and return its name."""
        now = int(time.time() * 1000)
        topic = self.topic(internal_segment_bytes=str(SEGMENT_BYTES))
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

    def search_of_300_segments(self) -> Callable[[], object]:
        topic = self.segments()
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
            kinds = IncrementalAlterConfigsRequest.AlterConfigsResource
            config = kinds.AlterableConfig(
                name="retention.bytes", config_operation=0, value=str(SEGMENT_BYTES)
            )
            resource = kinds(resource_type=2, resource_name=topic, configs=[config])
            with self.client() as client:
                client.call(
                    IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1
                )
            time.sleep(3)

        return load

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


LOADS: Final = {
    load.__name__: load
    for load in (
        Load.idle,
        Load.create_2000_partitions,
        Load.create_one_topic_of_2000,
        Load.delete_2000_partitions,
        Load.groups_40_members_120,
        Load.connections_5000,
        Load.reader_of_100_mb_answers,
        Load.search_of_300_segments,
        Load.delete_records_of_300_segments,
        Load.retention_of_300_segments,
        Load.questions_about_10000_partitions,
    )
}


def measure(broker: Broker, name: str) -> tuple[float, float]:
    """Return the longest and the 99th percentile of the round trips of one load, in ms."""
    work = LOADS[name](Load(broker.port))
    ours, theirs = multiprocessing.Pipe()
    prober = multiprocessing.Process(target=probe, args=(broker.port, theirs))
    prober.start()
    assert ours.recv() == "ready"
    time.sleep(0.3)
    begin = time.monotonic()
    work()
    time.sleep(AFTERMATH_SECONDS)
    ours.send("end")
    trips = [length * 1000 for started, length in ours.recv() if started >= begin - 0.1]
    prober.join()
    return max(trips), statistics.quantiles(trips, n=100)[98]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every load at every peer in turn, and print the medians of the rounds."""
    parser = argparse.ArgumentParser(description="Longest waits of an idle client under load.")
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--only", default=",".join(LOADS))
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    peers, names = options.peers.split(","), options.only.split(",")
    print("| load | " + " | ".join(f"{peer} longest / p99, ms" for peer in peers) + " |")
    print("|---|" + "---:|" * len(peers), flush=True)
    for name in names:
        cells = []
        for peer in peers:
            figures = []
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    broker = make_broker(peer, Path(folder), SETTINGS)
                    try:
                        figures.append(measure(broker, name))
                    finally:
                        broker.close()
            longest, high = (statistics.median(column) for column in zip(*figures, strict=True))
            cells.append(f"{longest:.1f} / {high:.1f}")
        print(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
