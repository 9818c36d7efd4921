"""A whole node that asks clients for their metrics, and its metrics page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.push_telemetry import PushTelemetryRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.configs.declare import ConfigError
from kwire.configs.resource_types import CLIENT_METRICS
from kwire.node.pages import pages
from kwire.node.server import Server
from kwire.records.compression import ZSTD, compress
from kwire.testing.wire import Closed, TrioWireClient
from tests.support.server.nodes import config, running
from tests.support.telemetry.payloads import Payload

pytestmark = pytest.mark.slow
APIS = {71, 72}
SERIES = {"kwire_client_metrics_max_series": "100"}
INVALID_RECORD, TOO_LARGE, UNKNOWN_SUBSCRIPTION, THROTTLED, INVALID_REQUEST = 87, 118, 117, 89, 42


@attrs.frozen
class Client:
    """A client that names its software, as all real ones do."""

    wire: TrioWireClient

    async def apis(self) -> set[int]:
        request = ApiVersionsRequest(
            client_software_name="test-client", client_software_version="1.2"
        )
        return {api.api_key for api in (await self.wire.call(request, 4)).api_keys}

    async def subscribe(self, **settings: str) -> None:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
            for name, value in settings.items()
        ]
        change = resource(
            resource_type=CLIENT_METRICS, resource_name="subscription", configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
        (answer,) = (await self.wire.call(request, 1)).responses
        assert answer.error_code == 0

    async def ask(self, instance_id: bytes = bytes(16)) -> Any:
        return await self.wire.call(
            GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0
        )

    async def push(
        self, answer: Any, metrics: bytes, codec: int = 0, *, terminating: bool = False
    ) -> int:
        request = PushTelemetryRequest(
            client_instance_id=answer.client_instance_id,
            subscription_id=answer.subscription_id,
            terminating=terminating,
            compression_type=codec,
            metrics=metrics,
        )
        code: int = (await self.wire.call(request, 0)).error_code
        return code


@asynccontextmanager
async def connect(server: Server, listener: str = "PLAINTEXT") -> AsyncIterator[Client]:
    address = server.core.net.address(listener)
    wire = await TrioWireClient.connect(*address, client_id="app")
    async with wire:
        yield Client(wire)


async def page(server: Server) -> list[str]:
    """Return the clients' lines of the metrics page."""
    answer = await pages(server)["/metrics"]()
    names = ("kwire_client_", "kwire_telemetry_")
    return [line for line in answer.lines if line is not None and line.startswith(names)]


async def count(server: Server, name: str) -> float:
    answer = await pages(server)["/metrics"]()
    (line,) = (line for line in answer.lines if line is not None and line.startswith(f"{name} "))
    return float(line.split()[1])


async def test_subscription_chooses_clients_by_their_port(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **SERIES) as server,
        connect(server) as chosen,
        connect(server) as other,
    ):
        port = chosen.wire.stream.socket.getsockname()[1]
        await chosen.subscribe(metrics="m", match=f"client_source_port={port}")
        assert (await chosen.ask()).requested_metrics == ["m"]
        assert (await other.ask()).requested_metrics == []


async def test_clients_metrics_are_on_the_metrics_page(tmp_path: Path) -> None:
    async with running(tmp_path, **SERIES) as server, connect(server) as client:
        assert await client.apis() >= APIS
        await client.subscribe(metrics="org.apache.kafka.", interval_ms="60000")
        answer = await client.ask()
        assert (answer.error_code, answer.push_interval_ms) == (0, 60_000)
        assert answer.requested_metrics == ["org.apache.kafka."]
        assert answer.accepted_compression_types == [4, 3, 1, 2]
        assert answer.telemetry_max_bytes == 1 << 20
        assert not answer.delta_temporality
        payload = Payload(group_id="g").gauge("org.apache.kafka.consumer.lag", 7, topic="t")
        assert await client.push(answer, compress(ZSTD, payload.encode()), ZSTD) == 0
        (line,) = [line for line in await page(server) if "consumer_lag" in line]
        assert line.startswith('kwire_client_consumer_lag{client_id="app",client_instance_id="')
        assert line.endswith(
            ',client_software_name="test-client",client_software_version="1.2",user="ANONYMOUS",'
            'group_id="g",topic="t"} 7'
        )
        assert await count(server, "kafka_server_client_metrics_instance_count") == 1
        assert await count(server, "kafka_server_client_metrics_plugin_export_total") == 1


async def test_pushes_that_come_too_early_or_are_damaged_are_refused(tmp_path: Path) -> None:
    settings = {**SERIES, "telemetry_max_bytes": "1000"}
    async with running(tmp_path, **settings) as server, connect(server) as client:
        answer = await client.ask()
        assert answer.push_interval_ms == 300_000, "without a subscription"
        assert answer.requested_metrics == []
        assert (await client.ask(answer.client_instance_id)).error_code == THROTTLED
        assert await client.push(answer, b"garbage") == INVALID_RECORD
        good = Payload().gauge("a", 1).encode()
        assert await client.push(answer, good) == THROTTLED
        bomb = compress(ZSTD, Payload().gauge("a" * 2000, 1).encode())
        assert await client.push(answer, bomb, ZSTD, terminating=True) == TOO_LARGE
        assert await client.push(answer, good, terminating=True) == INVALID_REQUEST
        answer.client_instance_id = bytes([5] * 16)
        assert await client.push(answer, good) == UNKNOWN_SUBSCRIPTION
        answer.client_instance_id = bytes(16)
        assert await client.push(answer, good) == INVALID_REQUEST
        assert await page(server) == [
            "kwire_telemetry_series_dropped_total 0",
            "kwire_telemetry_series 0",
        ]
        assert await count(server, "kafka_server_client_metrics_plugin_error_total") == 2
        assert await count(server, "kafka_server_client_metrics_throttle_total") == 2


async def test_changed_subscription_is_unknown_until_the_client_asks_again(tmp_path: Path) -> None:
    async with running(tmp_path, **SERIES) as server, connect(server) as client:
        await client.subscribe(metrics="a", interval_ms="60000")
        answer = await client.ask()
        await client.subscribe(metrics="b")
        good = Payload().gauge("b", 1).encode()
        assert await client.push(answer, good) == UNKNOWN_SUBSCRIPTION
        answer = await client.ask(answer.client_instance_id)
        assert (answer.error_code, answer.requested_metrics) == (0, ["b"])
        assert await client.push(answer, good, terminating=True) == 0


async def test_a_connection_has_one_instance_which_ends_with_it(tmp_path: Path) -> None:
    """The last push stays on the page: Prometheus may not have read it yet."""
    name = "kafka_server_client_metrics_instance_count"
    async with running(tmp_path, **SERIES) as server:
        async with connect(server) as client:
            await client.ask()
            answer = await client.ask()
            assert await count(server, name) == 1
            good = Payload().gauge("a", 1).encode()
            assert await client.push(answer, good, terminating=True) == 0
        for _ in range(500):
            if not await count(server, name):
                break
            await trio.sleep(0.01)
        assert await count(server, name) == 0
        assert len([line for line in await page(server) if "_client_a{" in line]) == 1


async def test_clients_that_log_in_keep_the_name_of_their_software(tmp_path: Path) -> None:
    """librdkafka sends ApiVersions only before its login."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{module} required user_alice="secret";',
    }
    async with (
        running(tmp_path, **SERIES, **settings) as server,
        connect(server, listener="LOGIN") as client,
    ):
        assert await client.apis() >= APIS
        await client.wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        login = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
        assert (await client.wire.call(login, 2)).error_code == 0
        good = Payload().gauge("a", 1).encode()
        assert await client.push(await client.ask(), good) == 0
        (line,) = [line for line in await page(server) if "_client_a{" in line]
        assert 'client_software_name="test-client"' in line
        assert 'user="alice"' in line


async def test_every_user_may_push_without_a_permission(tmp_path: Path) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer_class_name": authorizer, "super_users": "User:CN=nodes"}
    async with running(tmp_path, **SERIES, **settings) as server, connect(server) as client:
        answer = await client.ask()
        assert answer.error_code == 0
        assert await client.push(answer, Payload().gauge("a", 1).encode()) == 0


async def test_clients_are_asked_for_nothing_by_default(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connect(server) as client:
        assert not await client.apis() & APIS
        await client.subscribe(metrics="*")  # stored for other nodes
        with pytest.raises(Closed):
            await client.ask()


def test_node_without_the_packages_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.configs.telemetry.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install kwire\[telemetry\]"):
        config(tmp_path / "data", **SERIES)
    config(tmp_path / "data")
