"""Share partitions whose state is slow to load, and the fetches that wait for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kwire.errors import CoordinatorNotAvailable, UnknownServerError
from kwire.share.persister import ReadState
from tests.support.handlers.broker import create_topic, write
from tests.support.share.members import Row, ShareNode, deliveries, share_node
from tests.support.share.persister import MemoryPersister

LOAD_S = 5.0


@asynccontextmanager
async def slow_node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ShareNode]:
    """Run a broker with two partitions of one record each; the state of the second is slow."""
    read = MemoryPersister.read

    async def read_slowly(
        persister: MemoryPersister, group_id: str, topic_id: bytes, number: int, epoch: int
    ) -> ReadState:
        state = await read(persister, group_id, topic_id, number, epoch)
        if number == 1:
            await trio.sleep(LOAD_S)
        return ReadState(persister.error_code) if persister.error_code else state

    monkeypatch.setattr(MemoryPersister, "read", read_slowly)
    async with share_node() as node:
        await create_topic(node.broker, partitions=2)
        await node.initialize(0, partitions=2)
        for number in range(2):
            write(node.broker, node.broker.replicas.partitions.get("t", number), b"0")
        yield node


def by_partition(rows: list[Row]) -> dict[int, list[tuple[int, int, int]]]:
    return {row.partition_index: deliveries(row) for row in rows if row.acquired_records}


async def test_other_partitions_are_delivered_while_a_state_is_loaded(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_node(monkeypatch) as node:
        member = node.member("m")
        rows = await member.fetch(0, 1, max_wait_ms=500)
        assert by_partition(rows) == {0: [(0, 0, 1)]}
        assert trio.current_time() == 0
        assert await member.fetch(max_wait_ms=500) == []
        assert trio.current_time() == 0.5, "a fetch waits for a load no longer than for records"
        rows = await member.fetch(max_wait_ms=10_000)
        assert by_partition(rows) == {1: [(0, 0, 1)]}
        assert trio.current_time() == LOAD_S, "one load serves all fetches"


async def test_records_wake_a_fetch_that_waited_for_a_load(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_node(monkeypatch) as node:
        member = node.member("m")
        await member.fetch(0, 1, max_wait_ms=10_000, max_records=1)
        async with trio.open_nursery() as nursery:
            rows: list[Row] = []

            async def fetch() -> None:
                rows.extend(await member.fetch(max_wait_ms=20_000, min_bytes=100))

            nursery.start_soon(fetch)
            await trio.sleep(LOAD_S + 1)
            write(node.broker, node.broker.replicas.partitions.get("t", 1), b"1")
        assert by_partition(rows) == {1: [(0, 1, 1)]}
        assert trio.current_time() == LOAD_S + 1


async def test_failed_load_is_answered_at_once_and_repeated(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_node(monkeypatch) as node:
        member = node.member("m")
        await member.fetch(0, 1, max_wait_ms=500)
        node.persister.error_code = CoordinatorNotAvailable.code
        (row,) = await member.fetch(max_wait_ms=20_000)
        assert row.error_code == CoordinatorNotAvailable.code
        assert trio.current_time() == LOAD_S
        node.persister.error_code = 0
        rows = await member.fetch(max_wait_ms=20_000)
        assert by_partition(rows) == {1: [(0, 0, 1)]}


async def test_fault_in_a_load_fails_only_its_partition(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(persister: MemoryPersister, *of: object) -> ReadState:
        raise RuntimeError

    monkeypatch.setattr(MemoryPersister, "read", fail)
    async with share_node() as node:
        await create_topic(node.broker)
        (row,) = await node.member("m").fetch(0)
        assert row.error_code == UnknownServerError.code


async def test_load_that_outlives_the_group_is_not_used(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's offsets may have been reset meanwhile."""
    async with slow_node(monkeypatch) as node:
        first = node.member("first")
        await first.fetch(1, max_wait_ms=500)
        await first.leave()
        partition = node.broker.replicas.partitions.get("t", 1)
        write(node.broker, partition, b"1")
        await trio.sleep(LOAD_S - 1)
        await node.initialize(1, partitions=2)
        rows = await node.member("second").fetch(1, max_wait_ms=20_000)
        assert by_partition(rows) == {1: [(1, 1, 1)]}
