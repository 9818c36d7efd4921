"""A client that is stopped at the moment when the other node resets the connection."""

import socket
import struct

import pytest
import trio
import trio.testing

from kwire.net.client import NodeClient


@pytest.mark.parametrize("attempt", range(4))
async def test_reset_while_the_client_stops_is_no_error(attempt: int) -> None:
    """The reset and the stop may arrive in either order; neither order is an error of this node."""
    listening = socket.create_server(("127.0.0.1", 0))
    here, there = socket.socketpair()
    with listening, here, there, trio.fail_after(10):
        client = NodeClient("127.0.0.1", listening.getsockname()[1], "c")
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await trio.lowlevel.wait_readable(here)
                nursery.cancel_scope.cancel()

            nursery.start_soon(client.run)
            nursery.start_soon(stop)
            await trio.lowlevel.wait_readable(listening)
            accepted, _ = listening.accept()
            await trio.testing.wait_all_tasks_blocked()
            linger = struct.pack("ii", 1, 0)  # closing sends a reset
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            accepted.close()
            there.send(b"now")
            await trio.sleep_forever()
    assert client.lost
