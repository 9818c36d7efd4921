#!/usr/bin/env python3
"""Record conversations of members of streams groups (KIP-1071) with Apache Kafka's coordinator.

    record_streams_groups.py FILE

Starts Apache Kafka 4.3.1, plays seeded conversations, and writes FILE (gzip, a JSON object per
line): the topics, each request with its response, and the records that Kafka wrote for the group.
`tests/group/test_recorded_streams_groups.py` plays the requests to kwire and compares the rest.

Every third conversation has a topology with internal topics, every third one members with
endpoints. The recorder waits until Kafka has created internal topics, so the next step always finds
them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from kwire.testing.wire import WireClient  # noqa: E402
from scripts.group_recorder import (  # noqa: E402
    create_topics,
    delete_topic,
    describe_topics,
    grow_topic,
    record_to,
)
from tests.support.group.streams import request_from, streams_form  # noqa: E402

PORT = 29_392
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.max.session.timeout.ms": "600000",
    "group.streams.num.standby.replicas": "1",
    "group.streams.session.timeout.ms": "600000",
}
SEEDS = 15
STEPS = 45
ERRORS_A_STEP = 0.12
"""The share of steps that send something wrong."""
SETTLE_S = 0.05

Tasks = dict[str, list[int]]


@attrs.define
class Member:
    """A member, as a client knows it."""

    member_id: str
    process: str
    endpoint: list[Any] | None
    epoch: int = 0
    endpoint_epoch: int = -1
    active: Tasks = attrs.field(factory=dict)
    standby: Tasks = attrs.field(factory=dict)


@attrs.define
class Conversation:
    """One group's conversation, and what is recorded of it."""

    client: WireClient
    draw: random.Random
    seed: int
    topics: dict[str, str]
    """Topic ids in hexadecimal, by name."""
    counts: dict[str, int]
    steps: list[dict[str, Any]] = attrs.field(factory=list)
    members: list[Member] = attrs.field(factory=list)
    _next: int = 0

    @property
    def group(self) -> str:
        return f"g{self.seed}"

    @property
    def topology(self) -> list[dict[str, Any]]:
        """The subtopologies: sources, sinks, repartition topics and changelogs."""
        source, other = sorted(self.topics)[:2]
        if self.seed % 3 != 1:
            return [{"id": "0", "sources": [source]}, {"id": "1", "sources": [other]}]
        repartition, changelog = f"r{self.seed}", f"c{self.seed}"
        return [
            {"id": "0", "sources": [source], "sinks": [repartition]},
            {"id": "1", "repartition": [repartition], "changelogs": [changelog]},
        ]

    def beat(self, member: Member, epoch: int, **fields: Any) -> dict[str, Any]:
        """Send a heartbeat, and record it with its response."""
        sent = {
            "group": self.group,
            "member": member.member_id,
            "epoch": epoch,
            "endpoint_epoch": member.endpoint_epoch,
            **fields,
        }
        answer = self.client.call(request_from(sent), 0)
        time.sleep(SETTLE_S)
        received = streams_form(answer)
        self.steps.append({"sent": sent, "received": received})
        return received

    def follow(self, member: Member, received: dict[str, Any]) -> None:
        """Take over a response, as a client does."""
        if received["error_code"]:
            member.epoch, member.active, member.standby = 0, {}, {}
            return
        member.epoch = received["member_epoch"]
        member.endpoint_epoch = received["endpoint_epoch"]
        if received["active"] is not None:
            member.active, member.standby = received["active"], received["standby"]

    def step(self) -> None:
        kind = self.draw.random()
        if kind < ERRORS_A_STEP:
            self.send_error()
        elif (kind < 0.28 and len(self.members) < 6) or not self.members:
            self.add()
        elif kind < 0.36 and len(self.members) > 1:
            member = self.draw.choice(self.members)
            self.members.remove(member)
            self.beat(member, -1)
        else:
            self.go_on(self.draw.choice(self.members))

    def go_on(self, member: Member) -> None:
        if member.epoch == 0:
            self.join(member)
            return
        owned: dict[str, Any] = {}
        if self.draw.random() < 0.7:
            owned = {"active": member.active, "standby": member.standby}
        self.follow(member, self.beat(member, member.epoch, **owned))

    def add(self) -> None:
        self._next += 1
        process = f"p{self.draw.randint(1, 3)}"
        endpoint = None
        if self.seed % 3 == 2 and self.draw.random() < 0.6:
            endpoint = [f"host{self._next}", 1000 + self._next]
        self.members.append(Member(f"m{self._next}", process, endpoint))
        self.join(self.members[-1])

    def join(self, member: Member) -> None:
        received = self.beat(
            member,
            0,
            topology=self.topology,
            process=member.process,
            endpoint=member.endpoint,
            active={},
            standby={},
        )
        self.follow(member, received)
        if any(code == 3 for code, _ in received["statuses"]):
            self.await_internal_topics()

    def await_internal_topics(self) -> None:
        """Wait until Kafka has created the internal topics, and record them."""
        time.sleep(2)
        names = [f"r{self.seed}", f"c{self.seed}"]
        for name, topic_id, count in describe_topics(self.client, names):
            self.steps.append({"topic": name, "partitions": count, "id": topic_id})

    def send_error(self) -> None:
        member = self.draw.choice([*self.members, Member("stranger", "p", None)])
        epoch = self.draw.choice([member.epoch + 1, max(member.epoch - 1, 1), 99, -1, -2])
        if epoch == -1 and member in self.members:
            return
        owned = self.draw.choice(
            [{}, {"active": {"0": [0, 99]}, "standby": {}}, {"active": {"7": [0]}, "standby": {}}]
        )
        received = self.beat(member, epoch, **owned)
        if received["error_code"] == 0:
            self.follow(member, received)

    def grow(self, name: str) -> None:
        self.counts[name] += 2
        self.steps.append(grow_topic(self.client, name, self.counts[name]))

    def delete(self, name: str) -> None:
        self.steps.append(delete_topic(self.client, name))


def record_all(client: WireClient) -> list[dict[str, Any]]:
    return [record(client, seed) for seed in range(SEEDS)]


def record(client: WireClient, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    counts = {f"s{seed}{letter}": draw.randint(1, 6) for letter in "ab"}
    topics = create_topics(client, counts)
    talk = Conversation(client, draw, seed, topics, dict(counts))
    for number in range(STEPS):
        talk.step()
        if number == 2 * STEPS // 3:
            talk.grow(f"s{seed}a")
        if number == 5 * STEPS // 6 and seed % 3 == 0:
            talk.delete(f"s{seed}b")
    return {
        "group": talk.group,
        "topics": {name: [topics[name], count] for name, count in counts.items()},
        "steps": talk.steps,
    }


if __name__ == "__main__":
    record_to(Path(sys.argv[1]), PORT, SETTINGS, record_all)
