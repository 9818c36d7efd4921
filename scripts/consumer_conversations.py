"""Conversations of members of consumer groups (KIP-848) with a coordinator, by kind.

Each draws its steps from a seed. A step has the time since the start of its conversation, because
sessions end and regular expressions are resolved again by time.
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

from kwire.codec.messages.consumer_group_heartbeat import (  # noqa: E402
    ConsumerGroupHeartbeatRequest,
)
from kwire.testing.wire import WireClient  # noqa: E402
from scripts.group_recorder import create_topics, grow_topic  # noqa: E402
from tests.support.group.recordings import response_form  # noqa: E402

ERRORS_A_STEP = 0.15
"""The share of steps that send something wrong."""
STATIC_SHARE = 0.4
SESSION_S = 4.0
"""The session timeout of groups whose members expire."""
REVOCATION_MS = 2_000
RESOLUTION_S = 0.4
"""The time in which the coordinator resolves an expression after a heartbeat."""
REFRESH_S = 10.5
"""The time after which the coordinator looks for new topics again."""


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
    static_share: float = STATIC_SHARE
    rebalance_ms: int = 3_000_000
    _next: int = 0
    _began_at: float = attrs.field(factory=time.monotonic)

    def run(self, step_count: int) -> None:
        """Take steps; in the middle a topic grows."""
        for number in range(step_count):
            self.step()
            if number == step_count // 2:
                self.grow(min(self.counts))

    def record(self, step: dict[str, Any], at_s: float) -> None:
        self.steps.append({**step, "at": at_s})

    def now(self) -> float:
        return round(time.monotonic() - self._began_at, 3)

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
        at_s = self.now()
        answer = self.client.call(request, 1)
        names = {bytes.fromhex(topic_id): name for name, topic_id in self.topics.items()}
        received = response_form(answer, names)
        self.record({"sent": {**sent, "owned": owned}, "received": received}, at_s)
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

    def next_id(self) -> str:
        self._next += 1
        return f"m{self._next}"

    def add(self) -> None:
        member_id = self.next_id()
        is_static = self.draw.random() < self.static_share
        consumer = Consumer(member_id, f"i{self._next}" if is_static else None, self.some_topics())
        self.consumers.append(consumer)
        self.join(consumer)

    def join(self, consumer: Consumer) -> None:
        received = self.beat(
            consumer,
            0,
            owned={},
            rebalance_timeout_ms=self.rebalance_ms,
            server_assignor=self.assignor,
            **self.subscription(consumer),
        )
        self.follow(consumer, received)

    def subscription(self, consumer: Consumer) -> dict[str, Any]:
        """Return the fields of a heartbeat that name the member's topics."""
        return {"subscribed_topic_names": consumer.topics}

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
            rebalance_timeout_ms=self.rebalance_ms,
            **self.subscription(consumer),
        )
        self.follow(consumer, received)

    def remove(self, consumer: Consumer) -> None:
        if consumer.instance_id is not None and self.draw.random() < 0.6:
            self.beat(consumer, -2)
            self.bring_back(consumer)
            return
        self.consumers.remove(consumer)
        self.beat(consumer, -1)

    def bring_back(self, consumer: Consumer) -> None:
        """Let a static member return under another member id."""
        back = Consumer(self.next_id(), consumer.instance_id, consumer.topics)
        self.consumers[self.consumers.index(consumer)] = back
        self.join(back)

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
        self.record(grow_topic(self.client, name, self.counts[name]), self.now())


@attrs.define
class StaticMembers(Conversation):
    """Static members that leave for a while, return with other topics, and take others' ids."""

    static_share: float = 1.0

    def send_error(self) -> None:
        if not self.consumers:
            return
        victim = self.draw.choice(self.consumers)
        thief = Consumer(self.next_id(), victim.instance_id, self.some_topics())
        kind = self.draw.choice(("join", "beat", "leave", "stranger", "wait"))
        if kind == "join":
            self.join(thief)  # Refused while the other member holds the instance id.
        elif kind == "beat":
            self.beat(thief, max(victim.epoch, 1), owned={})
        elif kind == "leave":
            self.beat(thief, self.draw.choice((-1, -2)))
        elif kind == "stranger":
            thief.instance_id = "nobody"
            self.beat(thief, self.draw.choice((1, -1, -2)))
        else:
            self.beat(victim, -2)
            self.beat(victim, max(victim.epoch, 1), owned={})
            victim.topics = self.some_topics()
            self.bring_back(victim)


@attrs.define
class RackedMembers(Conversation):
    """Members in racks, some of which move to another one."""

    def subscription(self, consumer: Consumer) -> dict[str, Any]:
        rack = self.draw.choice(("r1", "r2", "r3", None))
        return {"subscribed_topic_names": consumer.topics, "rack_id": rack}


@attrs.define
class Expressions(Conversation):
    """Members that subscribe to regular expressions, some of them also to topics by name."""

    _expressions: list[str] = attrs.field(factory=list)

    def beat(self, consumer: Consumer, epoch: int, **fields: Any) -> dict[str, Any]:
        received = super().beat(consumer, epoch, **fields)
        time.sleep(RESOLUTION_S)
        return received

    def subscription(self, consumer: Consumer) -> dict[str, Any]:
        a, _, c = sorted(self.topics)[:3]
        regex = self.draw.choice((f"{a[:-1]}.*", f"{a}|{c}", f"{a[:-1]}[bc]", "none.*", ""))
        if self.draw.random() < 0.1:
            regex = "["
        names = consumer.topics if not regex or self.draw.random() < 0.3 else []
        return {"subscribed_topic_names": names, "subscribed_topic_regex": regex}

    def some_topics(self) -> list[str]:
        return sorted(self.draw.sample(sorted(self.topics), self.draw.randint(0, 2)))

    def run(self, step_count: int) -> None:
        """Take steps; in the middle a topic is created, which matches some expressions."""
        for number in range(step_count):
            self.step()
            if number == step_count // 2:
                self.create(f"{min(self.topics)[:-1]}z")

    def create(self, name: str) -> None:
        count = self.draw.randint(1, 4)
        self.topics.update(create_topics(self.client, {name: count}))
        step = {"topic": name, "partitions": count, "id": self.topics[name]}
        self.record(step, self.now())
        time.sleep(REFRESH_S)


@attrs.define
class ExpiringMembers(Conversation):
    """Members with short sessions, which some of them let expire; others revoke nothing in time."""

    rebalance_ms: int = REVOCATION_MS

    def run(self, step_count: int) -> None:
        """Take steps; in the end all sessions expire."""
        super().run(step_count)
        time.sleep(SESSION_S * 1.5)

    def step(self) -> None:
        kind = self.draw.random()
        if kind < 0.15 and self.consumers:
            self.wait(self.draw.sample(self.consumers, len(self.consumers) // 2))
        elif kind < 0.25 and self.consumers:
            self.keep_partitions(self.draw.choice(self.consumers))
        else:
            super().step()

    def wait(self, lively: list[Consumer]) -> None:
        """Let the sessions of all members but the lively ones end."""
        for _ in range(2):
            time.sleep(SESSION_S * 0.6)
            for consumer in lively:
                if consumer.epoch:
                    consumer.owned = dict(consumer.assigned)
                    received = self.beat(consumer, consumer.epoch, owned=consumer.owned)
                    self.follow(consumer, received)

    def keep_partitions(self, consumer: Consumer) -> None:
        """Send heartbeats past the time for a revocation, without giving anything up."""
        for _ in range(3):
            if consumer.epoch == 0:
                return
            self.follow(consumer, self.beat(consumer, consumer.epoch))
            time.sleep(REVOCATION_MS / 1000 / 2)
