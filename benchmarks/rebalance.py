"""Measure how long a rebalance of a large group takes, beside Apache Kafka.

    python benchmarks/rebalance.py [--peers kwire,kafka] [--protocol classic|consumer]
                                   [--sizes 10,50,200] [--rounds N]

A group with one partition for each member.  One member joins it, and leaves it again, in turn; the
time runs from its first request until every member has its new assignment.  The members are
connections of one process that speak the protocol themselves: 200 client libraries would need both
cores.  One of them asks with heartbeats for the rebalance, and all others do once it has begun, so
no heartbeat interval is in the figures: real clients notice a rebalance up to one interval later,
at either broker.  The CPU times of the broker and of the members are means.  The first rebalances
of each group, while a JVM compiles, are not counted.  The peers run in turn.

With `--protocol consumer` (KIP-848) the coordinator assigns, at once instead of at most once a
second; a change ends when all members are at the new epoch with their partitions.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import trio

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness.broker import make_broker  # noqa: E402
from kwire.codec.messages.consumer_group_heartbeat import (  # noqa: E402
    ConsumerGroupHeartbeatRequest,
)
from kwire.codec.messages.create_topics import CreateTopicsRequest  # noqa: E402
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest  # noqa: E402
from kwire.codec.messages.heartbeat import HeartbeatRequest  # noqa: E402
from kwire.codec.messages.join_group import JoinGroupRequest  # noqa: E402
from kwire.codec.messages.leave_group import LeaveGroupRequest  # noqa: E402
from kwire.codec.messages.sync_group import SyncGroupRequest  # noqa: E402
from kwire.errors import (  # noqa: E402
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
)
from kwire.testing.wire import TrioWireClient  # noqa: E402

SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "3000",
    "group.consumer.assignment.interval.ms": "0",
}
"""Kafka's default delay: all members of a new classic group are in its first generation."""
FIND, JOIN, SYNC, HEARTBEAT, LEAVE, CREATE, BEAT = 6, 9, 5, 4, 5, 7, 1
LEAVE_EPOCH: Final = -1
PROTOCOL: Final = "range"
SUBSCRIPTION: Final = b"\0\3\0\0\0\1\0\6orders" + bytes(14)
"""Bytes of the size of a consumer's subscription to one topic; brokers do not read them."""
ASSIGNMENT: Final = b"\0\3\0\0\0\1\0\6orders" + bytes(12)
WARM_UP: Final = 5
POLL_SECONDS: Final = 0.002


class Cost(NamedTuple):
    """The figures of rebalances of one kind."""

    ms: list[float]
    broker_ms: float
    """CPU time of the broker for one rebalance."""
    members_ms: float
    """CPU time of the members for one rebalance."""


@attrs.define(eq=False)
class Member:
    """A member of the group, with a connection of its own."""

    client: TrioWireClient
    group: str
    id: str = ""
    generation: int = -1
    assignment: bytes = b""

    async def take_id(self) -> None:
        """Ask to join, which gives the member its id."""
        answer = await self.client.call(self._joining(), JOIN)
        assert answer.error_code == MemberIdRequired.code, answer
        self.id = answer.member_id

    async def join(self) -> None:
        """Join, and wait for the assignment; join again if another rebalance begins meanwhile."""
        while True:
            joined = await self.client.call(self._joining(), JOIN)
            assert joined.error_code == 0, joined
            self.generation = joined.generation_id
            sync = SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                protocol_type="consumer",
                protocol_name=PROTOCOL,
            )
            if joined.leader == self.id:
                shape = SyncGroupRequest.SyncGroupRequestAssignment
                sync.assignments = [
                    shape(
                        member_id=member.member_id,
                        assignment=ASSIGNMENT + bytes([number >> 8, number & 255]),
                    )
                    for number, member in enumerate(joined.members)
                ]
            synced = await self.client.call(sync, SYNC)
            if synced.error_code != RebalanceInProgress.code:
                assert synced.error_code == 0, synced
                self.assignment = bytes(synced.assignment)
                return

    async def heartbeat(self) -> None:
        """Ask until the group rebalances; a first heartbeat may overtake the newcomer's request."""
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id
        )
        answer = await self.client.call(request, HEARTBEAT)
        while answer.error_code == 0:
            answer = await self.client.call(request, HEARTBEAT)
        assert answer.error_code == RebalanceInProgress.code, answer

    async def follow(self) -> None:
        """Learn of the rebalance, and join again."""
        await self.heartbeat()
        await self.join()

    async def leave(self) -> None:
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.id)
        request = LeaveGroupRequest(group_id=self.group, members=[identity])
        answer = await self.client.call(request, LEAVE)
        assert answer.error_code == 0, answer
        self.id = ""

    def _joining(self) -> JoinGroupRequest:
        shape = JoinGroupRequest.JoinGroupRequestProtocol
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[shape(name=PROTOCOL, metadata=SUBSCRIPTION)],
        )


@attrs.define(eq=False)
class Consumer:
    """A member whose partitions the coordinator assigns, with a connection of its own."""

    client: TrioWireClient
    group: str
    id: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    assigned: dict[bytes, list[int]] = attrs.field(factory=dict)

    async def beat(self) -> None:
        """Send a heartbeat with what the member owns, and take over the response."""
        shape = ConsumerGroupHeartbeatRequest.TopicPartitions
        owned = [shape(topic_id=each, partitions=p) for each, p in self.assigned.items()]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=300_000 if self.epoch == 0 else -1,
            subscribed_topic_names=[self.group] if self.epoch == 0 else None,
            topic_partitions=owned,
        )
        answer = await self.client.call(request, BEAT)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self.assigned = {each.topic_id: list(each.partitions) for each in topics}

    async def follow(self, epoch: int) -> None:
        """Give up what is to be given up, and reach an epoch with partitions."""
        while self.epoch < epoch or not self.assigned:
            await self.beat()

    async def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.id, member_epoch=LEAVE_EPOCH
        )
        answer = await self.client.call(request, BEAT)
        assert answer.error_code == 0, answer
        self.id, self.epoch, self.assigned = str(uuid.uuid4()), 0, {}


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def wait_coordinator(port: int, group: str) -> None:
    """Wait until the group has a coordinator that answers."""
    finding = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    heartbeat = HeartbeatRequest(group_id=group, generation_id=1, member_id="none")
    absent = {
        error.code for error in (CoordinatorNotAvailable, CoordinatorLoadInProgress, NotCoordinator)
    }
    async with await TrioWireClient.connect("127.0.0.1", port) as client:
        while True:
            await client.call(finding, FIND)  # It creates the topic of the offsets.
            if (await client.call(heartbeat, HEARTBEAT)).error_code not in absent:
                return
            await trio.sleep(0.1)


def check(members: Sequence[Member]) -> None:
    """Check that all members are in one generation and that no two share a partition."""
    assert len({member.generation for member in members}) == 1, "one generation"
    assert len({member.assignment for member in members}) == len(members), "one owner each"


async def grow(members: Sequence[Member], newcomer: Member) -> None:
    await newcomer.take_id()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(newcomer.join)
        await members[0].heartbeat()
        nursery.start_soon(members[0].join)
        for member in members[1:]:
            nursery.start_soon(member.follow)
    check([*members, newcomer])


async def shrink(members: Sequence[Member], leaver: Member) -> None:
    await leaver.leave()
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(member.follow)
    check(members)


async def form(members: Sequence[Member]) -> None:
    """Let all members join a new group."""
    async with trio.open_nursery() as nursery:
        for member in members:
            await member.take_id()
            nursery.start_soon(member.join)
    check(members)


def check_consumers(members: Sequence[Consumer]) -> None:
    """Check that all members are at one epoch and share the partitions."""
    assert len({member.epoch for member in members}) == 1, "one epoch"
    owned = [(t, n) for m in members for t, numbers in m.assigned.items() for n in numbers]
    assert len(owned) == len(set(owned)) >= len(members), "one owner each"


async def learn_of_target(member: Consumer, former_epoch: int) -> None:
    """Send heartbeats until the group has a new target; that of a large group takes a while."""
    await member.beat()
    while member.epoch <= former_epoch:
        await trio.sleep(POLL_SECONDS)
        await member.beat()


async def grow_consumers(members: Sequence[Consumer], newcomer: Consumer) -> None:
    await learn_of_target(newcomer, members[0].epoch)
    await follow_all(members, newcomer.epoch)
    await newcomer.follow(newcomer.epoch)
    check_consumers([*members, newcomer])


async def shrink_consumers(members: Sequence[Consumer], leaver: Consumer) -> None:
    await leaver.leave()
    await learn_of_target(members[0], members[0].epoch)
    await follow_all(members, members[0].epoch)
    check_consumers(members)


async def follow_all(members: Sequence[Consumer], epoch: int) -> None:
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(member.follow, epoch)


async def form_consumers(members: Sequence[Consumer]) -> None:
    """Create the group's topic, with a partition more than members, and let all members join."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=members[0].group, num_partitions=len(members) + 1, replication_factor=1
    )
    created = await members[0].client.call(
        CreateTopicsRequest(topics=[topic], timeout_ms=60_000), CREATE
    )
    assert created.topics[0].error_code == 0, created
    for member in members:
        await learn_of_target(member, member.epoch)
    await follow_all(members, members[-1].epoch)
    check_consumers(members)


# Any: the functions of a protocol take members of its class only.
PROTOCOLS: Final[dict[str, tuple[Any, Any, Any, Any]]] = {
    "classic": (Member, form, grow, shrink),
    "consumer": (Consumer, form_consumers, grow_consumers, shrink_consumers),
}
"""By protocol: the class of members, and the functions that form and change their group."""


async def measure(port: int, process: int, size: int, count: int, protocol: str) -> dict[str, Cost]:
    """Return the cost of joins and of leaves of a group that has ``size`` members."""
    kind, form_group, grow_group, shrink_group = PROTOCOLS[protocol]
    group = f"group-{size}-{time.monotonic_ns()}"
    await wait_coordinator(port, group)
    members = [kind(await TrioWireClient.connect("127.0.0.1", port), group) for _ in range(size)]
    extra = kind(await TrioWireClient.connect("127.0.0.1", port), group)
    await form_group(members)
    times: dict[str, list[float]] = {"join": [], "leave": []}
    broker = dict.fromkeys(times, 0.0)
    own = dict.fromkeys(times, 0.0)
    for number in range(WARM_UP + count):
        for name, change in (("join", grow_group), ("leave", shrink_group)):
            before = cpu_seconds(process), time.process_time(), time.perf_counter()
            await change(members, extra)
            elapsed = time.perf_counter() - before[2]
            if number >= WARM_UP:
                times[name].append(1000 * elapsed)
                own[name] += time.process_time() - before[1]
                broker[name] += cpu_seconds(process) - before[0]
    for member in [*members, extra]:
        await member.client.stream.aclose()
    return {
        name: Cost(times[name], 1000 * broker[name] / count, 1000 * own[name] / count)
        for name in times
    }


def run(peer: str, sizes: Sequence[int], count: int, protocol: str) -> dict[tuple[int, str], Cost]:
    """Measure all sizes with one broker."""
    with tempfile.TemporaryDirectory(prefix=f"rebalance-{peer}-") as directory:
        broker = make_broker(peer, Path(directory), SETTINGS)
        assert broker.process is not None
        try:
            costs: dict[tuple[int, str], Cost] = {}
            for size in sizes:
                figures = trio.run(measure, broker.port, broker.process.pid, size, count, protocol)
                costs.update({(size, name): cost for name, cost in figures.items()})
            return costs
        finally:
            broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure rebalances beside Apache Kafka.")
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--protocol", default="classic", choices=list(PROTOCOLS))
    parser.add_argument("--sizes", default="10,50,200", help="members; up to 1,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=20, help="rebalances of a kind in a round")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # The broker inherits it.
    peers = options.peers.split(",")
    sizes = [int(size) for size in options.sizes.split(",")]
    costs: dict[tuple[int, str, str], list[Cost]] = {}
    for _ in range(options.rounds):
        for peer in peers:
            for (size, name), cost in run(peer, sizes, options.count, options.protocol).items():
                costs.setdefault((size, name, peer), []).append(cost)
    print("members change peer    median ms  longest  broker's CPU ms  members' CPU ms")
    for (size, name, peer), rounds in costs.items():
        ms = [value for cost in rounds for value in cost.ms]
        broker = statistics.mean(cost.broker_ms for cost in rounds)
        own = statistics.mean(cost.members_ms for cost in rounds)
        print(
            f"{size:7} {name:6} {peer:6} {statistics.median(ms):10.1f} {max(ms):8.1f}"
            f" {broker:16.1f} {own:16.1f}"
        )


if __name__ == "__main__":
    main()
