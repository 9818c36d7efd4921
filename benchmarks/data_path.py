"""Measure a Produce and a Fetch of one partition, from the decoded frame to the pieces to send.

    python benchmarks/data_path.py [--rounds N]

The log is in a temporary directory on a real disk; the network is left out. On a shared 2-core
machine, Python 3.11, CPU microseconds, the best of 5 rounds of 3,000: Produce 28 for 16 KB and 19
for 100 bytes, Fetch 34, in a session 36.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kwire.clock import SystemClock
from kwire.codec.apis import ListenerType
from kwire.codec.frame import request_frame
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.configs.broker import BrokerConfig
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Services
from kwire.log import partition_log
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import RealDisk
from kwire.log.manager import LogManager
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.records import build
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.leader import PartitionLeader
from kwire.replica.replicas import ReplicaService
from kwire.types import TopicPartition
from tests.support.handlers.services import services_of

TOPIC_ID = b"t" * 16
NOW_MS = SystemClock().now_ms()


def services(directory: str) -> Services:
    disk = RealDisk(directory)
    disk.make_directory("t-0")
    log = partition_log.create(disk, "t-0", TopicPartition("t", 0), now_ms=NOW_MS)
    replicas = ReplicaService(
        node=1,
        logs=LogManager([LogDirectory(disk, directory)], SystemClock()),
        configs=lambda _: LogConfig(),
        sessions=FetchSessions(1000, 120.0, itertools.count(1).__next__),
    )
    partition = replicas.partitions.add("t", TOPIC_ID, 0, log)
    leader = PartitionLeader.take_over(
        node=1,
        leader_epoch=0,
        partition_epoch=0,
        replicas=[1],
        isr=[1],
        log=log,
        log_end=0,
        min_isr=1,
        now=0.0,
    )
    partition.lead(leader, 0.0)
    return services_of(config=BrokerConfig({}), image=MetadataImage(), replicas=replicas)


def produce_frame(records: bytes, acks: int) -> memoryview:
    topic = ProduceRequest.TopicProduceData
    data = topic.PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[topic(name="t", topic_id=TOPIC_ID, partition_data=[data])],
    )
    return memoryview(request_frame(0, 13, 1, "c", request))[4:]


def fetch_frame(offset: int, session: int = 0, epoch: int = -1) -> memoryview:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=session,
        session_epoch=epoch,
        topics=[topic(topic="t", topic_id=TOPIC_ID, partitions=[partition])],
    )
    return memoryview(request_frame(1, 17, 1, "c", request))[4:]


def release(parts: Any) -> None:
    for part in parts:
        if hasattr(part, "close"):
            part.close()


async def measure(name: str, rounds: int, call: Callable[[], Awaitable[Any]]) -> None:
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            release(await call())
        best = min(best, time.process_time() - start)
    print(f"{name:42} {best / rounds * 1e6:7.1f} us")


async def measure_all(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        built = services(directory)
        parts = built.broker
        assert parts is not None
        connection = Dispatcher(built, ListenerType.BROKER).for_connection("PLAINTEXT", "127.0.0.1")
        large = build.batch([build.New(None, bytes(1000))] * 16, timestamp_ms=NOW_MS)
        small = build.batch([build.New(None, bytes(100))], timestamp_ms=NOW_MS)
        for size, batch in (("16 KB", large), ("100 B", small)):
            frame = produce_frame(batch, -1)
            await measure(
                f"Produce, one batch of {size}", rounds, partial(connection.answer, frame)
            )
        end = parts.replicas.partitions.get("t", 0).log.end_offset
        frames = [fetch_frame(offset % end) for offset in range(0, rounds * 7, 7)]
        requests = itertools.cycle(frames)
        await measure("Fetch without session", rounds, lambda: connection.answer(next(requests)))
        first = await connection.answer(fetch_frame(0, 0, 0))
        release(first)
        sessions = parts.replicas.sessions
        number = next(iter(sessions._sessions))
        epochs = itertools.count(1)
        prepared = [fetch_frame(epoch % end, number, epoch) for epoch in range(1, rounds * 5 + 1)]
        await measure(
            "Fetch in a session, new offset",
            rounds,
            lambda: connection.answer(prepared[next(epochs) - 1]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a Produce and a Fetch of one partition.")
    parser.add_argument("--rounds", type=int, default=3_000)
    trio.run(measure_all, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
