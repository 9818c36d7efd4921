"""A certificate that is replaced while clients are connected."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from compat_tests.harness.broker import make_broker
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.tls.conftest import TlsBroker
from compat_tests.tls.stores import HOST, Store, write_store, write_trusted
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
    set_on_broker({"bootstrap.servers": tls_broker.at("OPEN")}, name, value)


def set_on_broker(connection: dict[str, Any], name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient(connection)
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
    assert producer.flush(60) == 0
    assert not errors


@pytest.mark.parametrize("fault", ["missing", "damaged", "another subject", "a host less"])
def test_certificate_that_cannot_replace_the_old_one_is_rejected(
    fault: str, tls_broker: TlsBroker, tmp_path: Path
) -> None:
    path = tmp_path / "server.pem"
    if fault == "damaged":
        path.write_text("-----BEGIN CERTIFICATE-----\nnothing")
    elif fault == "another subject":
        path = write_store(tmp_path, "other").both
    elif fault == "a host less":
        path = write_store(tmp_path, "server", "localhost").both
    before = serial(tls_broker)
    with pytest.raises(KafkaException) as refused:
        alter(tls_broker, str(path))
    assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    assert serial(tls_broker) == before


def encrypted_between_brokers(store: Store, trusted: Path) -> tuple[int, int, dict[str, str]]:
    """Return a port with TLS, one without, and the settings of a broker with both."""
    port, open_port, controller = new_ports(3)
    addresses = f"TLS://{HOST}:{port},OPEN://{HOST}:{open_port}"
    settings = {
        "listeners": f"{addresses},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": addresses,
        "listener.security.protocol.map": "TLS:SSL,OPEN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "TLS",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
    }
    return port, open_port, settings


@pytest.mark.long
def test_certificate_between_brokers_can_be_replaced_after_it_has_expired(
    broker_kind: str, tmp_path: Path
) -> None:
    """Apache Kafka compares the new one with the old one, which nobody can verify now."""
    life_s = 15 if broker_kind == "kwire" else 60
    ends_at = time.monotonic() + life_s
    old = write_store(tmp_path, "server", valid_days=life_s / 86_400)
    port, open_port, settings = encrypted_between_brokers(old, write_trusted(tmp_path))
    broker = make_broker(broker_kind, tmp_path / "broker", settings)
    try:
        context = ssl.create_default_context(cafile=settings["ssl.truststore.location"])

        def is_trusted() -> bool:
            with socket.create_connection((HOST, port), 30) as sock:
                try:
                    context.wrap_socket(sock, server_hostname=HOST).close()
                except ssl.SSLCertVerificationError:
                    return False
            return True

        eventually(lambda: not is_trusted(), "it expires", ends_at - time.monotonic() + 30)
        (tmp_path / "next").mkdir()
        new = str(write_store(tmp_path / "next", "server").both)
        connection = {"bootstrap.servers": f"{HOST}:{open_port}"}
        if broker_kind == "kwire":
            set_on_broker(connection, SETTING, new)
            eventually(is_trusted, "the new certificate is in use")
        else:
            with pytest.raises(KafkaException) as refused:
                set_on_broker(connection, SETTING, new)
            assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    finally:
        broker.close()


def test_certificate_that_other_brokers_would_refuse_is_rejected(
    broker_kind: str, tmp_path: Path
) -> None:
    port, _, settings = encrypted_between_brokers(
        write_store(tmp_path, "server"), write_trusted(tmp_path)
    )
    broker = make_broker(broker_kind, tmp_path / "broker", settings)
    try:
        connection = {
            "bootstrap.servers": f"{HOST}:{port}",
            "security.protocol": "ssl",
            "ssl.ca.location": settings["ssl.truststore.location"],
        }
        (tmp_path / "next").mkdir()
        same = write_store(tmp_path / "next", "server").both
        set_on_broker(connection, SETTING, str(same))
        other = write_store(tmp_path, "server", authority_name="other").both
        with pytest.raises(KafkaException) as refused:
            set_on_broker(connection, SETTING, str(other))
        assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    finally:
        broker.close()


def test_names_may_change_where_the_file_allows_it(tls_broker: TlsBroker, tmp_path: Path) -> None:
    store = write_store(tmp_path, "other", "localhost")
    alter(tls_broker, str(store.both), "listener.name.wrong.ssl.keystore.location")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listener.name.tls.ssl.client.auth", "maybe"),
        ("ssl.principal.mapping.rules", "DEFAULT"),
        ("ssl.keystore.location", "/somewhere"),
        ("ssl.allow.dn.changes", "true"),
    ],
)
def test_setting_that_cannot_change_so_is_refused(
    name: str, value: str, tls_broker: TlsBroker
) -> None:
    with pytest.raises(KafkaException):
        alter(tls_broker, value, name)


def test_password_does_not_enter_the_metadata(
    broker_kind: str, tls_broker: TlsBroker, tmp_path: Path
) -> None:
    """Apache Kafka stores it as it is."""
    name, secret = "listener.name.unused.ssl.keystore.password", f"the secret of {tmp_path}"
    if broker_kind == "kwire":
        with pytest.raises(KafkaException) as refused:
            alter(tls_broker, secret, name)
        assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
        assert "restart the broker" in refused.value.args[0].str()
    else:
        alter(tls_broker, secret, name)
    files = [path for path in tls_broker.broker.data.rglob("*") if path.is_file()]
    is_stored = any(secret.encode() in path.read_bytes() for path in files)
    assert is_stored == (broker_kind == "kafka")
