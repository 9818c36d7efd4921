"""Many clients that join, leave and die; what they see must stay consistent.

Invariant 66: in a generation each partition has one owner. Invariant 67: a client that is gone
leaves no member behind. Invariant 70: after the last change the group is stable within a bounded
time, and a live client never gets UNKNOWN_MEMBER_ID, not even while a new coordinator loads a
stable group.
"""

from random import Random
from typing import Any

import attrs
import pytest

from kwire.codec.messages.heartbeat import HeartbeatResponse
from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.codec.messages.sync_group import SyncGroupResponse
from kwire.errors import IllegalGeneration, KafkaError, MemberIdRequired, RebalanceInProgress
from kwire.group.model import ClassicGroupState
from kwire.group.settings import GroupSettings
from tests.support.group.sim import Sim

PARTITIONS = 12
SESSION_MS = 10_000
REBALANCE_MS = 15_000


@attrs.define
class Client:
    """A consumer as clients implement it."""

    name: str
    sim: Sim
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    is_waiting: bool = False
    partitions: tuple[int, ...] = ()
    heartbeat_at: float = 0.0
    is_alive: bool = True

    def join(self) -> None:
        self.partitions, self.is_waiting = (), True
        self.sim.join(
            self.name,
            self.member_id,
            instance=self.instance,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )

    def on_answer(self, reply: Any) -> None:
        self.is_waiting = False
        code = reply.code if isinstance(reply, KafkaError) else reply.error_code
        if isinstance(reply, JoinGroupResponse) and reply.member_id:
            self.member_id = reply.member_id
        if code in (MemberIdRequired.code, RebalanceInProgress.code, IllegalGeneration.code):
            self.join()
            return
        assert code == 0, f"{self.name} got error {code}"
        match reply:
            case JoinGroupResponse():
                self.generation, self.is_waiting = reply.generation_id, True
                self.sim.sync(
                    self.name,
                    self.member_id,
                    self.generation,
                    self.assign(reply),
                    instance=self.instance,
                )
            case SyncGroupResponse():
                self.partitions = tuple(reply.assignment)
                self.heartbeat_at = self.sim.now + 3
            case HeartbeatResponse():
                self.heartbeat_at = self.sim.now + 3

    def assign(self, reply: JoinGroupResponse) -> dict[str, bytes]:
        """Assign the partitions as the leader; empty for a follower, which gets no members."""
        ids = [member.member_id for member in reply.members]
        return {
            member: bytes(range(place, PARTITIONS, len(ids))) for place, member in enumerate(ids)
        }

    def send_heartbeat_if_due(self) -> None:
        if not self.is_waiting and self.generation >= 0 and self.sim.now >= self.heartbeat_at:
            self.is_waiting = True
            self.sim.heartbeat(self.name, self.member_id, self.generation, instance=self.instance)


@attrs.define
class Churn:
    """All clients of a group, and random changes of them."""

    random: Random
    sim: Sim
    clients: dict[str, Client] = attrs.field(factory=dict)
    client_count: int = 0

    def live_clients(self) -> list[Client]:
        return [client for client in self.clients.values() if client.is_alive]

    def deliver_answers(self) -> None:
        rounds = 0
        while answers := self.sim.take_answers():
            rounds += 1
            assert rounds < 100, "clients and coordinator exchange requests without end"
            for name, reply in answers:
                client = self.clients.get(name)
                if client is not None and client.is_alive:
                    client.on_answer(reply)
            self.sim.fire_due()

    def run_second(self) -> None:
        self.sim.advance(1)
        self.deliver_answers()
        for client in self.live_clients():
            client.send_heartbeat_if_due()
        self.deliver_answers()
        self.check()

    def check(self) -> None:
        group = self.sim.groups.groups.get("g")
        if group is None or group.state is not ClassicGroupState.STABLE:
            return
        partitions = [
            partition
            for client in self.live_clients()
            if client.generation == group.generation
            for partition in client.partitions
        ]
        assert len(partitions) == len(set(partitions)), "a partition has two owners"

    def change_membership(self) -> None:
        live = self.live_clients()
        events = ["join", "join", "join static", "die", "leave", "lose answer", "none"]
        match self.random.choice(events):
            case "join" | "join static" as event if len(live) < 8:
                self.client_count += 1
                name = f"c{self.client_count}"
                instance = f"i{self.client_count}" if event == "join static" else None
                client = self.clients[name] = Client(name, self.sim, instance)
                client.join()
            case "die" if live:
                self.random.choice(live).is_alive = False
            case "leave" if live:
                client = self.random.choice(live)
                client.is_alive = False
                if client.member_id:
                    self.sim.leave("admin", (client.member_id, None))
            case "lose answer" if live:
                # The answer is lost with the connection: the client sends its request again.
                client = self.random.choice(live)
                if client.is_waiting and client.generation < 0 and client.member_id:
                    self.sim.disconnect(client.name)
                    client.join()


@pytest.mark.parametrize("seed", range(20))
def test_group_of_changing_clients_becomes_stable(seed: int) -> None:
    random = Random(seed)
    delay_ms = random.choice([0, 3_000])
    churn = Churn(random, Sim(GroupSettings(group_initial_rebalance_delay_ms=delay_ms)))
    for _ in range(90):
        churn.change_membership()
        churn.deliver_answers()
        churn.run_second()
    for _ in range((SESSION_MS + 3 * REBALANCE_MS + 2 * delay_ms) // 1000):
        churn.run_second()
    live = churn.live_clients()
    group = churn.sim.groups.groups["g"]
    assert set(group.members) == {client.member_id for client in live}
    assert not group.pending_join
    if live:
        assert group.state is ClassicGroupState.STABLE
        assert sorted(p for client in live for p in client.partitions) == list(range(PARTITIONS))
        generation = group.generation
        churn.sim.restart()
        for client in live:
            client.is_waiting = False
        for _ in range(30):
            churn.run_second()
        assert churn.sim.groups.groups["g"].generation == generation
        assert churn.sim.groups.groups["g"].state is ClassicGroupState.STABLE
