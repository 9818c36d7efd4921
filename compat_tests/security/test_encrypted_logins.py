"""Log-ins over TLS (SASL_SSL), with ACLs that tell the users apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import Guarded, run_guarded
from compat_tests.security.clients import login, refusal, round_trip
from compat_tests.tls.stores import write_store, write_trusted


@pytest.fixture(scope="module")
def broker_with_users(
    broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Guarded, str]]:
    """Run a broker with SASL_SSL and an authorizer; also return the file of its authority."""
    directory = tmp_path_factory.mktemp("encrypted")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(write_store(directory, "server").both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with run_guarded(broker_kind, directory / "broker", settings) as broker:
        yield broker, str(write_trusted(directory))


def over_tls(trusted: str, user: str, password: str) -> dict[str, Any]:
    return {
        **login(user, password),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": trusted,
    }


def test_user_who_logs_in_over_tls_may_do_what_acls_allow(
    broker_with_users: tuple[Guarded, str], unique: Any
) -> None:
    broker, trusted = broker_with_users
    topic = unique("topic")
    create(broker.address, topic)
    allow(broker.address, "User:alice", topic)
    alice = over_tls(trusted, "alice", "alice-secret")
    round_trip(broker.login, topic, alice)
    bob = over_tls(trusted, "bob", "bob,=secret")
    assert failure(broker.login, topic, bob) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_wrong_password_and_missing_encryption_are_refused(
    broker_with_users: tuple[Guarded, str],
) -> None:
    broker, trusted = broker_with_users
    assert "uthentication failed" in refusal(broker.login, over_tls(trusted, "alice", "wrong"))
    refusal(broker.login, login("alice", "alice-secret"))


def allow(address: str, principal: str, topic: str) -> None:
    """Let a user read and write a topic, and use every group."""
    allowed = (
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.TOPIC, topic, AclOperation.WRITE),
        (ResourceType.GROUP, "*", AclOperation.READ),
    )
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            principal,
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in allowed
    ]
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_acls(bindings).values():
        future.result(30)


def failure(address: str, topic: str, settings: dict[str, Any]) -> int | None:
    """Return the code with which a record is refused."""
    errors: list[int] = []
    client = Producer({"bootstrap.servers": address, "message.timeout.ms": 20_000, **settings})
    client.produce(
        topic, b"x", on_delivery=lambda error, _: errors.append(error.code() if error else 0)
    )
    eventually(lambda: (client.poll(0.1), errors)[1], "the report of the record")
    return errors[0]
