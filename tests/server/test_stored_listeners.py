"""Listeners that a tool stores through a controller, which a broker could not have."""

from pathlib import Path

import pytest

from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import BROKER
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import create, running

MAP = "listener.security.protocol.map"


@pytest.mark.parametrize("name", [MAP, "listeners"])
async def test_node_runs_on_and_starts_again(tmp_path: Path, name: str) -> None:
    """``kafka-configs --bootstrap-controller`` stores them; only the broker can judge them."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    entry = resource.AlterableConfig(name=name, config_operation=0, value="nonsense")
    async with running(tmp_path) as server:
        own, before = str(server.config.node_id), server.config.endpoints
        change = resource(resource_type=BROKER, resource_name=own, configs=[entry])
        request = IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
        controller = server.core.net.address("CONTROLLER")
        async with await TrioWireClient.connect(*controller) as client:
            (answer,) = (await client.call(request, 1)).responses
        assert answer.error_code == 0
        await server.core.publisher.wait_applied(server.core.quorum.next_offset - 1)
        assert dict(server.core.current.image.config(BROKER, own)) == {name: "nonsense"}
        assert server.core.current.config.endpoints == before
        assert await create(server, "t") == 0
    async with running(tmp_path) as server:
        assert await create(server, "u") == 0
