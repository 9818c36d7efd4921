"""Clients of two libraries that log in, and what they say when they may not."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from compat_tests.confluent_kafka.clients import deliver, read
from compat_tests.harness.wait import eventually


def login(user: str, password: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    """Return librdkafka's settings for a user."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def round_trip(address: str, topic: str, settings: dict[str, Any]) -> None:
    """Write a record and read it again, as this user."""
    value = settings["sasl.username"].encode()
    client = Producer({"bootstrap.servers": address, **settings})
    deliver(client, [{"topic": topic, "value": value}])
    messages = read(address, topic, 1, **{k.replace(".", "_"): v for k, v in settings.items()})
    assert messages[-1].value() == value


def refusal(address: str, settings: dict[str, Any]) -> str:
    """Return the errors with which a login fails; a client that may log in fails the test."""
    errors: list[str] = []
    own: dict[str, Any] = {
        "bootstrap.servers": address,
        "error_cb": lambda error: errors.append(str(error)),
    }
    client = AdminClient({**own, **settings})
    eventually(lambda: (client.poll(0.1), errors)[1], "an error")
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)
    return "\n".join(errors)
