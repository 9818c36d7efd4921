"""Logins over TLS (SASL_SSL) with each mechanism, with ACLs that tell the users apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from compat_tests.harness.wait import eventually
from compat_tests.security.clients import login, refusal
from compat_tests.security.encrypted import CLIENTS, MECHANISMS, OAUTHBEARER, for_librdkafka
from compat_tests.security.encrypted_broker import Encrypted, run_encrypted

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda each: type(each).__name__)
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def place(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    with run_encrypted(broker_kind, tmp_path_factory.mktemp("encrypted")) as running:
        yield running


@each_mechanism
@each_client
def test_user_logs_in_over_tls(place: Encrypted, client: Any, mechanism: str, unique: Any) -> None:
    """Logins over TLS by librdkafka, kafka-python and aiokafka"""
    topic = unique("topic")
    place.create(topic)
    alice = place.login(mechanism, "alice")
    assert client.round_trip(place.login_address, topic, alice) == mechanism.encode()


@each_mechanism
@each_client
def test_wrong_secret_is_refused(place: Encrypted, client: Any, mechanism: str) -> None:
    """A wrong password, or a token for another audience."""
    wrong = place.login(mechanism, "alice", is_right=False)
    client.fail(place.login_address, wrong)


@pytest.mark.parametrize("mechanism", ["PLAIN", OAUTHBEARER])
def test_user_without_acls_is_not_served(place: Encrypted, mechanism: str, unique: Any) -> None:
    topic = unique("topic")
    place.create(topic)
    bob = for_librdkafka(place.login(mechanism, "bob"))
    assert failure(place.login_address, topic, bob) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_log_in_without_encryption_is_refused(place: Encrypted) -> None:
    refusal(place.login_address, login("alice", "alice-secret"))


def failure(address: str, topic: str, settings: dict[str, Any]) -> int | None:
    """Return the code with which a record is refused."""
    errors: list[int] = []
    client = Producer({"bootstrap.servers": address, "message.timeout.ms": 20_000, **settings})
    client.produce(
        topic, b"x", on_delivery=lambda error, _: errors.append(error.code() if error else 0)
    )
    eventually(lambda: (client.poll(0.1), errors)[1], "the report of the record")
    return errors[0]
