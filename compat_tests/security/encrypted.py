"""Clients of three libraries that log in over TLS, with a password or an access token."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import aiokafka
import attrs
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Producer

from compat_tests.aiokafka import clients as aio
from compat_tests.confluent_kafka.clients import deliver, read
from compat_tests.kafka_python import clients as kafka_python
from compat_tests.security import clients
from compat_tests.security.tokens import Provider

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)


@attrs.frozen
class Login:
    """A user, and the proof of who it is."""

    mechanism: str
    user: str
    secret: str
    """The password, or the token."""
    trusted: str
    """The file of the authority that the client trusts."""


def for_librdkafka(login: Login) -> dict[str, Any]:
    shared = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": login.trusted,
        "sasl.mechanism": login.mechanism,
    }
    if login.mechanism == OAUTHBEARER:
        return {**shared, "oauth_cb": lambda _: (login.secret, time.time() + 600)}
    return {**shared, "sasl.username": login.user, "sasl.password": login.secret}


def for_python(login: Login, provider: Callable[[Callable[[], str]], Any]) -> dict[str, Any]:
    """Return the settings that kafka-python and aiokafka have in common."""
    shared = {"security_protocol": "SASL_SSL", "sasl_mechanism": login.mechanism}
    if login.mechanism == OAUTHBEARER:
        return {**shared, "sasl_oauth_token_provider": provider(lambda: login.secret)}
    user = {"sasl_plain_username": login.user, "sasl_plain_password": login.secret}
    return {**shared, **user}


class AioProvider(AbstractTokenProvider):  # type: ignore[misc]
    """The tokens of a client of aiokafka."""

    def __init__(self, make_token: Callable[[], str]) -> None:
        self.make_token = make_token

    async def token(self) -> str:
        return self.make_token()


class Librdkafka:
    """confluent-kafka."""

    def round_trip(self, address: str, topic: str, login: Login) -> bytes:
        """Write a record and return it as it is read again."""
        settings = for_librdkafka(login)
        producer = Producer({"bootstrap.servers": address, **settings})
        deliver(producer, [{"topic": topic, "value": login.mechanism.encode()}])
        named = {name.replace(".", "_"): value for name, value in settings.items()}
        value: bytes = read(address, topic, 1, **named)[0].value()
        return value

    def fail(self, address: str, login: Login) -> None:
        """Fail the test unless the broker refuses the login, and says so."""
        text = clients.refusal(address, for_librdkafka(login))
        assert "uthentication" in text or "invalid_token" in text


class KafkaPython:
    """kafka-python."""

    def settings(self, login: Login) -> dict[str, Any]:
        return {**for_python(login, Provider), "ssl_cafile": login.trusted}

    def round_trip(self, address: str, topic: str, login: Login) -> bytes:
        with kafka_python.producer(address, **self.settings(login)) as producer:
            producer.send(topic, login.mechanism.encode()).get(30)
        with kafka_python.consumer(address, topic, **self.settings(login)) as consumer:
            value: bytes = next(consumer).value
            return value

    def fail(self, address: str, login: Login) -> None:
        with pytest.raises(kafka.errors.KafkaError):
            kafka.KafkaProducer(
                bootstrap_servers=address, **self.settings(login), bootstrap_timeout_ms=3000
            )


class AioKafka:
    """aiokafka."""

    def settings(self, login: Login) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=login.trusted)
        return {**for_python(login, AioProvider), "ssl_context": context}

    def round_trip(self, address: str, topic: str, login: Login) -> bytes:
        async def main() -> bytes:
            async with aio.producer(address, **self.settings(login)) as producer:
                await producer.send_and_wait(topic, login.mechanism.encode())
            async with aio.consumer(address, topic, **self.settings(login)) as consumer:
                value: bytes = (await consumer.getone()).value
                return value

        result: bytes = aio.run(main())
        return result

    def fail(self, address: str, login: Login) -> None:
        """Fail the test unless the client cannot write.

        aiokafka takes Kafka's first answer to an invalid token for a success, and also Kafka's
        answer to the request after that.
        """

        async def main() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address, request_timeout_ms=5000, **self.settings(login)
            )
            try:
                with pytest.raises(AioKafkaError):
                    await write(producer)
            finally:
                await producer.stop()

        async def write(producer: Any) -> None:
            await producer.start()
            await producer.send_and_wait("any", b"x")

        aio.run(main())


CLIENTS: Final = (Librdkafka(), KafkaPython(), AioKafka())
