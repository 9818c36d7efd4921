"""Logins with PLAIN, as clients see them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from compat_tests.confluent_kafka.clients import create, deliver
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wire import connect
from compat_tests.security.brokers import PLAIN_MODULE, Guarded, run_guarded
from compat_tests.security.clients import login, refusal, round_trip
from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.testing.wire import WireClient

WRONG = "Authentication failed: Invalid username or password"
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 33, 34, 58
SESSION_MS = 4000
"""The length of short sessions, in which a busy machine gets to a second login."""
SHORT_SESSIONS = {"listener.name.login.plain.connections.max.reauth.ms": str(SESSION_MS)}
RENEWALS_MS = 1100
"""Apache Kafka refuses a second login within a second."""


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with run_guarded(broker_kind, tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture
def short_sessions(broker_kind: str, tmp_path: Path) -> Iterator[Guarded]:
    with run_guarded(broker_kind, tmp_path / "short", SHORT_SESSIONS) as running:
        yield running


def shake_hands(client: WireClient, mechanism: str = "PLAIN", version: int = 1) -> int:
    code: int = client.call(SaslHandshakeRequest(mechanism=mechanism), version).error_code
    return code


def log_in(client: WireClient, user: str, password: str) -> SaslAuthenticateResponse:
    """Send a handshake and a login; return the answer to the login."""
    assert shake_hands(client) == 0
    token = f"\0{user}\0{password}".encode()
    return client.call(SaslAuthenticateRequest(auth_bytes=token), 2)


def test_user_with_the_right_password_is_served(broker: Guarded, topic: str) -> None:
    create(broker.address, topic)
    round_trip(broker.login, topic, login("alice", "alice-secret"))


def test_password_with_signs_is_read_from_the_settings(broker: Guarded, topic: str) -> None:
    create(broker.address, topic)
    round_trip(broker.login, topic, login("bob", "bob,=secret"))


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("alice", "alice-secre"), ("nobody", "alice-secret")]
)
def test_wrong_log_ins_get_the_same_error(broker: Guarded, user: str, password: str) -> None:
    assert WRONG in refusal(broker.login, login(user, password))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (
            "listener.name.login.plain.sasl.jaas.config",
            f'{PLAIN_MODULE} required user_alice="another";',
        ),
        ("listener.name.login.sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256"),
        ("listener.name.login.plain.connections.max.reauth.ms", "1000"),
    ],
)
def test_settings_of_log_ins_stay_those_of_the_file(broker: Guarded, name: str, value: str) -> None:
    """kwire rejects the changes; Apache Kafka accepts them without any effect."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.address})
    with suppress(KafkaException):
        admin.incremental_alter_configs([resource])[resource].result(30)
    with connect(broker.login) as client:
        offered = client.call(SaslHandshakeRequest(mechanism="NONE"), 1).mechanisms
        assert offered == ["PLAIN"]
    with connect(broker.login) as client:
        answer = log_in(client, "alice", "alice-secret")
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    with connect(broker.login) as client:
        assert log_in(client, "alice", "another").error_code == SASL_AUTHENTICATION_FAILED


def test_mechanism_that_the_listener_lacks_is_rejected(broker: Guarded) -> None:
    text = refusal(broker.login, login("alice", "alice-secret", "SCRAM-SHA-512"))
    assert "supported mechanisms: PLAIN" in text or "Unsupported SASL mechanism" in text


def test_client_that_does_not_log_in_is_not_served(broker: Guarded) -> None:
    refusal(broker.login, {"security.protocol": "PLAINTEXT"})
    with connect(broker.login) as client:
        client.send(MetadataRequest(topics=None), 12)
        assert client.is_closed()


def test_kafka_python_logs_in(broker: Guarded, topic: str) -> None:
    create(broker.address, topic)
    shared: dict[str, Any] = {
        "bootstrap_servers": broker.login,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
    }
    producer = KafkaProducer(**shared, sasl_plain_password="alice-secret")
    producer.send(topic, b"from python").get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, **shared, sasl_plain_password="alice-secret", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"from python"
    consumer.close()
    with pytest.raises(KafkaError):
        KafkaProducer(**shared, sasl_plain_password="wrong", bootstrap_timeout_ms=3000)


def test_console_tools_log_in(broker: Guarded, jvm: Jvm, topic: str, tmp_path: Path) -> None:
    create(broker.address, topic)
    right, wrong = tmp_path / "right.properties", tmp_path / "wrong.properties"
    for path, password in ((right, "alice-secret"), (wrong, "wrong")):
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
            f'{PLAIN_MODULE} required username="alice" password="{password}";\n'
        )
    server = ("--bootstrap-server", broker.login)
    tool = "org.apache.kafka.tools.ConsoleProducer"
    arguments = (*server, "--topic", topic, "--command-config", str(right))
    jvm.tool(tool, *arguments, stdin="from the console\n").ok()
    topics = "org.apache.kafka.tools.TopicCommand"
    listing = jvm.tool(topics, *server, "--list", "--command-config", str(right)).ok()
    assert topic in listing
    failed = jvm.tool(topics, *server, "--list", "--command-config", str(wrong))
    assert failed.code != 0
    assert WRONG in failed.out + failed.err


def test_quota_of_a_user_holds(broker: Guarded, topic: str) -> None:
    """The user of a connection is the one who logged in."""
    create(broker.address, topic)
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="user", entity_name="bob")],
                ops=[entry.OpData(key="producer_byte_rate", value=10_000.0, remove=False)],
            )
        ],
        validate_only=False,
    )
    with connect(broker.address) as client:
        assert [e.error_code for e in client.call(request, 1).entries] == [0]
    for user, password, is_slowed in (
        ("alice", "alice-secret", False),
        ("bob", "bob,=secret", True),
    ):
        throttled: list[Any] = []
        settings = login(user, password) | {"throttle_cb": throttled.append}
        producer = Producer(
            {"bootstrap.servers": broker.login, "batch.size": 5_000, "linger.ms": 0, **settings}
        )
        deliver(producer, [{"topic": topic, "value": bytes(4_000)}] * 32)
        producer.poll(1)
        assert bool(throttled) is is_slowed, user


def test_tokens_follow_the_first_handshake_without_headers(broker: Guarded) -> None:
    """Version 0 of SaslHandshake: the tokens are bare frames."""
    with connect(broker.login) as client:
        assert shake_hands(client, version=0) == 0
        token = b"\0alice\0alice-secret"
        client.send_bytes(len(token).to_bytes(4, "big") + token)
        assert client.read_frame() == b""
        assert client.call(MetadataRequest(topics=None), 12).brokers
    with connect(broker.login) as client:
        assert shake_hands(client, version=0) == 0
        client.send_bytes(b"\0\0\0\x0c\0alice\0wrong")
        assert client.is_closed()


def test_answers_to_log_ins_on_the_wire(broker: Guarded) -> None:
    with connect(broker.login) as client:
        client.call(ApiVersionsRequest(client_software_name="w", client_software_version="1"), 3)
        answer = log_in(client, "alice", "alice-secret")
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert client.call(MetadataRequest(topics=None), 12).brokers
        assert shake_hands(client) == ILLEGAL_SASL_STATE
        late = client.call(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2)
        text = "SaslAuthenticate request received after successful authentication"
        assert (late.error_code, late.error_message) == (ILLEGAL_SASL_STATE, text)
        assert client.call(MetadataRequest(topics=None), 12).brokers
    with connect(broker.login) as client:
        answer = log_in(client, "alice", "wrong")
        assert (answer.error_code, answer.error_message) == (SASL_AUTHENTICATION_FAILED, WRONG)
        assert client.is_closed()
    with connect(broker.login) as client:
        assert shake_hands(client, "GSSAPI") == UNSUPPORTED_SASL_MECHANISM
        assert client.is_closed()
    with connect(broker.login) as client:
        assert shake_hands(client) == 0
        assert shake_hands(client) == ILLEGAL_SASL_STATE
        assert client.is_closed()


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from "
            "username",
        ),
    ],
)
def test_malformed_plain_tokens_are_named(broker: Guarded, token: bytes, text: str) -> None:
    with connect(broker.login) as client:
        assert shake_hands(client) == 0
        answer = client.call(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert (answer.error_code, answer.error_message) == (SASL_AUTHENTICATION_FAILED, text)
        assert client.is_closed()


def test_frame_over_the_limit_before_the_log_in_ends_the_connection(broker: Guarded) -> None:
    with connect(broker.login) as client:
        client.send_bytes((524_289).to_bytes(4, "big") + bytes(100))
        assert client.is_closed()


def test_session_ends_unless_the_client_logs_in_again(short_sessions: Guarded) -> None:
    """KIP-368."""
    login_address = short_sessions.login
    with connect(login_address) as client, connect(login_address) as silent:
        answer = log_in(client, "alice", "alice-secret")
        assert (answer.error_code, answer.session_lifetime_ms) == (0, SESSION_MS)
        assert log_in(silent, "alice", "alice-secret").error_code == 0
        for _ in range(SESSION_MS // RENEWALS_MS + 1):
            time.sleep(RENEWALS_MS / 1000)
            assert log_in(client, "alice", "alice-secret").error_code == 0
        assert client.call(MetadataRequest(topics=None), 12).brokers
        silent.send(MetadataRequest(topics=None), 12)
        assert silent.is_closed()


def test_another_user_cannot_renew_a_session(short_sessions: Guarded) -> None:
    with connect(short_sessions.login) as client:
        assert log_in(client, "alice", "alice-secret").error_code == 0
        answer = log_in(client, "bob", "bob,=secret")
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert client.is_closed()


def test_client_renews_its_session_by_itself(broker_kind: str, tmp_path: Path, topic: str) -> None:
    """librdkafka logs in again; no record is lost, and no connection ends.

    It does so when a tenth of the session is left: a machine that stops for longer than that gets
    longer sessions.
    """
    errors: list[Any] = []
    for session_ms in (SESSION_MS, 4 * SESSION_MS, 10 * SESSION_MS):
        lifetime = {"listener.name.login.plain.connections.max.reauth.ms": str(session_ms)}
        with run_guarded(broker_kind, tmp_path / f"{session_ms}", lifetime) as guarded:
            errors = errors_of_a_session(guarded, topic, session_ms / 1000)
        if not errors:
            break
    assert errors == []


def errors_of_a_session(broker: Guarded, topic: str, session_s: float) -> list[Any]:
    """Write records for longer than a session lasts; return what the client reports."""
    create(broker.address, topic)
    errors: list[Any] = []
    settings = login("alice", "alice-secret") | {"error_cb": errors.append}
    client = Producer({"bootstrap.servers": broker.login, **settings})
    for _ in range(11):
        deliver(client, [{"topic": topic, "value": b"x"}])
        time.sleep(session_s / 10)
    return errors


@pytest.mark.long
def test_client_renews_its_session_under_load(
    broker_kind: str, tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka asks for a new session when a tenth of the old one is left, and sends the request
    once everything before it is answered: the broker must do that within this tenth. Under such a
    load both brokers disconnect clients with sessions of 2 s now and then.
    """
    errors: list[Any] = []
    lifetime = {"listener.name.login.plain.connections.max.reauth.ms": "10000"}
    with run_guarded(broker_kind, tmp_path / "loaded", lifetime) as broker:
        create(broker.address, topic)
        client = Producer(
            {
                "bootstrap.servers": broker.login,
                "debug": "security",
                "error_cb": errors.append,
                "logger": logging.getLogger("under-load"),
                **login("alice", "alice-secret"),
            }
        )
        outcomes: list[Any] = []
        end = time.monotonic() + 35
        with caplog.at_level(logging.DEBUG, "under-load"):
            while time.monotonic() < end:
                for _ in range(20):
                    client.produce(topic, b"x" * 200, on_delivery=lambda e, _: outcomes.append(e))
                client.poll(0.02)
            assert client.flush(30) == 0
        renewals = [line for line in caplog.messages if "session lifetime 10000 ms" in line]
        assert len(renewals) >= 4  # The first one is the login itself.
        assert errors == []
        assert len(outcomes) > 1000
        assert set(outcomes) == {None}
