"""kafka-python clients with the settings that these tests share."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.harness.wait import collect, eventually


@contextmanager
def producer(address: str, **settings: Any) -> Iterator[Any]:
    client = KafkaProducer(bootstrap_servers=address, **settings)
    try:
        yield client
        client.flush(60)  # What is not sent when a client closes may be lost.
    finally:
        client.close(timeout=10)


@contextmanager
def consumer(address: str, *topics: str, **settings: Any) -> Iterator[Any]:
    merged = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **settings}
    client = KafkaConsumer(*topics, bootstrap_servers=address, **merged)
    try:
        yield client
    finally:
        client.close(autocommit=False)


@contextmanager
def admin(address: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=address)
    try:
        yield client
    finally:
        client.close()


def create(address: str, topic: str, partitions: int = 1, **configs: str) -> None:
    options = {
        "num_partitions": partitions,
        "replication_factor": -1,
        "configs": {key.replace("_", "."): value for key, value in configs.items()},
    }
    with admin(address) as client:
        client.create_topics({topic: options})


def fill(address: str, topic: str, values: Sequence[bytes], **send: Any) -> list[Any]:
    """Send ``values`` and return each one's metadata with its partition and offset."""
    with producer(address) as client:
        futures = [client.send(topic, value=value, **send) for value in values]
        client.flush()
        return [future.get(30) for future in futures]


def poll(client: Any, timeout_ms: int = 2000) -> list[Any]:
    return [record for batch in client.poll(timeout_ms).values() for record in batch]


def read(address: str, topic: str, count: int, **settings: Any) -> list[Any]:
    """Read ``count`` records of the topic from its beginning, without a group."""
    with consumer(address, topic, **settings) as client:
        return collect(lambda: poll(client), count)


class Member:
    """A group member that polls in a thread of its own, as in an application.

    Its polls are long. kafka-python 3.0.12 loses an assignment that arrives between two polls, and
    the leader that rejoins because of new partitions never comes back from that: its next poll
    no longer finds a reason to rejoin (`need_rejoin` compares metadata that the assignment has
    just replaced), so that it neither takes its assignment nor sends heartbeats again. So a member
    is told to rejoin if a poll has ended in the middle of that, as on a machine that stops.
    """

    def __init__(self, client: Any, poll_ms: int = 1000) -> None:
        self.client = client
        self._poll_ms = poll_ms
        self.records: list[Any] = []
        self.stuck = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._calls: queue.SimpleQueue[Callable[[Any], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread.start()

    @property
    def assignment(self) -> set[TopicPartition]:
        return set(self.client.assignment())

    def do(self, call: Callable[[Any], Any]) -> Any:
        """Run ``call(consumer)`` in the member's thread."""
        self._calls.put(call)
        return self._answers.get(timeout=60)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """Leave the group (a static member does not)."""
        self.stop()
        self._thread.join(60)
        self.client.close(autocommit=False)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.stuck.is_set():
                self._stop.wait(0.05)
                continue
            try:
                self.records.extend(poll(self.client, self._poll_ms))
                if self.client._coordinator.rejoining:
                    self.client._coordinator.request_rejoin()
                while not self._calls.empty():
                    self._answers.put(self._calls.get()(self.client))
            except Exception as error:
                self._answers.put(error)
                raise


@contextmanager
def members(
    address: str, count: int, *topics: str, poll_ms: int = 1000, **settings: Any
) -> Iterator[list[Member]]:
    merged = {"heartbeat_interval_ms": 200, "metadata_max_age_ms": 500, **settings}
    merged = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **merged}
    group: list[Member] = []
    try:
        while len(group) < count:
            client = KafkaConsumer(*topics, bootstrap_servers=address, **merged)
            group.append(Member(client, poll_ms))
        yield group
    finally:
        for member in group:
            member.stop()
        for member in group:
            member.close()


def settle(group: Sequence[Member], sizes: list[int]) -> list[set[TopicPartition]]:
    """Wait until the assignments are disjoint and of these sizes; return them in order of size."""

    def assignments_of_sizes() -> list[set[TopicPartition]]:
        got = [member.assignment for member in group]
        apart = sum(map(len, got)) == len(set().union(*got))
        return got if apart and sorted(map(len, got)) == sizes else []

    return eventually(assignments_of_sizes, f"assignments of {sizes}")
