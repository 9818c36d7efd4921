"""Measure one producer and many subscribers that wait for each record, beside Apache Kafka.

    python benchmarks/fanout.py [--peers kwire,kafka] [--subscribers N] [--records N] [--rounds N]
                                [--interval MS]

Every subscriber long-polls the same partition over a connection of its own; a producer in a process
of its own sends records one after the other, the next one when the last is acknowledged, or after
an interval in which all subscribers get the last, so that none of them gets two at once. The table
has the broker's CPU microseconds for a record delivered to a subscriber, the seconds until all of
them have all, and the median and the 99th percentile of the producer's acknowledgements in
milliseconds. The peers run in turn.
"""

import argparse
import multiprocessing
import os
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness.broker import make_broker  # noqa: E402
from kwire.codec.frame import request_frame  # noqa: E402
from kwire.codec.messages.create_topics import CreateTopicsRequest  # noqa: E402
from kwire.codec.messages.fetch import FetchRequest  # noqa: E402
from kwire.codec.messages.produce import ProduceRequest  # noqa: E402
from kwire.records.build import New, batch  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402

TOPIC: Final = "sale"
VERSION: Final = 11
"""The last version of Fetch whose fields all are at fixed positions; several clients send it."""
OFFSET_FROM_END: Final = 8 + 8 + 4 + 4 + 2
"""Distance of the fetch offset from a request's end, which has four more fields."""
HIGH_WATERMARK: Final = 4 + 4 + 2 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2
RECORDS_SIZE: Final = HIGH_WATERMARK + 8 + 8 + 8 + 4 + 4


class Figures(NamedTuple):
    """The figures of one run."""

    cpu_us: float
    seconds: float
    ack_p50_ms: float
    ack_p99_ms: float


class Subscriber:
    """One connection that fetches the next records again and again."""

    def __init__(self, port: int, request: bytes) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = bytearray(request)
        self.received = b""
        self.offset = 0
        self.sock.sendall(self.request)

    def read(self) -> None:
        """Read the available bytes; send the next Fetch when an answer is complete."""
        self.received += self.sock.recv(1 << 16)
        if len(self.received) < 4 or len(self.received) < 4 + int.from_bytes(
            self.received[:4], "big"
        ):
            return
        answer, self.received = self.received[4:], b""
        if struct.unpack_from(">i", answer, RECORDS_SIZE)[0] > 0:
            (self.offset,) = struct.unpack_from(">q", answer, HIGH_WATERMARK)
            struct.pack_into(">q", self.request, len(self.request) - OFFSET_FROM_END, self.offset)
        self.sock.sendall(self.request)


def produce(port: int, records: int, interval_s: float, pipe: Connection) -> None:
    """Send records one after the other; put each acknowledgement's time, in s, into ``pipe``."""
    data = batch([New(None, bytes(100))], timestamp_ms=int(time.time() * 1000))
    part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=data)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[part])
    frame = request_frame(
        0, 9, 1, "producer", ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])
    )
    with WireClient("127.0.0.1", port, timeout_s=120) as client:
        pipe.recv()
        trips = []
        for _ in range(records):
            started = time.perf_counter()
            client.send_bytes(frame)
            client.read_frame()
            trips.append(time.perf_counter() - started)
            time.sleep(interval_s)
        pipe.send(trips)


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def create_topic(port: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    with WireClient("127.0.0.1", port, timeout_s=60) as client:
        response = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    assert response.topics[0].error_code == 0, response


def measure(port: int, process: int, subscribers: int, records: int, interval_s: float) -> Figures:
    """Run one producer and many subscribers against a broker."""
    create_topic(port)
    part = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    fetch = FetchRequest(
        max_wait_ms=30_000,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[part])],
    )
    request = request_frame(1, VERSION, 1, "subscriber", fetch)
    ours, theirs = multiprocessing.Pipe()
    producer = multiprocessing.Process(target=produce, args=(port, records, interval_s, theirs))
    producer.start()
    selector = selectors.DefaultSelector()
    for _ in range(subscribers):
        subscriber = Subscriber(port, request)
        selector.register(subscriber.sock, selectors.EVENT_READ, subscriber)
    time.sleep(2)
    before, started = cpu_seconds(process), time.perf_counter()
    ours.send("begin")
    missing = {key.data for key in selector.get_map().values()}
    while missing:
        for key, _ in selector.select():
            key.data.read()
            if key.data.offset >= records:
                missing.discard(key.data)
    seconds, spent = time.perf_counter() - started, cpu_seconds(process) - before
    trips = [1000 * trip for trip in ours.recv()]
    producer.join()
    for key in list(selector.get_map().values()):
        key.data.sock.close()
    return Figures(
        spent * 1e6 / (subscribers * records),
        seconds,
        statistics.median(trips),
        statistics.quantiles(trips, n=100)[98],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the peers in turn and print the medians of the rounds."""
    parser = argparse.ArgumentParser(description="What a record to many subscribers costs.")
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--interval", type=int, default=0, metavar="MS")
    options = parser.parse_args(arguments)
    figures: dict[str, list[Figures]] = {peer: [] for peer in options.peers.split(",")}
    for _ in range(options.rounds):
        for peer, runs in figures.items():
            with tempfile.TemporaryDirectory() as folder:
                broker = make_broker(peer, Path(folder))
                assert broker.process is not None
                try:
                    process = broker.process.pid
                    interval_s = options.interval / 1000
                    run = measure(
                        broker.port, process, options.subscribers, options.records, interval_s
                    )
                    runs.append(run)
                finally:
                    broker.close()
    print("| broker | CPU us a delivery | all delivered, s | ack p50, ms | ack p99, ms |")
    print("|---|---:|---:|---:|---:|")
    for peer, runs in figures.items():
        cells = [f"{statistics.median(column):.1f}" for column in zip(*runs, strict=True)]
        print(f"| {peer} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
