"""Random consumers that send only what has changed, as Java's do: each partition gets an owner.

A consumer names its partitions after an assignment, but not when it only changes its subscription.
They show invariants 66, 70 and 74.
"""

import random
import re
from contextlib import suppress
from typing import Any

import attrs
import pytest

from kwire.errors import GroupIdNotFound, KafkaError, UnknownMemberId
from kwire.group.consumer.settings import ConsumerSettings
from tests.support.group.sim import Sim

TOPICS = ("tea", "tin", "cup")
EXPRESSIONS = ("t.*", "cup|tin", "z.*")


@attrs.define
class Consumer:
    """A consumer, as its application sees it; it gives up partitions at once."""

    sim: Sim
    draw: random.Random
    name: str
    names: list[str] = attrs.field(factory=list)
    regex: str = ""
    epoch: int = 0
    owned: dict[str, list[int]] = attrs.field(factory=dict)
    unsent: dict[str, Any] = attrs.field(factory=dict)
    """The fields of the next heartbeat."""

    def subscribe(self) -> None:
        """Subscribe to some topics, to an expression, or to both."""
        self.names = self.draw.sample(TOPICS, self.draw.randint(0, 2))
        self.regex = self.draw.choice(EXPRESSIONS) if self.draw.random() < 0.6 else ""
        self.unsent |= {"topics": self.names, "subscribed_topic_regex": self.regex}

    def act(self) -> None:
        if not self.epoch:
            self.unsent = {"topics": self.names, "subscribed_topic_regex": self.regex}
        fields, self.unsent = self.unsent, {}
        try:
            reply = self.sim.consume(self.name, self.epoch, **fields)
        except KafkaError:
            self.epoch, self.owned = 0, {}
            return
        self.epoch = reply.epoch
        if reply.assigned is not None:
            self.owned = reply.assigned
            self.unsent["owned"] = self.owned

    def leave(self) -> None:
        with suppress(GroupIdNotFound, UnknownMemberId):
            self.sim.consume(self.name, -1)
        self.epoch, self.owned = 0, {}

    def reads(self, topic: str) -> bool:
        return topic in self.names or re.fullmatch(self.regex, topic) is not None


def check(sim: Sim, consumers: list[Consumer]) -> None:
    """Check that each partition has an owner that reads its topic, and knows that it has it."""
    group = sim.groups.consumer_group("g")
    assert group is not None
    assert group.state.value == "Stable"
    owners = sorted(
        (topic, number)
        for consumer in consumers
        for topic, numbers in consumer.owned.items()
        for number in numbers
        if consumer.reads(topic)
    )
    assert owners == sorted(
        (topic, number)
        for topic, count in sim.topics.counts.items()
        if any(consumer.reads(topic) for consumer in consumers)
        for number in range(count)
    )


@pytest.mark.parametrize("seed", range(60))
def test_each_partition_gets_an_owner_that_reads_its_topic(seed: int) -> None:
    draw = random.Random(seed)
    sim = Sim()
    sim.consumer_settings = ConsumerSettings(assignment_interval_ms=draw.choice([0, 1_000]))
    for topic in TOPICS[: draw.randint(1, 3)]:
        sim.topics.put(topic, draw.randint(1, 4))
    consumers = [Consumer(sim, draw, f"m{number}") for number in range(3)]
    for consumer in consumers:
        consumer.subscribe()
    for _ in range(50):
        kind, consumer = draw.random(), draw.choice(consumers)
        if kind < 0.65:
            consumer.act()
        elif kind < 0.8:
            consumer.subscribe()
        elif kind < 0.85:
            consumer.leave()
        elif kind < 0.88:
            topic = draw.choice(TOPICS)
            sim.topics.put(topic, sim.topics.counts.get(topic, 0) + 1)
        elif kind < 0.9:
            sim.restart()
        else:
            sim.advance(draw.choice([1, 11]))
    for _ in range(10):
        sim.advance(5)
        for consumer in consumers:
            consumer.act()
    check(sim, consumers)
