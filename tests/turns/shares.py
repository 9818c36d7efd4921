"""A share partition with thousands of records in flight, each in its own state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from kwire.handlers.share_acknowledge import share_acknowledge
from kwire.handlers.shared.context import Context
from tests.support.handlers.broker import create_topic, write
from tests.support.share.members import Member, ShareNode, share_node
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

RECORDS: Final = 2_000
LOCKS: Final = 10_000
ACCEPT: Final = 1
RELEASE: Final = 2
EVERY_OTHER: Final = 2


@attrs.define
class Shares:
    """A broker, a member of its share group, and the meter."""

    node: ShareNode
    member: Member
    meter: TurnMeter

    async def fill(self, count: int) -> int:
        """Acquire ``count`` new records one by one, and return the first offset."""
        partition = self.node.broker.replicas.partitions.get("t", 0)
        first = partition.log.end_offset
        for _ in range(count // 100):
            write(self.node.broker, partition, *[b"x"] * 100)
        for _ in range(count):
            rows = await self.member.fetch(max_records=1, share_acquire_mode=1)
            assert rows
            assert not rows[0].error_code
        return first

    async def acknowledge(self, acknowledgements: dict[tuple[int, int], list[int]]) -> None:
        """Measure an acknowledgement without the codec, which has rows of its own."""
        request = self.member.acknowledgement(acknowledgements)
        context = Context(services=self.node.broker.services)
        with self.meter.measuring():
            response = await share_acknowledge(context, request)
        assert response is not None
        assert not response.responses[0].partitions[0].error_code
        self.member.epoch += 1

    async def accept(self, first: int, count: int) -> None:
        assert await self.member.acknowledge({(first, first + count - 1): [ACCEPT]}) == 0


@asynccontextmanager
async def share_partition(meter: TurnMeter) -> AsyncIterator[Shares]:
    async with share_node(max_in_flight=LOCKS, max_deliveries=10) as node:
        await create_topic(node.broker)
        await node.initialize(0)
        member = node.member("m")
        await member.fetch(0)
        yield Shares(node, member, meter)


SHARED = Scene("share partitions", share_partition)
row = SHARED.operation


@row("ShareAcknowledge of many ranges", "ranges", RECORDS, "ShareAcknowledge")
async def acknowledge_ranges(shares: Shares, size: int) -> None:
    first = await shares.fill(2 * size)
    ranges = {(o, o): [ACCEPT] for o in range(first, first + 2 * size, EVERY_OTHER)}
    await shares.acknowledge(ranges)
    for offset in range(first + 1, first + 2 * size, EVERY_OTHER):
        await shares.accept(offset, 1)


@row("ShareAcknowledge with a type for each record", "records", RECORDS, "ShareAcknowledge")
async def acknowledge_by_types(shares: Shares, size: int) -> None:
    first = await shares.fill(size)
    types = [ACCEPT, RELEASE] * (size // 2)
    await shares.acknowledge({(first, first + size - 1): types})


@row(
    "ShareFetch of released records",
    "records",
    RECORDS // 2,
    "ShareFetch",
    after="ShareAcknowledge with a type for each record",
)
async def fetch_released(shares: Shares, size: int) -> None:
    with shares.meter.measuring():
        (answer,) = await shares.member.fetch(max_records=RECORDS)
    assert len(answer.acquired_records) == size
    for each in answer.acquired_records:
        await shares.accept(each.first_offset, 1)


@row("the end of a session", "records", RECORDS, "ShareAcknowledge")
async def end_session(shares: Shares, size: int) -> None:
    first = await shares.fill(size)
    with shares.meter.measuring():
        await shares.member.leave()
    shares.member.epoch = 0
    await shares.member.fetch(0, max_records=1)
    while await shares.member.fetch(max_records=size):
        pass
    await shares.accept(first, size)


@row("the end of locks", "locks", LOCKS, "share.share_partitions.run")
async def end_locks(shares: Shares, size: int) -> None:
    await shares.fill(size)
    with shares.meter.measuring():
        await trio.sleep(31)
    share = next(iter(shares.node.service))
    assert share.in_flight.next_fetch_offset == share.in_flight.start
