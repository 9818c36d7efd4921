"""Sessions over many share partitions that end: all records are released, in many short turns."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio

from kwire.share.sessions import SessionKey
from tests.support.handlers.broker import create_topic, write
from tests.support.share.members import GROUP, Member, ShareNode, deliveries, share_node
from tests.support.share.persister import MemoryPersister

PARTITIONS: Final = 40


@asynccontextmanager
async def member_with_records() -> AsyncIterator[tuple[ShareNode, Member]]:
    """Run a broker; the member holds a record of each partition."""
    async with share_node() as node:
        await create_topic(node.broker, partitions=PARTITIONS)
        await node.initialize(0, partitions=PARTITIONS)
        for number in range(PARTITIONS):
            write(node.broker, node.broker.replicas.partitions.get("t", number), b"0")
        member = node.member("m")
        rows = await member.fetch(*range(PARTITIONS), max_bytes=1_000_000)
        assert [deliveries(row) for row in rows] == [[(0, 0, 1)]] * PARTITIONS
        yield node, member


async def test_end_of_a_session_lets_others_run_in_between(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, writes, write_state = 0, Counter[int](), MemoryPersister.write

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()

    async def note_turn(persister: MemoryPersister, *state: Any) -> int:
        writes[turn] += 1
        return await write_state(persister, *state)

    monkeypatch.setattr(MemoryPersister, "write", note_turn)
    async with member_with_records() as (_, member), trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await member.leave()
        nursery.cancel_scope.cancel()
    assert writes.total() == PARTITIONS
    assert max(writes.values()) <= 8


async def test_cancelled_end_of_a_session_releases_all_records(autojump_clock: Any) -> None:
    async with member_with_records() as (node, _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await node.service.end_session(node.service.sessions.find(SessionKey(GROUP, "m")))
        await trio.sleep(1)
        other = node.member("other")
        rows = await other.fetch(*range(PARTITIONS), max_bytes=1_000_000)
        assert [deliveries(row) for row in rows] == [[(0, 0, 2)]] * PARTITIONS
