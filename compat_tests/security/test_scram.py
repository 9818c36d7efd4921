"""Logins with SCRAM, whose users are made and removed while the broker runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.confluent_kafka.clients import create, deliver
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import SCRAM_MODULE, Guarded, run_guarded
from compat_tests.security.clients import login, refusal, round_trip

MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
SESSION_S = 3
"""The length of sessions with SCRAM-SHA-512."""
SETTINGS = {
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.login.scram-sha-512.connections.max.reauth.ms": str(SESSION_S * 1000),
}


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with run_guarded(broker_kind, tmp_path_factory.mktemp("scram"), SETTINGS) as running:
        yield running


@pytest.fixture
def user(unique: Callable[[str], str]) -> str:
    return unique("user")


def alter(broker: Guarded, *changes: Any) -> None:
    client = AdminClient({"bootstrap.servers": broker.address})
    for future in client.alter_user_scram_credentials(list(changes)).values():
        future.result(30)


def upsertion(user: str, password: str, mechanism: str) -> UserScramCredentialUpsertion:
    info = ScramCredentialInfo(MECHANISMS[mechanism], 4096)
    return UserScramCredentialUpsertion(user, info, password.encode())


def wait_until_user_may_log_in(broker: Guarded, settings: dict[str, Any]) -> None:
    """Wait until the broker has the user's credential."""

    def is_served() -> bool:
        try:
            AdminClient({"bootstrap.servers": broker.login, **settings}).list_topics(timeout=10)
        except KafkaException:
            return False
        return True

    eventually(is_served, "a login")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_user_logs_in_with_the_right_password(
    broker: Guarded, topic: str, user: str, mechanism: str
) -> None:
    create(broker.address, topic)
    alter(broker, upsertion(user, "it's, =secret", mechanism))
    settings = login(user, "it's, =secret", mechanism)
    wait_until_user_may_log_in(broker, settings)
    round_trip(broker.login, topic, settings)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_log_ins_get_the_same_error(broker: Guarded, user: str, mechanism: str) -> None:
    alter(broker, upsertion(user, "secret", mechanism))
    wait_until_user_may_log_in(broker, login(user, "secret", mechanism))
    text = (
        "Authentication failed during authentication due to invalid credentials with SASL "
        f"mechanism {mechanism}"
    )
    assert text in refusal(broker.login, login(user, "wrong", mechanism))
    assert text in refusal(broker.login, login("nobody", "secret", mechanism))
    other = next(name for name in MECHANISMS if name != mechanism)
    assert other in refusal(broker.login, login(user, "secret", other))


def test_kafka_python_logs_in(broker: Guarded, topic: str, user: str) -> None:
    create(broker.address, topic)
    alter(broker, upsertion(user, "secret", "SCRAM-SHA-256"))
    wait_until_user_may_log_in(broker, login(user, "secret", "SCRAM-SHA-256"))
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.login,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": user,
        "sasl_plain_password": "secret",
    }
    producer = KafkaProducer(**settings)
    producer.send(topic, b"from python").get(30)
    producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    assert next(consumer).value == b"from python"
    consumer.close()


def test_kafkas_tool_makes_shows_and_removes_users(
    broker: Guarded, jvm: Jvm, user: str, tmp_path: Path
) -> None:
    tool, server = "kafka.admin.ConfigCommand", ("--bootstrap-server", broker.address)
    entity = ("--entity-type", "users", "--entity-name", user)
    added = "SCRAM-SHA-512=[iterations=8192,password=secret]"
    output = jvm.tool(tool, *server, "--alter", "--add-config", added, *entity)
    assert f"Completed updating config for user {user}" in output.ok()
    wait_until_user_may_log_in(broker, login(user, "secret", "SCRAM-SHA-512"))
    listing = jvm.tool(tool, *server, "--describe", *entity).ok()
    assert "SCRAM-SHA-512=iterations=8192" in listing
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
        f'{SCRAM_MODULE} required username="{user}" password="secret";\n'
    )
    topics = ("--bootstrap-server", broker.login, "--list", "--command-config", str(properties))
    jvm.tool("org.apache.kafka.tools.TopicCommand", *topics).ok()
    jvm.tool(tool, *server, "--alter", "--delete-config", "SCRAM-SHA-512", *entity).ok()
    eventually(
        lambda: "SCRAM" not in jvm.tool(tool, *server, "--describe", *entity).ok(), "no credential"
    )


def test_credentials_are_described_without_secrets(broker: Guarded, user: str) -> None:
    alter(broker, upsertion(user, "secret", "SCRAM-SHA-256"))
    client = AdminClient({"bootstrap.servers": broker.address})

    def describe() -> Any:
        try:
            futures: Any = client.describe_user_scram_credentials([user])
            return futures[user].result(30)
        except KafkaException:
            return None

    (info,) = eventually(describe, "the credential").scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
    deletion = UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256)
    with pytest.raises(KafkaException, match="user credential that does not exist"):
        alter(broker, deletion)


def remove_in_session(broker: Guarded, topic: str, user: str) -> tuple[Any, list[str]] | None:
    """Remove a user who has a session, and check that the session goes on.

    Return the user's producer and its errors; None if the machine took longer than a session.
    """
    alter(broker, upsertion(user, "secret", "SCRAM-SHA-512"))
    settings = login(user, "secret", "SCRAM-SHA-512")
    wait_until_user_may_log_in(broker, settings)
    errors: list[str] = []
    own = {"bootstrap.servers": broker.login, "error_cb": lambda error: errors.append(str(error))}
    client = Producer({**own, **settings, "message.timeout.ms": 1000 * SESSION_S})
    before_session = time.monotonic()
    try:
        deliver(client, [{"topic": topic, "value": b"first"}])
        alter(broker, UserScramCredentialDeletion(user, MECHANISMS["SCRAM-SHA-512"]))
        deliver(client, [{"topic": topic, "value": b"second"}])
    except AssertionError:
        if time.monotonic() - before_session < SESSION_S:
            raise
        return None
    return (client, errors) if time.monotonic() - before_session < SESSION_S else None


def test_user_who_is_removed_is_served_until_the_session_ends(
    broker: Guarded, topic: str, unique: Callable[[str], str]
) -> None:
    create(broker.address, topic)
    client, errors = eventually(
        lambda: remove_in_session(broker, topic, unique("user")), "a removal within a session"
    )

    def has_ended() -> bool:
        client.produce(topic, b"later")
        client.poll(0.2)
        return any("re-authentication" in error for error in errors)

    eventually(has_ended, lambda: f"the end of the session: {errors}")
