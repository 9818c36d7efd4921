#!/usr/bin/env python3
"""Record conversations of members of consumer groups (KIP-848) with Apache Kafka's coordinator.

    record_consumer_groups.py FILE

Starts Apache Kafka 4.3.1, plays seeded conversations, and writes FILE (gzip, a JSON object per
line): the topics, each request with its response, and the records that Kafka wrote for the group.
`tests/group/test_recorded_conversations.py` plays the requests to kwire and compares the rest.

The members use the assignor `range`, whose result does not depend on the order of a hash table, or
`uniform` with partitions of one topic that divide evenly. Times are left out.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from kwire.codec.messages.consumer_group_heartbeat import (  # noqa: E402
    ConsumerGroupHeartbeatRequest,
)
from kwire.testing.wire import WireClient  # noqa: E402
from scripts.group_recorder import (  # noqa: E402
    create_topics,
    grow_topic,
    record_to,
)
from tests.support.group.recordings import response_form  # noqa: E402

PORT = 29_192
PARTITIONS = 50
SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
}
SEEDS = 24
STEPS = 40
ERRORS_A_STEP = 0.15
"""The share of steps that send something wrong."""


@attrs.define
class Consumer:
    """A member, as a client knows it."""

    member_id: str
    instance_id: str | None
    topics: list[str]
    epoch: int = 0
    owned: dict[str, list[int]] = attrs.field(factory=dict)
    assigned: dict[str, list[int]] = attrs.field(factory=dict)


@attrs.define
class Conversation:
    """One group's conversation, and what is recorded of it."""

    client: WireClient
    draw: random.Random
    group: str
    topics: dict[str, str]
    """Topic ids in hexadecimal, by name."""
    counts: dict[str, int]
    assignor: str
    steps: list[dict[str, Any]] = attrs.field(factory=list)
    consumers: list[Consumer] = attrs.field(factory=list)
    _next: int = 0

    def beat(self, consumer: Consumer, epoch: int, **fields: Any) -> dict[str, Any]:
        """Send a heartbeat, and record it with its response."""
        owned = fields.pop("owned", None)
        sent = {
            "group_id": self.group,
            "member_id": consumer.member_id,
            "member_epoch": epoch,
            "instance_id": consumer.instance_id,
            **fields,
        }
        shape = ConsumerGroupHeartbeatRequest.TopicPartitions
        partitions = None
        if owned is not None:
            partitions = [
                shape(topic_id=bytes.fromhex(self.topics[name]), partitions=numbers)
                for name, numbers in owned.items()
            ]
        request = ConsumerGroupHeartbeatRequest(**sent, topic_partitions=partitions)
        answer = self.client.call(request, 1)
        names = {bytes.fromhex(topic_id): name for name, topic_id in self.topics.items()}
        received = response_form(answer, names)
        self.steps.append({"sent": {**sent, "owned": owned}, "received": received})
        return received

    def follow(self, consumer: Consumer, received: dict[str, Any]) -> None:
        """Take over a response, as a client does."""
        if received["error_code"]:
            consumer.epoch, consumer.owned, consumer.assigned = 0, {}, {}
            return
        consumer.epoch = received["member_epoch"]
        if received["assignment"] is not None:
            consumer.assigned = received["assignment"]

    def step(self) -> None:
        kind = self.draw.random()
        if kind < ERRORS_A_STEP:
            self.send_error()
        elif kind < 0.35 and len(self.consumers) < 5:
            self.add()
        elif kind < 0.45 and len(self.consumers) > 1:
            self.remove(self.draw.choice(self.consumers))
        elif kind < 0.52 and self.consumers:
            self.change_topics(self.draw.choice(self.consumers))
        elif self.consumers:
            self.stay(self.draw.choice(self.consumers))
        else:
            self.add()

    def add(self) -> None:
        self._next += 1
        is_static = self.draw.random() < 0.4
        consumer = Consumer(
            f"m{self._next}", f"i{self._next}" if is_static else None, self.some_topics()
        )
        self.consumers.append(consumer)
        self.join(consumer)

    def join(self, consumer: Consumer) -> None:
        received = self.beat(
            consumer,
            0,
            owned={},
            rebalance_timeout_ms=300_000,
            subscribed_topic_names=consumer.topics,
            server_assignor=self.assignor,
        )
        self.follow(consumer, received)

    def some_topics(self) -> list[str]:
        if self.assignor == "uniform":
            return sorted(self.topics)
        return sorted(self.draw.sample(sorted(self.topics), self.draw.randint(1, 2)))

    def stay(self, consumer: Consumer) -> None:
        """Send a heartbeat, with or without what the member owns; a revocation may take long."""
        if consumer.epoch == 0:
            self.join(consumer)
            return
        if self.draw.random() < 0.7:
            consumer.owned = dict(consumer.assigned)
        fields: dict[str, Any] = {}
        if self.draw.random() < 0.8:
            fields["owned"] = consumer.owned
        self.follow(consumer, self.beat(consumer, consumer.epoch, **fields))

    def change_topics(self, consumer: Consumer) -> None:
        if consumer.epoch == 0:
            return
        consumer.topics = self.some_topics()
        received = self.beat(
            consumer,
            consumer.epoch,
            owned=consumer.owned,
            rebalance_timeout_ms=300_000,
            subscribed_topic_names=consumer.topics,
        )
        self.follow(consumer, received)

    def remove(self, consumer: Consumer) -> None:
        if consumer.instance_id is not None and self.draw.random() < 0.6:
            self.beat(consumer, -2)
            self._next += 1
            back = Consumer(f"m{self._next}", consumer.instance_id, consumer.topics)
            self.consumers[self.consumers.index(consumer)] = back
            self.join(back)
            return
        self.consumers.remove(consumer)
        self.beat(consumer, -1)

    def send_error(self) -> None:
        stranger = Consumer("stranger", None, [])
        consumer = self.draw.choice([*self.consumers, stranger])
        epoch = self.draw.choice([consumer.epoch + 1, max(consumer.epoch - 1, 1), 99])
        choices: list[dict[str, Any]] = [{"owned": {}}, {"owned": consumer.owned}, {}]
        fields = self.draw.choice(choices)
        received = self.beat(consumer, epoch, **fields)
        if received["error_code"] == 0:
            self.follow(consumer, received)

    def grow(self, name: str) -> None:
        self.counts[name] += 1
        self.steps.append(grow_topic(self.client, name, self.counts[name]))


def record_all(client: WireClient) -> list[dict[str, Any]]:
    return [record(client, seed) for seed in range(SEEDS)]


def record(client: WireClient, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    assignor = "uniform" if seed % 4 == 3 else "range"
    counts = {f"s{seed}a": 12 if assignor == "uniform" else draw.randint(1, 9)}
    if assignor == "range":
        counts[f"s{seed}b"] = draw.randint(1, 9)
    topics = create_topics(client, counts)
    talk = Conversation(client, draw, f"g{seed}", topics, dict(counts), assignor)
    if assignor == "uniform":
        grow_evenly(talk)
    else:
        for number in range(STEPS):
            talk.step()
            if number == STEPS // 2:
                talk.grow(f"s{seed}a")
    return {
        "group": talk.group,
        "topics": {name: [topics[name], count] for name, count in counts.items()},
        "steps": talk.steps,
    }


def grow_evenly(talk: Conversation) -> None:
    """Have up to four members join one after the other; each time all settle first."""
    for _ in range(4):
        talk.add()
        for _ in range(4):
            for consumer in talk.consumers:
                consumer.owned = dict(consumer.assigned)
                received = talk.beat(consumer, consumer.epoch, owned=consumer.owned)
                talk.follow(consumer, received)


if __name__ == "__main__":
    record_to(Path(sys.argv[1]), PORT, SETTINGS, record_all)
