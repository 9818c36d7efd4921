"""Share fetches that wait for more bytes than they find at first."""

from typing import Any

import trio

from tests.support.handlers.broker import create_topic, one_batch, write
from tests.support.share.members import Row, deliveries, share_node


async def test_bytes_that_are_there_count_for_a_fetch_that_waits(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        member = node.member("m")
        await member.fetch(0)
        write(node.broker, partition, b"0")
        rows: list[Row] = []

        async def fetch() -> None:
            rows.extend(await member.fetch(max_wait_ms=20_000, min_bytes=100))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.sleep(1)
            assert rows == []
            write(node.broker, partition, b"1")
        assert [deliveries(row) for row in rows] == [[(0, 1, 1)]]
        assert trio.current_time() == 1


async def test_gap_longer_than_the_limit_in_flight_is_crossed_while_records_are_held(
    autojump_clock: Any,
) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"held")
        partition.log.append_follower(one_batch(b"far", base_offset=2500, leader_epoch=0))
        write(node.broker, partition, b"next")
        first, second = node.member("first"), node.member("second")
        (row,) = await first.fetch(0, max_records=1)
        assert deliveries(row) == [(0, 0, 1)]
        (row,) = await second.fetch(0, max_wait_ms=500)
        assert deliveries(row) == [(2500, 2500, 1)]
        assert await second.fetch(max_wait_ms=500) == []
        assert trio.current_time() == 0.5, "records that may not be acquired keep no client busy"
        assert await first.acknowledge({(0, 0): [1]}) == 0
        (row,) = await second.fetch(max_wait_ms=500)
        assert deliveries(row) == [(2501, 2501, 1)]
