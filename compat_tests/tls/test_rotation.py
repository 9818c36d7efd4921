"""A certificate that is replaced while clients are connected."""

from __future__ import annotations

import socket
import ssl

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from compat_tests.harness.wait import eventually
from compat_tests.tls.conftest import TlsBroker
from compat_tests.tls.stores import HOST, write_store
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.testing.wire import WireClient

SETTING = "listener.name.tls.ssl.keystore.location"


def serial(tls_broker: TlsBroker) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(tls_broker.trusted))
    with (
        socket.create_connection((HOST, tls_broker.ports["TLS"]), 30) as sock,
        context.wrap_socket(sock, server_hostname=HOST) as wrapped,
    ):
        return str((wrapped.getpeercert() or {})["serialNumber"])


def alter(tls_broker: TlsBroker, value: str, name: str = SETTING) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": tls_broker.at("OPEN")})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_new_certificate_serves_new_connections_and_ends_no_open_one(
    tls_broker: TlsBroker, topic: str
) -> None:
    before = serial(tls_broker)
    context = ssl.create_default_context(cafile=str(tls_broker.trusted))
    settings = {
        "bootstrap.servers": tls_broker.at("TLS"),
        "security.protocol": "ssl",
        "ssl.ca.location": str(tls_broker.trusted),
    }
    producer = Producer(settings)
    errors: list[object] = []

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            errors.append(error)

    with WireClient(HOST, tls_broker.ports["TLS"]) as client:
        client.sock = context.wrap_socket(client.sock, server_hostname=HOST)
        assert client.call(ApiVersionsRequest(), 0).error_code == 0
        next_store = tls_broker.directory / "next"
        next_store.mkdir()
        alter(tls_broker, str(write_store(next_store, "server").both))

        def is_new() -> bool:
            producer.produce(topic, b"x", on_delivery=on_delivery)
            producer.poll(0)
            return serial(tls_broker) != before

        eventually(is_new, "new connections get the new certificate")
        again = serial(tls_broker)
        write_store(next_store, "server")
        alter(tls_broker, str(next_store / "server.pem"))
        eventually(lambda: serial(tls_broker) != again, "the same file is read again")
        assert client.call(ApiVersionsRequest(), 0).error_code == 0
    assert producer.flush(30) == 0
    assert not errors


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listener.name.tls.ssl.client.auth", "maybe"),
        ("ssl.principal.mapping.rules", "DEFAULT"),
    ],
)
def test_setting_that_cannot_change_so_is_refused(
    name: str, value: str, tls_broker: TlsBroker
) -> None:
    with pytest.raises(KafkaException):
        alter(tls_broker, value, name)
