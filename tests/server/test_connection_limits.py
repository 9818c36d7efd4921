"""The limits of connections of a running node's listeners."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import BROKER
from kwire.errors import InvalidRequest
from kwire.node.server import Server
from kwire.testing.wire import Closed, TrioWireClient
from tests.support.server.nodes import running

pytestmark = pytest.mark.slow

CLIENTS_MAX: Final = "listener.name.clients.max.connections"

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


async def set_limit(server: Server, value: str) -> int:
    """Set how many connections the listener CLIENTS may have; return the error code."""
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = shape.AlterableConfig(name=CLIENTS_MAX, config_operation=0, value=value)
    resource = shape(resource_type=BROKER, resource_name="1", configs=[config])
    async with clients(server, "PLAINTEXT", 1) as (admin,):
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        response = await admin.call(request, 1)
    code: int = response.responses[0].error_code
    return code


async def test_listener_has_limits_of_its_own_that_change_while_the_node_runs(
    tmp_path: Path,
) -> None:
    """Invariant 102: KIP-402."""
    async with (
        running(tmp_path, **{CLIENTS_MAX: "1"}, **LISTENERS) as server,
        clients(server, "CLIENTS", 3) as (first, second, third),
    ):
        assert await ask(first) == 0
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.2):
            await ask(second)
        async with clients(server, "PLAINTEXT", 3) as others:
            for each in others:
                assert await ask(each) == 0
        assert await set_limit(server, "0") == InvalidRequest.code
        assert await set_limit(server, "2") == 0
        with trio.fail_after(20):
            await second.read_frame()
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.2):
            await ask(third)


async def test_quota_of_an_address_limits_the_connections_of_a_running_node(
    tmp_path: Path,
) -> None:
    entry = AlterClientQuotasRequest.EntryData
    quota = entry(
        entity=[entry.EntityData(entity_type="ip", entity_name="127.1")],
        ops=[entry.OpData(key="connection_creation_rate", value=1, remove=False)],
    )
    async with (
        running(tmp_path, **{"quota.window.num": "2"}, **LISTENERS) as server,
        clients(server, "CLIENTS", 1) as (admin,),
    ):
        request = AlterClientQuotasRequest(entries=[quota], validate_only=False)
        (answer,) = (await admin.call(request, 1)).entries
        assert answer.error_code == 0
        async with clients(server, "CLIENTS", 2) as (first, second):
            assert await ask(first) == 0
            with pytest.raises(Closed):
                await ask(second)
