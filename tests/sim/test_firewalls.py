"""Simulated firewalls: they refuse new connections, and reset open ones or let them stall."""

from random import Random

import pytest
import trio

from kwire.net.connection_pool import ConnectionRefused, OutOfReach
from simulation.replication.wire import Wire


def wire_with_server(delay_s: float = 0.0) -> Wire:
    async def serve(request: object) -> object:
        await trio.sleep(delay_s)
        return request

    wire = Wire(Random(1))
    wire.servers["node-2"] = 2, serve
    return wire


async def test_reset_ends_requests_under_way_and_refuses_the_next_ones(
    autojump_clock: object,
) -> None:
    wire = wire_with_server(delay_s=1.0)
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(OutOfReach) as raised:
                await wire.carry(1, "node-2", "request")
            assert not isinstance(raised.value, ConnectionRefused), "the process may have ended"

        nursery.start_soon(ask)
        await trio.sleep(0.5)
        wire.refuse([(1, 2)], resets=True)
    with pytest.raises(ConnectionRefused):
        await wire.carry(1, "node-2", "request")
    assert await wire.carry(3, "node-2", "other source") == "other source"


async def test_without_a_reset_an_open_connection_stalls_until_its_time_limit(
    autojump_clock: object,
) -> None:
    wire = wire_with_server()
    wire.refuse([(1, 2)], resets=False)
    with trio.move_on_after(8.0) as scope:
        await wire.carry(1, "node-2", "request")
    assert scope.cancelled_caught
    with pytest.raises(ConnectionRefused):
        await wire.carry(1, "node-2", "request")
    since = trio.current_time()
    wire.admit([(1, 2)])
    assert await wire.carry(1, "node-2", "request") == "request"
    assert wire.was_refused(1, 2, since)
    assert not wire.was_refused(1, 2, since + 1.0)
