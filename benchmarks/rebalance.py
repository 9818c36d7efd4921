"""Measure how long a rebalance of a large group takes, beside Apache Kafka.

    python benchmarks/rebalance.py [--peers kwire,kafka] [--sizes 10,50,200] [--rounds N]

A group of the classic protocol with one partition for each member.  One member joins it, and leaves
it again, in turn; the time runs from its first request until every member has its new assignment.
The members are connections of one process that speak the protocol themselves: 200 client libraries
would need both cores.  One of them asks with heartbeats for the rebalance, and all others do once
it has begun, so no heartbeat interval is in the figures: real clients notice a rebalance up to one
interval later, at either broker.  The CPU times of the broker and of the members are means.  The
first rebalances of each group, while a JVM compiles, are not counted.  The peers run in turn.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import attrs
import trio

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.harness.broker import make_broker  # noqa: E402
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

SETTINGS: Final = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's default: all members of a new group are in its first generation."""
FIND, JOIN, SYNC, HEARTBEAT, LEAVE = 6, 9, 5, 4, 5
PROTOCOL: Final = "range"
SUBSCRIPTION: Final = b"\0\3\0\0\0\1\0\6orders" + bytes(14)
"""Bytes of the size of a consumer's subscription to one topic; brokers do not read them."""
ASSIGNMENT: Final = b"\0\3\0\0\0\1\0\6orders" + bytes(12)
WARM_UP: Final = 5


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


async def measure(port: int, process: int, size: int, count: int) -> dict[str, Cost]:
    """Return the cost of joins and of leaves of a group that has ``size`` members."""
    group = f"group-{size}-{time.monotonic_ns()}"
    await wait_coordinator(port, group)
    members = [Member(await TrioWireClient.connect("127.0.0.1", port), group) for _ in range(size)]
    extra = Member(await TrioWireClient.connect("127.0.0.1", port), group)
    async with trio.open_nursery() as nursery:
        for member in members:
            await member.take_id()
            nursery.start_soon(member.join)
    check(members)
    times: dict[str, list[float]] = {"join": [], "leave": []}
    broker = dict.fromkeys(times, 0.0)
    own = dict.fromkeys(times, 0.0)
    for number in range(WARM_UP + count):
        for name, change in (("join", grow), ("leave", shrink)):
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


def run(peer: str, sizes: Sequence[int], count: int) -> dict[tuple[int, str], Cost]:
    """Measure all sizes with one broker."""
    with tempfile.TemporaryDirectory(prefix=f"rebalance-{peer}-") as directory:
        broker = make_broker(peer, Path(directory), SETTINGS)
        assert broker.process is not None
        try:
            costs: dict[tuple[int, str], Cost] = {}
            for size in sizes:
                figures = trio.run(measure, broker.port, broker.process.pid, size, count)
                costs.update({(size, name): cost for name, cost in figures.items()})
            return costs
        finally:
            broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure rebalances beside Apache Kafka.")
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--sizes", default="10,50,200")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=20, help="rebalances of a kind in a round")
    options = parser.parse_args()
    peers = options.peers.split(",")
    sizes = [int(size) for size in options.sizes.split(",")]
    costs: dict[tuple[int, str, str], list[Cost]] = {}
    for _ in range(options.rounds):
        for peer in peers:
            for (size, name), cost in run(peer, sizes, options.count).items():
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
