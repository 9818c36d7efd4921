"""Long polls over connections: those that wait without a task have the answers of the general way.

The general way has a task for each request; :data:`tests.support.net.node.LANE` closes the lane.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.fetch import FetchRequest
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.client_quotas import FETCHED, REQUEST_TIME
from kwire.metrics import REQUESTS
from kwire.testing.wire import TrioWireClient
from tests.support.handlers.broker import NODE, Broker, broker, create_topic, topic_id, write
from tests.support.handlers.fetch import Topic, at, request, values
from tests.support.net.node import LANE, Node, running, settle

FETCH: Final = 1
FOLLOWER: Final = 2
PARTITIONS: Final = 3


@asynccontextmanager
async def serving(subject: Broker) -> AsyncIterator[Node]:
    """Serve a broker over loopback sockets."""
    dispatcher = Dispatcher(subject.services, ListenerType.BROKER)
    async with running() as node:
        await node.nursery.start(subject.replicas.run)
        node.port = node.service.bind("PLAINTEXT", "127.0.0.1", 0).port
        node.service.accept("PLAINTEXT", dispatcher.for_connection)
        yield node
        node.nursery.cancel_scope.cancel()


@attrs.define
class Reader:
    """A client that polls again and again, each time from where its last answer ended."""

    client: TrioWireClient
    version: int
    topic: str
    partitions: list[int]
    fields: dict[str, Any]
    name: str
    offsets: dict[int, int] = attrs.field(factory=dict)
    received: list[Any] = attrs.field(factory=list)

    async def run(self) -> None:
        began = trio.current_time()
        while not self.received or not self.received[-1][1]:
            await self.client.send_bytes(self.frame())
            frame = await self.client.read_frame()
            answer = read_response(FETCH, self.version, memoryview(frame))[1]
            opened, answer.session_id = bool(answer.session_id), 0
            errors = [p.error_code for t in answer.responses for p in t.partitions if p.error_code]
            elapsed_s = round(trio.current_time() - began, 1)
            self.received.append((elapsed_s, errors, opened, answer))
            for topic in answer.responses:
                for each in topic.partitions:
                    for offset, _ in values(each):
                        self.offsets[each.partition_index] = offset + 1

    def frame(self) -> bytes:
        topics = [at(self.topic, self.offsets.get(p, 0), p) for p in self.partitions]
        if self.version < 13:
            topics = [Topic(topic=self.topic, partitions=each.partitions) for each in topics]
        else:
            topics = [Topic(topic_id=each.topic_id, partitions=each.partitions) for each in topics]
        return request_frame(FETCH, self.version, 9, self.name, request(*topics, **self.fields))


def reader_of(rng: Random, client: TrioWireClient, name: str) -> Reader:
    """Return a reader with any arguments."""
    version = rng.choice([4, 11, 12, 15, 17, 18])
    fields: dict[str, Any] = {
        "max_wait_ms": rng.choice([1700, 4300, 60_000]),
        "min_bytes": rng.choice([1, 1, 1, 1, 250, 100_000]),
        "max_bytes": rng.choice([1, 300, 1 << 20, 1 << 20]),
        "isolation_level": rng.randrange(2),
        "session_epoch": rng.choice([-1, -1, 0]),
    }
    partitions = rng.choice([[0], [0], [0], [1], [0, 1, 2], [0, 9]])
    if version >= 15 and rng.random() < 0.2:
        fields["replica_state"] = FetchRequest.ReplicaState(replica_id=FOLLOWER)
        fields["isolation_level"] = 0
        return Reader(client, version, "copied", [0], fields, name)
    return Reader(client, version, "t", partitions, fields, name)


async def results_of(seed: int) -> list[Any]:
    """Return what readers receive while records are written, and what is counted."""
    rng = Random(seed)
    subject = broker(slots=10_000)
    led = [await create_topic(subject, "t", partitions=PARTITIONS)]
    led += [subject.replicas.partitions.get("t", number) for number in range(1, PARTITIONS)]
    copied = await create_topic(subject, "copied", replicas=(NODE, FOLLOWER))
    for key, value in ((FETCHED, 100.0), (REQUEST_TIME, 1000.0)):
        entity = r.ClientQuotaRecord.EntityData(entity_type="client-id", entity_name="slow")
        await subject.publish(
            r.ClientQuotaRecord(entity=[entity], key=key, value=value, remove=False)
        )
    readers: list[Reader] = []
    async with serving(subject) as node:
        for number in range(12):
            client = await TrioWireClient.connect("127.0.0.1", node.port)
            name = "other" if number else "slow"
            readers.append(reader_of(rng, client, name))
        async with trio.open_nursery() as nursery:
            for reader in readers:
                nursery.start_soon(reader.run)
            for number in range(10):
                await trio.sleep(1)
                for _ in range(rng.randrange(3)):
                    changed = rng.choice([*led, copied])
                    write(subject, changed, b"%d" % number + bytes(rng.randrange(300)))
            await trio.sleep(1)
            await subject.lead_again("t", leader=FOLLOWER)
            await trio.sleep(70)
            for name in ("copied", "t"):
                await subject.publish(r.RemoveTopicRecord(topic_id=topic_id(name)))
        for reader in readers:
            await reader.client.__aexit__(None, None, None)
        await settle()
        assert node.service._memory.used == 0
    assert len(subject.replicas.fetch_waits) == 0
    sent = [partition.traffic.bytes_out.value for partition in (*led, copied)]
    received = [reader.received for reader in readers]
    return [received, sent, subject.services.metrics.total(REQUESTS)]


@pytest.mark.parametrize("seed", range(6))
async def test_parked_fetches_have_the_answers_of_the_general_way(
    seed: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    results = []
    for is_open in (True, False):
        monkeypatch.setattr(LANE, "is_open", is_open)
        results.append(await results_of(seed))
    assert results[0] == results[1]
    assert sum(map(len, results[0][0])) > 30
