"""Random members of both protocols in one consumer group: one owner a partition, and an end.

They show invariants 66, 70, 72 and 74.
"""

import random

import attrs
import pytest

from kwire.codec.compile import encode
from kwire.codec.messages.consumer_protocol import ConsumerProtocolSubscription
from kwire.errors import KafkaError, RebalanceInProgress
from kwire.group.consumer.embedded import read_assignment
from kwire.group.consumer.model import ConsumerGroup, MemberState
from tests.support.group.sim import Sim
from tests.support.group.topics import topic_id

TOPICS = ("t", "u")
Partition = tuple[str, int]


@attrs.define
class Client:
    """A consumer, as its application sees it."""

    sim: Sim
    name: str
    topics: tuple[str, ...]
    epoch: int = 0
    owned: set[Partition] = attrs.field(factory=set)
    assigned: set[Partition] = attrs.field(factory=set)

    def lose_membership(self) -> None:
        self.epoch = 0
        self.owned.clear()
        self.assigned.clear()

    def by_topic(self) -> dict[str, list[int]]:
        return {
            topic: sorted(number for name, number in self.owned if name == topic)
            for topic in TOPICS
            if any(name == topic for name, _ in self.owned)
        }


class Consumer(Client):
    """A member of the new protocol; it revokes at once, or a heartbeat later."""

    def act(self, draw: random.Random) -> None:
        try:
            if self.epoch == 0:
                self.take(*self.sim.consume(self.name, topics=self.topics))
            else:
                self.take(*self.sim.consume(self.name, self.epoch, owned=self.by_topic()))
        except KafkaError:
            self.lose_membership()
        self.owned &= self.assigned
        if draw.random() < 0.9:
            self.owned |= self.assigned

    def take(self, epoch: int, assigned: dict[str, list[int]] | None) -> None:
        self.epoch = epoch
        if assigned is not None:
            self.assigned = {(t, number) for t, numbers in assigned.items() for number in numbers}

    def leave(self) -> None:
        if self.epoch:
            self.sim.beat(self.name, -1)
        self.lose_membership()


class ClassicConsumer(Client):
    """A member of the classic protocol, with a cooperative assignor."""

    def act(self, draw: random.Random) -> None:
        try:
            if self.epoch == 0 or self.has_to_rejoin():
                self.rejoin()
        except KafkaError:
            self.lose_membership()

    def has_to_rejoin(self) -> bool:
        reply = self.sim.reply(self.sim.heartbeat(self.name, self.name, self.epoch))
        return bool(reply.error_code == RebalanceInProgress.code)

    def rejoin(self) -> None:
        shape = ConsumerProtocolSubscription.TopicPartition
        owned = [shape(topic=t, partitions=numbers) for t, numbers in self.by_topic().items()]
        message = ConsumerProtocolSubscription(topics=list(self.topics), owned_partitions=owned)
        protocols = {"cooperative-sticky": b"\0\1" + encode(message, 1)}
        reply = self.sim.reply(self.sim.join(self.name, self.name, protocols=protocols))
        if reply is None or reply.error_code:
            self.lose_membership()
            return
        self.epoch = reply.generation_id
        reply = self.sim.reply(self.sim.sync(self.name, self.name, self.epoch))
        if reply is None or reply.error_code:
            return
        partitions = read_assignment(reply.assignment, self.sim.topics)
        assert partitions is not None
        names = {topic_id(topic): topic for topic in TOPICS}
        self.owned = {(names[t], n) for t, numbers in partitions.items() for n in numbers}

    def leave(self) -> None:
        if self.epoch:
            self.sim.leave(self.name, (self.name, None))
        self.lose_membership()


def owners(group: ConsumerGroup) -> dict[tuple[bytes, int], str]:
    """Return the owner of each partition; fail if there are two."""
    by_partition: dict[tuple[bytes, int], str] = {}
    for member in group.members.values():
        for owned in (member.assigned, member.revoking):
            for topic, numbers in owned.items():
                for number in numbers:
                    assert (topic, number) not in by_partition, (topic, number, member.member_id)
                    by_partition[topic, number] = member.member_id
    return by_partition


def check(sim: Sim) -> None:
    group = sim.groups.consumer_group("g")
    assert (group is None) or "g" not in sim.groups.groups
    if group is None:
        return
    counted = {
        (topic, number): epoch
        for topic, numbers in group.owner_epochs.items()
        for number, epoch in numbers.items()
    }
    assert counted == {at: group.members[name].epoch for at, name in owners(group).items()}
    stable = sum(m.is_reconciled_to(group.assignment_epoch) for m in group.members.values())
    assert (stable == len(group.members)) == (
        group.stable_counts.get(group.assignment_epoch, 0) == len(group.members)
    )
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert (replayed.members, replayed.target) == (group.members, group.target)
    assert (replayed.owner_epochs, replayed.state) == (group.owner_epochs, group.state)


@pytest.mark.parametrize("seed", range(40))
def test_each_partition_has_one_owner_whatever_members_do(seed: int) -> None:
    draw = random.Random(seed)
    sim = Sim()
    sim.settings = attrs.evolve(sim.settings, group_initial_rebalance_delay_ms=0)
    counts = {"t": 5, "u": 3}
    for name, count in counts.items():
        sim.topics.put(name, count)
    clients: list[Consumer | ClassicConsumer] = [
        Consumer(sim, f"m{n}", TOPICS[: 1 + n % 2]) for n in range(4)
    ]
    if seed % 2:
        clients += [ClassicConsumer(sim, f"c{n}", TOPICS) for n in range(2)]
    clients[0].act(draw)
    for _ in range(150):
        kind, client = draw.random(), draw.choice(clients)
        if kind < 0.06 and client is not clients[0]:
            client.leave()
        elif kind < 0.08:
            sim.restart()
        elif kind < 0.1:
            counts["t"] += 1
            sim.topics.put("t", counts["t"])
        elif kind < 0.2:
            sim.advance(draw.choice([1, 5, 20, 50]))
        else:
            client.act(draw)
        check(sim)
    for _ in range(30):
        for client in clients:
            client.act(draw)
        check(sim)
    group = sim.groups.consumer_group("g")
    assert group is not None
    assert group.state.value == "Stable"
    assert all(member.state == MemberState.STABLE for member in group.members.values())
    assert {(topic, number) for topic, number in owners(group)} == {
        (topic_id(name), number) for name, count in counts.items() for number in range(count)
    }
    for client in clients:
        assert client.owned == {
            (sim.topics.name_of(topic), number)
            for (topic, number), owner in owners(group).items()
            if owner == client.name
        }
