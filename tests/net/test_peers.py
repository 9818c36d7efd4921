"""Connections to other nodes: shared, closed after a time-out, retried with a back-off."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing

from kwire.clock import SystemClock
from kwire.net.connection_pool import ConnectionPool, ConnectionRefused, Network, OutOfReach
from tests.support.net.peer import Other, heartbeat


@asynccontextmanager
async def network() -> AsyncIterator[tuple[ConnectionPool, Other]]:
    other = Other()
    node = Network(SystemClock(), Random(1))
    pool = ConnectionPool(node, "raft-client-1")
    async with trio.open_nursery() as nursery:
        await nursery.start(other.service.run)
        other.service.bind("L", "127.0.0.1", 0)
        other.service.accept("L", lambda *_: other)
        await nursery.start(node.run)
        yield pool, other
        nursery.cancel_scope.cancel()


async def test_calls_share_a_connection() -> None:
    async with network() as (pool, other):
        answers: list[int] = []

        async def call(generation: int) -> None:
            response = await pool.call("127.0.0.1", other.port, heartbeat("g", generation))
            answers.append(response.error_code)

        async with trio.open_nursery() as nursery:
            for generation in (1, 2, 3):
                nursery.start_soon(call, generation)
        assert sorted(answers) == [1, 2, 3]
        assert other.connection_count == 1


async def test_request_without_answer_closes_its_connection() -> None:
    async with network() as (pool, other):
        await pool.call("127.0.0.1", other.port, heartbeat("g"))
        assert other.connection_count == 1
        pool.timeout_s = 0.02
        with pytest.raises(OutOfReach, match="no answer"):
            await pool.call("127.0.0.1", other.port, heartbeat("silent"))
        pool.timeout_s = 5.0
        response = await pool.call("127.0.0.1", other.port, heartbeat("g"))
        assert response.error_code == 7
        assert other.connection_count == 2


async def test_closed_connection_is_opened_again_by_the_next_call() -> None:
    async with network() as (pool, other):
        with pytest.raises(OutOfReach):
            await pool.call("127.0.0.1", other.port, heartbeat("close"))
        response = await pool.call("127.0.0.1", other.port, heartbeat("g"))
        assert response.error_code == 7


async def test_refused_connection_differs_from_one_that_ended() -> None:
    async with network() as (pool, other):
        with pytest.raises(OutOfReach) as caught:
            await pool.call("127.0.0.1", other.port, heartbeat("close"))
        assert not isinstance(caught.value, ConnectionRefused)
        port = other.port
        other.service.stop_accepting()
        with pytest.raises(ConnectionRefused):
            await pool.call("127.0.0.1", port, heartbeat("close"))


async def test_unreachable_node_is_not_tried_before_the_backoff_is_over() -> None:
    async with network() as (pool, other):
        port = other.port
        other.service.stop_accepting()
        with pytest.raises(ConnectionRefused, match="127"):
            await pool.call("127.0.0.1", port, heartbeat("g"))
        pool.backoff_s = 60.0
        await trio.sleep(0.03)
        with pytest.raises(OutOfReach):
            await pool.call("127.0.0.1", port, heartbeat("g"))
        with pytest.raises(OutOfReach, match="waiting before the next attempt"):
            await pool.call("127.0.0.1", port, heartbeat("g"))
