"""The limits of connections of a running node's listeners."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.node.server import Server
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import running

pytestmark = pytest.mark.slow

LISTENERS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT"
    ),
}


async def ask(client: TrioWireClient) -> int:
    """Return the error code of the answer to ApiVersions."""
    code: int = (await client.call(ApiVersionsRequest(), 0)).error_code
    return code


@asynccontextmanager
async def clients(server: Server, listener: str, count: int) -> AsyncIterator[list[TrioWireClient]]:
    """Connect clients, some of which may wait in the kernel."""
    address = server.core.net.address(listener)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await TrioWireClient.connect(*address))
            for _ in range(count)
        ]


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
async def test_nodes_get_in_when_clients_fill_the_node(tmp_path: Path, listener: str) -> None:
    """Invariant 102: Kafka counts the connections of its controllers' listeners apart."""
    async with (
        running(tmp_path, max_connections="4", **LISTENERS) as server,
        clients(server, "CLIENTS", 6) as first,
    ):
        assert await ask(first[0]) == 0
        async with clients(server, listener, 1) as (peer,):
            with trio.fail_after(20):
                assert await ask(peer) == 0
