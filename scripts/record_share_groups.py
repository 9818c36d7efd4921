#!/usr/bin/env python3
"""Record conversations of members of share groups (KIP-932) with Apache Kafka's coordinator.

    record_share_groups.py FILE

Starts Apache Kafka 4.3.1, plays seeded conversations, and writes FILE (gzip, a JSON object per
line): the topics, each request with its response, and the records that Kafka wrote for the group.
`tests/group/test_recorded_share_groups.py` plays the requests to kwire and compares the rest.

After a step that makes Kafka initialize share partitions, the recorder waits until that is done, so
the next step always finds them initialized.
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

from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402
from scripts.group_recorder import (  # noqa: E402
    create_topics,
    delete_topic,
    grow_topic,
    record_to,
)
from tests.support.group.recordings import response_form  # noqa: E402

PORT = 29_292
SETTINGS = {
    "group.share.assignment.interval.ms": "0",
    "group.share.max.session.timeout.ms": "600000",
    "group.share.session.timeout.ms": "600000",
}
SEEDS = 12
STEPS = 36
ERRORS_A_STEP = 0.15
"""The share of steps that send something wrong."""
SETTLE_S = 0.4


@attrs.define
class Member:
    """A member, as a client knows it."""

    member_id: str
    topics: list[str]
    epoch: int = 0


@attrs.define
class Conversation:
    """One group's conversation, and what is recorded of it."""

    client: WireClient
    draw: random.Random
    group: str
    topics: dict[str, str]
    """Topic ids in hexadecimal, by name."""
    counts: dict[str, int]
    steps: list[dict[str, Any]] = attrs.field(factory=list)
    members: list[Member] = attrs.field(factory=list)
    _next: int = 0

    def beat(self, member: Member, epoch: int, **fields: Any) -> dict[str, Any]:
        """Send a heartbeat, and record it with its response."""
        sent = {
            "group_id": self.group,
            "member_id": member.member_id,
            "member_epoch": epoch,
            **fields,
        }
        answer = self.client.call(ShareGroupHeartbeatRequest(**sent), 1)
        time.sleep(SETTLE_S)
        names = {bytes.fromhex(topic_id): name for name, topic_id in self.topics.items()}
        received = response_form(answer, names)
        self.steps.append({"sent": sent, "received": received})
        return received

    def follow(self, member: Member, received: dict[str, Any]) -> None:
        """Take over a response, as a client does."""
        member.epoch = 0 if received["error_code"] else received["member_epoch"]

    def step(self) -> None:
        kind = self.draw.random()
        if kind < ERRORS_A_STEP:
            self.send_error()
        elif (kind < 0.35 and len(self.members) < 6) or not self.members:
            self.add()
        elif kind < 0.45 and len(self.members) > 1:
            member = self.draw.choice(self.members)
            self.members.remove(member)
            self.beat(member, -1)
        elif kind < 0.55:
            self.change_topics(self.draw.choice(self.members))
        else:
            member = self.draw.choice(self.members)
            if member.epoch == 0:
                self.join(member)
            else:
                self.follow(member, self.beat(member, member.epoch))

    def add(self) -> None:
        self._next += 1
        member = Member(f"m{self._next}", self.some_topics())
        self.members.append(member)
        self.join(member)

    def join(self, member: Member) -> None:
        rack = self.draw.choice([None, None, "r"])
        received = self.beat(member, 0, subscribed_topic_names=member.topics, rack_id=rack)
        self.follow(member, received)

    def some_topics(self) -> list[str]:
        names = sorted(self.topics)
        if self.draw.random() < 0.6:
            return names
        return sorted(self.draw.sample(names, self.draw.randint(1, len(names))))

    def change_topics(self, member: Member) -> None:
        if member.epoch == 0:
            return
        member.topics = self.some_topics()
        received = self.beat(member, member.epoch, subscribed_topic_names=member.topics)
        self.follow(member, received)

    def send_error(self) -> None:
        member = self.draw.choice([*self.members, Member("stranger", [])])
        epoch = self.draw.choice([member.epoch + 1, max(member.epoch - 1, 1), 99, -1, -2, 0])
        if epoch == -1 and member in self.members:
            return
        received = self.beat(member, epoch)
        if received["error_code"] == 0:
            self.follow(member, received)

    def grow(self, name: str) -> None:
        self.counts[name] += 2
        self.steps.append(grow_topic(self.client, name, self.counts[name]))

    def delete(self, name: str) -> None:
        self.steps.append(delete_topic(self.client, name))


def record_all(client: WireClient) -> list[dict[str, Any]]:
    record(client, 1000)  # The first group waits for `__share_group_state`.
    time.sleep(5)
    return [record(client, seed) for seed in range(SEEDS)]


def record(client: WireClient, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    counts = {f"s{seed}{letter}": draw.randint(1, 7) for letter in "ab"}
    topics = create_topics(client, counts)
    talk = Conversation(client, draw, f"g{seed}", topics, dict(counts))
    for number in range(STEPS if seed < SEEDS else 3):
        talk.step()
        if number == STEPS // 3:
            talk.grow(f"s{seed}a")
        if number == 2 * STEPS // 3:
            talk.delete(f"s{seed}b")
    return {
        "group": talk.group,
        "topics": {name: [topics[name], count] for name, count in counts.items()},
        "steps": talk.steps,
    }


if __name__ == "__main__":
    record_to(Path(sys.argv[1]), PORT, SETTINGS, record_all)
