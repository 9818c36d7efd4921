"""Real clients over TLS: what is accepted, and what is refused."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.aiokafka import clients as aio
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.kafka_python import clients as kafka_python
from compat_tests.tls.conftest import TlsBroker
from compat_tests.tls.stores import HOST, Store, java_settings, write_store

TOOLS = "org.apache.kafka.tools"
LARGE = os.urandom(900_000)


def confluent(tls_broker: TlsBroker, listener: str, store: Store | None = None) -> dict[str, Any]:
    """Return the settings of a librdkafka client."""
    settings: dict[str, Any] = {
        "bootstrap.servers": tls_broker.at(listener),
        "security.protocol": "ssl",
        "ssl.ca.location": str(tls_broker.trusted),
    }
    if store is not None:
        settings["ssl.certificate.location"] = str(store.chain)
        settings["ssl.key.location"] = str(store.key)
    return settings


def list_topics(settings: dict[str, Any]) -> set[str]:
    return set(AdminClient(settings).list_topics(timeout=30).topics)


def check_refused(settings: dict[str, Any], reason: str) -> None:
    """Check that a client gets no connection, and reports the reason."""
    reports: list[str] = []
    settings = {**settings, "error_cb": lambda error: reports.append(str(error))}
    client = AdminClient(settings)
    eventually(
        lambda: (client.poll(0.1), reason in " ".join(reports))[1], lambda: f"{reason}: {reports}"
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)


def test_confluent_kafka_writes_and_reads(tls_broker: TlsBroker, topic: str, group: str) -> None:
    settings = confluent(tls_broker, "TLS")
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(settings)
    values = [b"small", LARGE, *(b"%d" % number for number in range(2000)), LARGE]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    received: list[bytes | None] = []
    while len(received) < len(values):
        batch = consumer.consume(min(500, len(values) - len(received)), timeout=30)
        assert batch
        received += [message.value() for message in batch]
    consumer.close()
    assert received == values


def test_kafka_python_writes_and_reads(tls_broker: TlsBroker, topic: str) -> None:
    settings = {"security_protocol": "SSL", "ssl_cafile": str(tls_broker.trusted)}
    with kafka_python.producer(tls_broker.at("TLS"), **settings) as producer:
        for value in (b"small", LARGE):
            producer.send(topic, value).get(30)
    with kafka_python.consumer(tls_broker.at("TLS"), topic, **settings) as consumer:
        received = [next(consumer).value for _ in range(2)]
    assert received == [b"small", LARGE]


def test_aiokafka_writes_and_reads(tls_broker: TlsBroker, topic: str) -> None:
    context = ssl.create_default_context(cafile=str(tls_broker.trusted))
    settings = {"security_protocol": "SSL", "ssl_context": context}

    async def main() -> list[bytes]:
        async with aio.producer(tls_broker.at("TLS"), **settings) as producer:
            for value in (b"small", LARGE):
                await producer.send_and_wait(topic, value)
        async with aio.consumer(tls_broker.at("TLS"), topic, **settings) as consumer:
            return [(await consumer.getone()).value for _ in range(2)]

    assert aio.run(main()) == [b"small", LARGE]


def properties(path: Path, settings: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "OLDER", "NEWER"])
def test_apaches_tools_write_and_read(
    listener: str, tls_broker: TlsBroker, jvm: Jvm, topic: str, tmp_path: Path
) -> None:
    store = tls_broker.client if listener == "MUTUAL" else None
    config = properties(tmp_path / "client.properties", java_settings(tls_broker.trusted, store))
    address = ["--bootstrap-server", tls_broker.at(listener)]
    create = [*address, "--command-config", config, "--create", "--topic", topic]
    jvm.tool(f"{TOOLS}.TopicCommand", *create).ok()
    produce = [*address, "--command-config", config, "--topic", topic]
    jvm.tool(f"{TOOLS}.ConsoleProducer", *produce, stdin="one\ntwo\n").ok()
    consume = [*produce, "--from-beginning", "--max-messages", "2", "--timeout-ms", "60000"]
    assert jvm.tool(f"{TOOLS}.consumer.ConsoleConsumer", *consume).ok().split() == ["one", "two"]


# Certificates ---------------------------------------------------------------------------------
def test_client_with_a_certificate_gets_in(tls_broker: TlsBroker) -> None:
    list_topics(confluent(tls_broker, "MUTUAL", tls_broker.client))


@pytest.mark.parametrize("case", ["without", "foreign", "expired"])
def test_client_without_a_usable_certificate_is_refused(
    case: str, tls_broker: TlsBroker, tmp_path: Path
) -> None:
    store = None
    if case == "foreign":
        store = write_store(tmp_path, "mallory", authority_name="other")
    elif case == "expired":
        store = write_store(tmp_path, "old", valid_days=-1)
    check_refused(confluent(tls_broker, "MUTUAL", store), "SSL")


def test_client_notices_a_certificate_for_another_host(tls_broker: TlsBroker) -> None:
    check_refused(confluent(tls_broker, "WRONG"), "certificate")
    lax = confluent(tls_broker, "WRONG") | {"ssl.endpoint.identification.algorithm": "none"}
    list_topics(lax)


def test_clients_notice_that_the_certificate_of_the_broker_has_expired(
    tls_broker: TlsBroker,
) -> None:
    """Not even a client that checks no names connects."""
    address = tls_broker.at("EXPIRED")
    strict = confluent(tls_broker, "EXPIRED")
    for settings in (strict, strict | {"ssl.endpoint.identification.algorithm": "none"}):
        check_refused(settings, "certificate")
    trusted = str(tls_broker.trusted)
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            bootstrap_servers=address,
            security_protocol="SSL",
            ssl_cafile=trusted,
            bootstrap_timeout_ms=4000,
        )
    context = ssl.create_default_context(cafile=trusted)
    with (
        socket.create_connection((HOST, tls_broker.ports["EXPIRED"]), 30) as sock,
        pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"),
    ):
        context.wrap_socket(sock, server_hostname=HOST)


def test_apaches_tools_notice_that_the_certificate_of_the_broker_has_expired(
    tls_broker: TlsBroker, jvm: Jvm, tmp_path: Path
) -> None:
    config = properties(tmp_path / "client.properties", java_settings(tls_broker.trusted))
    address = ["--bootstrap-server", tls_broker.at("EXPIRED"), "--command-config", config]
    failed = jvm.tool(f"{TOOLS}.TopicCommand", *address, "--list")
    assert failed.code != 0
    assert "SSL handshake failed" in failed.out + failed.err


def test_client_notices_an_unknown_authority(tls_broker: TlsBroker, tmp_path: Path) -> None:
    settings = confluent(tls_broker, "TLS")
    other = write_store(tmp_path, "x", authority_name="other").chain
    check_refused({**settings, "ssl.ca.location": str(other)}, "certificate")


# Protocols ------------------------------------------------------------------------------------
def scan(address: str, *options: str) -> str:
    """Return what ``openssl s_client`` says about a handshake."""
    command = ["openssl", "s_client", "-connect", address, *options]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    return (ran.stdout + ran.stderr).decode(errors="replace")


@pytest.mark.parametrize(
    ("listener", "spoken"),
    [("TLS", {"1_2", "1_3"}), ("OLDER", {"1_2"}), ("NEWER", {"1_3"})],
)
def test_listener_speaks_the_enabled_versions(
    listener: str, spoken: set[str], tls_broker: TlsBroker
) -> None:
    for version in ("1_1", "1_2", "1_3"):
        weak = ["-cipher", "ALL:@SECLEVEL=0"] if version == "1_1" else []
        output = scan(tls_broker.at(listener), f"-tls{version}", *weak)
        is_spoken = "Cipher is (NONE)" not in output and "Cipher    : 0000" not in output
        assert is_spoken == (version in spoken), output


def test_scan_finds_the_whole_chain_and_no_weak_cipher(tls_broker: TlsBroker) -> None:
    address = tls_broker.at("TLS")
    output = scan(address, "-CAfile", str(tls_broker.trusted), "-verify_return_error")
    assert "Verify return code: 0 (ok)" in output
    for weak in ("NULL", "aNULL", "RC4", "3DES", "EXPORT"):
        output = scan(address, "-tls1_2", "-cipher", f"{weak}:@SECLEVEL=0")
        assert "Cipher is (NONE)" in output or "no cipher match" in output, output


def test_wrong_protocol_fails_on_either_side(tls_broker: TlsBroker) -> None:
    plain: dict[str, Any] = {"bootstrap.servers": tls_broker.at("TLS")}
    with pytest.raises(KafkaException):
        AdminClient(plain).list_topics(timeout=4)
    check_refused(
        {**confluent(tls_broker, "TLS"), "bootstrap.servers": tls_broker.at("OPEN")}, "SSL"
    )
    list_topics(confluent(tls_broker, "TLS"))


def test_a_thousand_half_open_handshakes_lock_nobody_out(tls_broker: TlsBroker, topic: str) -> None:
    """Invariant 102: some of these clients sent nothing, some the first message of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(tls_broker.trusted))
    tls = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    settings = confluent(tls_broker, "TLS")
    producer = Producer(settings)
    results: list[KafkaError | None] = []
    silent: list[socket.socket] = []
    try:
        for number in range(1000):
            sock = socket.create_connection((HOST, tls_broker.ports["TLS"]), 30)
            silent.append(sock)
            if number % 2:
                sock.sendall(hello)
            if not number % 10:
                producer.produce(
                    topic, b"%d" % number, on_delivery=lambda error, _: results.append(error)
                )
                producer.poll(0)
        list_topics(settings)
        eventually(lambda: producer.flush(1) == 0, "all are delivered")
    finally:
        for sock in silent:
            sock.close()
    assert results == [None] * 100


def test_errors_name_tls(tls_broker: TlsBroker) -> None:
    """kafka-python reports a plain listener's answer as an error, not as a hang."""
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            bootstrap_servers=tls_broker.at("OPEN"),
            security_protocol="SSL",
            ssl_cafile=str(tls_broker.trusted),
            bootstrap_timeout_ms=4000,
        )
