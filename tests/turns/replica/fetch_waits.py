"""10,000 fetches that wait for bytes of one partition, and fetch sessions of many clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from kwire.log.partition_log import PartitionLog, create
from kwire.replica.fetch_sessions import FetchPartition, Ref, Session
from kwire.replica.fetch_waits import FetchWait, FetchWaits
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import EVERYONE, FetchIsolation, Partition
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 10_000
SESSIONS: Final = 1_000
PARTITIONS: Final = 10_000
FOLLOWER: Final = 2
MAX_WAIT_S: Final = 30.0


@attrs.frozen
class Waiting:
    """The waits of a broker, a partition, and the meter of its process."""

    waits: FetchWaits
    partition: Partition
    meter: TurnMeter

    def begin(
        self, count: int, isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK
    ) -> list[FetchWait]:
        """Begin long polls whose times are up together; none of them has a task."""
        begun: list[FetchWait] = []
        for _ in range(count):
            wait = self.waits.begin(1, isolation)
            self.waits.add(wait, [self.partition])
            wait.waiter.begin(trio.current_time() + MAX_WAIT_S)
            assert wait.waiter.park(lambda: None)
            begun.append(wait)
        return begun

    def end(self, begun: list[FetchWait]) -> None:
        """End the waits, as their fetches do."""
        assert all(wait.waiter.is_over for wait in begun)
        for wait in begun:
            self.waits.end(wait)
        assert not len(self.waits)


@asynccontextmanager
async def waits_of_a_broker(meter: TurnMeter) -> AsyncIterator[Waiting]:
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=1)
    waits = FetchWaits(trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(waits.run)
        yield Waiting(waits, Partition("t", 0, b"t" * 16, log), meter)
        nursery.cancel_scope.cancel()


WAITING: Final = Scene("fetches that wait for bytes", waits_of_a_broker)
row = WAITING.operation


@row("bytes for which many fetches wait", "fetches", ALL, "replica.fetch_waits._count")
async def count(waiting: Waiting, size: int) -> None:
    begun = waiting.begin(size)
    await trio.lowlevel.checkpoint()
    with waiting.meter.measuring():
        isolations = (FetchIsolation.HIGH_WATERMARK,)
        waiting.waits.on_readable(waiting.partition, isolations, 100, ends_transaction=False)
        await trio.sleep(1)
    waiting.end(begun)


@row("long polls whose time is up", "fetches", ALL, "waits.run")
async def expire(waiting: Waiting, size: int) -> None:
    begun = waiting.begin(size)
    await trio.lowlevel.checkpoint()
    with waiting.meter.measuring():
        await trio.sleep(MAX_WAIT_S + 1)
    waiting.end(begun)


@row("end of a transaction for which many fetches wait", "fetches", ALL)
async def end_transaction(waiting: Waiting, size: int) -> None:
    begun = waiting.begin(size, FetchIsolation.STABLE)
    await trio.lowlevel.checkpoint()
    with waiting.meter.measuring():
        isolations = (FetchIsolation.STABLE,)
        waiting.waits.on_readable(waiting.partition, isolations, 100, ends_transaction=True)
        await trio.sleep(1)
    waiting.end(begun)


@row("new role of a partition for which many fetches wait", "fetches", ALL)
async def change(waiting: Waiting, size: int) -> None:
    begun = waiting.begin(size)
    await trio.lowlevel.checkpoint()
    with waiting.meter.measuring():
        waiting.waits.on_changed(waiting.partition)
        await trio.sleep(1)
    waiting.end(begun)


@row("appends to a partition of many idle fetch sessions", "sessions", SESSIONS)
async def append(waiting: Waiting, size: int) -> None:
    """The first append marks the partition in all sessions, the others only in few."""
    partition, ref = waiting.partition, ("t", 0)
    sessions = [idle_session(number, ref) for number in range(size)]
    for session in sessions:
        waiting.waits.watch(session, -1).on_visited(ref, partition)
    with waiting.meter.measuring():
        for _ in range(100):
            waiting.waits.on_readable(partition, EVERYONE, 100, ends_transaction=False)
            await trio.lowlevel.checkpoint()
    assert all(session.unsettled for session in sessions)
    for session in sessions:
        waiting.waits.on_session_ended(session)


@row("end of a follower's fetch session", "partitions", PARTITIONS)
async def end_session(waiting: Waiting, size: int) -> None:
    refs = [("t", number) for number in range(size)]
    session, log = idle_session(0, *refs), waiting.partition.log
    watch = waiting.waits.watch(session, FOLLOWER)
    for ref in refs:
        partition = Partition(*ref, b"t" * 16, log)
        partition.lead(leader_of(log), 0.0)
        watch.on_visited(ref, partition)
    with waiting.meter.measuring():
        waiting.waits.on_session_ended(session)
        await trio.sleep(1)
    assert not len(watch)


def leader_of(log: PartitionLog) -> PartitionLeader:
    return PartitionLeader.take_over(
        node=1,
        leader_epoch=1,
        partition_epoch=1,
        replicas=(1, FOLLOWER),
        isr=(1, FOLLOWER),
        log=log,
        log_end=0,
        min_isr=1,
        now=0.0,
    )


def idle_session(number: int, *refs: tuple[str, int]) -> Session:
    """Return the session of a client that has read everything."""
    places: dict[Ref, FetchPartition] = {
        ref: FetchPartition("t", b"t" * 16, ref[1], 0, 1 << 20, -1, -1, -1, ref, is_settled=True)
        for ref in refs
    }
    return Session(number, False, False, 1, 0.0, 0.0, places, {}, 0.0)
