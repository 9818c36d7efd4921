"""Many clients that join, leave and die; what they see must stay consistent.

Invariant 66: in a generation each partition has one owner. Invariant 67: a member that is gone
leaves no ghost. Invariant 70: after the last change the group is stable within a bounded time, and
a live client never gets UNKNOWN_MEMBER_ID, not even while a new coordinator takes over a stable
group.
"""

from random import Random
from typing import Any

import attrs
import pytest

from kwire.codec.messages.heartbeat import HeartbeatResponse
from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.codec.messages.sync_group import SyncGroupResponse
from kwire.errors import IllegalGeneration, KafkaError, MemberIdRequired, RebalanceInProgress
from kwire.group.model import State
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
    waits: bool = False
    owned: tuple[int, ...] = ()
    beat_at: float = 0.0
    alive: bool = True

    def join(self) -> None:
        self.owned, self.waits = (), True
        self.sim.join(
            self.name,
            self.member_id,
            instance=self.instance,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )

    def heard(self, reply: Any) -> None:
        self.waits = False
        code = reply.code if isinstance(reply, KafkaError) else reply.error_code
        if isinstance(reply, JoinGroupResponse) and reply.member_id:
            self.member_id = reply.member_id
        if code in (MemberIdRequired.code, RebalanceInProgress.code, IllegalGeneration.code):
            self.join()
            return
        assert code == 0, f"{self.name} was told {code}"
        match reply:
            case JoinGroupResponse():
                self.generation, self.waits = reply.generation_id, True
                self.sim.sync(
                    self.name,
                    self.member_id,
                    self.generation,
                    self.shares(reply),
                    instance=self.instance,
                )
            case SyncGroupResponse():
                self.owned = tuple(reply.assignment)
                self.beat_at = self.sim.now + 3
            case HeartbeatResponse():
                self.beat_at = self.sim.now + 3

    def shares(self, reply: JoinGroupResponse) -> dict[str, bytes]:
        ids = [member.member_id for member in reply.members]
        return {
            member: bytes(range(place, PARTITIONS, len(ids))) for place, member in enumerate(ids)
        }

    def tick(self) -> None:
        if not self.waits and self.generation >= 0 and self.sim.now >= self.beat_at:
            self.waits = True
            self.sim.heartbeat(self.name, self.member_id, self.generation, instance=self.instance)


@attrs.define
class Crowd:
    """All clients, and what happens to them."""

    random: Random
    sim: Sim
    clients: dict[str, Client] = attrs.field(factory=dict)
    made: int = 0

    def live(self) -> list[Client]:
        return [client for client in self.clients.values() if client.alive]

    def listen(self) -> None:
        rounds = 0
        while answers := self.sim.answered():
            rounds += 1
            assert rounds < 100, "clients and coordinator talk without end"
            for who, reply in answers:
                client = self.clients.get(who)
                if client is not None and client.alive:
                    client.heard(reply)
            self.sim.settle()

    def second(self) -> None:
        self.sim.advance(1)
        self.listen()
        for client in self.live():
            client.tick()
        self.listen()
        self.check()

    def check(self) -> None:
        group = self.sim.groups.groups.get("g")
        if group is None or group.state is not State.STABLE:
            return
        owned = [
            partition
            for client in self.live()
            if client.generation == group.generation
            for partition in client.owned
        ]
        assert len(owned) == len(set(owned))

    def happen(self) -> None:
        live = self.live()
        match self.random.choice(["come", "come", "static", "die", "leave", "lost", "calm"]):
            case "come" | "static" as how if len(live) < 8:
                self.made += 1
                name = f"c{self.made}"
                instance = f"i{self.made}" if how == "static" else None
                client = self.clients[name] = Client(name, self.sim, instance)
                client.join()
            case "die" if live:
                self.random.choice(live).alive = False
            case "leave" if live:
                client = self.random.choice(live)
                client.alive = False
                if client.member_id:
                    self.sim.leave("nobody", (client.member_id, None))
            case "lost" if live:
                # the answer was lost with the connection: it asks again
                client = self.random.choice(live)
                if client.waits and client.generation < 0 and client.member_id:
                    self.sim.forget(client.name)
                    client.join()


@pytest.mark.parametrize("seed", range(20))
def test_a_crowd_settles(seed: int) -> None:
    random = Random(seed)
    delay_ms = random.choice([0, 3_000])
    crowd = Crowd(random, Sim(GroupSettings(group_initial_rebalance_delay_ms=delay_ms)))
    for _ in range(90):
        crowd.happen()
        crowd.listen()
        crowd.second()
    for _ in range((SESSION_MS + 3 * REBALANCE_MS + 2 * delay_ms) // 1000):
        crowd.second()
    live = crowd.live()
    group = crowd.sim.groups.groups["g"]
    assert set(group.members) == {client.member_id for client in live}
    assert not group.pending_join
    if live:
        assert group.state is State.STABLE
        assert sorted(p for client in live for p in client.owned) == list(range(PARTITIONS))
        generation = group.generation
        crowd.sim.restart()
        for client in live:
            client.waits = False
        for _ in range(30):
            crowd.second()
        assert crowd.sim.groups.groups["g"].generation == generation
        assert crowd.sim.groups.groups["g"].state is State.STABLE
