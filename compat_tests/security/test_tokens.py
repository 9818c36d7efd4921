"""Logins with access tokens (OAUTHBEARER), as clients see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from compat_tests.confluent_kafka.clients import create, deliver, read
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wire import connect
from compat_tests.security.brokers import Guarded, run_guarded
from compat_tests.security.clients import refusal
from compat_tests.security.tokens import MODULE, PACKAGE, PREFIX, Provider, run_issuer
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.testing.wire import WireClient
from tests.support.security.issuer import Issuer
from tests.support.security.issuer_server import IssuerServer

SASL_AUTHENTICATION_FAILED = 58
SHORT_TOKEN_S = 4
INVALID = b'{"status":"invalid_token"}'


@attrs.frozen
class Setting:
    """A broker whose clients log in with tokens, and their issuer."""

    guarded: Guarded
    issuer: IssuerServer


@contextmanager
def run_with_tokens(kind: str, directory: Path, **more: str) -> Iterator[Setting]:
    """Run a broker that accepts signed tokens, and the identity provider that issues them."""
    with (
        run_issuer() as (issuer, settings),
        run_guarded(kind, directory, {**settings, **more}) as guarded,
    ):
        yield Setting(guarded, issuer)


@pytest.fixture(scope="module")
def setting(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with run_with_tokens(broker_kind, tmp_path_factory.mktemp("tokens")) as running:
        yield running


def by_provider(issuer: IssuerServer, secret: str = "alice-secret") -> dict[str, Any]:
    """Return librdkafka's settings for a client that asks the identity provider itself."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": issuer.tokens_url,
    }


def by_callback(make_token: Callable[[], str]) -> dict[str, Any]:
    """Return librdkafka's settings for an application that gets tokens in its own way."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (make_token(), time.time() + 600),
    }


def round_trip(address: str, topic: str, settings: dict[str, Any]) -> None:
    client = Producer({"bootstrap.servers": address, **settings})
    deliver(client, [{"topic": topic, "value": b"with a token"}])
    options = {name.replace(".", "_"): value for name, value in settings.items()}
    assert read(address, topic, 1, **options)[-1].value() == b"with a token"


def test_librdkafka_gets_its_token_from_the_provider(setting: Setting, topic: str) -> None:
    create(setting.guarded.address, topic)
    round_trip(setting.guarded.login, topic, by_provider(setting.issuer))


def test_librdkafka_gets_its_token_from_the_application(setting: Setting, topic: str) -> None:
    create(setting.guarded.address, topic)
    settings = by_callback(lambda: setting.issuer.token("bob"))
    round_trip(setting.guarded.login, topic, settings)


@pytest.mark.parametrize(
    "claims", [{"exp": 1_000_000_000}, {"aud": "them"}, {"iss": "them"}], ids=["exp", "aud", "iss"]
)
def test_librdkafka_is_told_that_its_token_is_invalid(
    setting: Setting, claims: dict[str, object]
) -> None:
    settings = by_callback(lambda: setting.issuer.token("alice", **claims))
    assert "invalid_token" in refusal(setting.guarded.login, settings)


def test_kafka_python_logs_in_with_a_token(setting: Setting, topic: str) -> None:
    create(setting.guarded.address, topic)
    shared: dict[str, Any] = {
        "bootstrap_servers": setting.guarded.login,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
    }
    right = Provider(lambda: setting.issuer.token("alice"))
    producer = KafkaProducer(**shared, sasl_oauth_token_provider=right)
    producer.send(topic, b"from python").get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, **shared, sasl_oauth_token_provider=right, auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"from python"
    consumer.close()
    wrong = Provider(lambda: setting.issuer.token("alice", aud="them"))
    with pytest.raises(KafkaError):
        KafkaProducer(**shared, sasl_oauth_token_provider=wrong, bootstrap_timeout_ms=3000)


def test_console_tools_get_their_token_from_the_provider(
    setting: Setting, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(setting.guarded.address, topic)
    urls = f"{setting.issuer.keys_url},{setting.issuer.tokens_url}"
    name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{name}={urls}")
    jvm = Jvm.start(tmp_path)
    try:
        for secret, is_right in (("alice-secret", True), ("wrong", False)):
            config = tmp_path / f"{is_right}.properties"
            config.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
                f"sasl.oauthbearer.token.endpoint.url={setting.issuer.tokens_url}\n"
                f"sasl.login.callback.handler.class={PACKAGE}.OAuthBearerLoginCallbackHandler\n"
                f'sasl.jaas.config={MODULE} required clientId="alice" clientSecret="{secret}";\n'
            )
            server = ("--bootstrap-server", setting.guarded.login)
            tool = "org.apache.kafka.tools.TopicCommand"
            listing = jvm.tool(tool, *server, "--list", "--command-config", str(config))
            assert (listing.code == 0) is is_right, listing
            assert (topic in listing.out) is is_right
    finally:
        jvm.close()


def log_in(client: WireClient, token: str) -> SaslAuthenticateResponse:
    """Send a handshake and a token; return the answer to the token."""
    assert client.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0
    message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    return client.call(SaslAuthenticateRequest(auth_bytes=message), 2)


def test_answers_to_tokens_on_the_wire(setting: Setting) -> None:
    """RFC 7628: the client acknowledges the error before the login fails."""
    with connect(setting.guarded.login) as client:
        answer = log_in(client, setting.issuer.token("alice"))
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert 590_000 < answer.session_lifetime_ms <= 600_000
        assert client.call(MetadataRequest(topics=None), 12).brokers
    for token in invalid_tokens(setting.issuer):
        with connect(setting.guarded.login) as client:
            answer = log_in(client, token)
            assert (answer.error_code, answer.auth_bytes) == (0, INVALID), token
            assert answer.session_lifetime_ms == 0
            answer = client.call(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
            assert answer.error_code == SASL_AUTHENTICATION_FAILED
            assert answer.error_message == INVALID.decode()
            assert client.is_closed()


def invalid_tokens(issuer: IssuerServer) -> list[str]:
    """Return tokens that no broker may accept."""
    stranger = Issuer.create("RS256", issuer.issuer.key_id)
    header, claims, signature = issuer.token("alice").split(".")
    return [
        attrs.evolve(issuer, issuer=stranger).token("alice"),
        f"{header}.{issuer.token('admin').split('.')[1]}.{signature}",
        f"eyJhbGciOiJub25lIn0.{claims}.",
        "x",
        issuer.token("alice", exp=1),
        issuer.token("alice", nbf=4_000_000_000),
        issuer.token(" "),
        issuer.token("alice", scope=["a", "a"]),
    ]


@pytest.mark.parametrize(
    "message", [b"", b"n,,\x01auth=Bearer\x01\x01", b"n,,\x01\x01", b"n,,\x01auth=Bearer x\x01"]
)
def test_malformed_messages_get_the_general_error(setting: Setting, message: bytes) -> None:
    with connect(setting.guarded.login) as client:
        client.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        answer = client.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL "
            "mechanism OAUTHBEARER"
        )
        assert client.is_closed()


def test_session_ends_with_its_token(setting: Setting) -> None:
    """KIP-368: the token limits the session, without connections.max.reauth.ms."""
    with connect(setting.guarded.login) as client, connect(setting.guarded.login) as silent:
        now = time.time()
        for each in (client, silent):
            # The clocks' skew of 30 s does not prolong the session.
            answer = log_in(each, setting.issuer.token("alice", exp=now + SHORT_TOKEN_S))
            assert 0 < answer.session_lifetime_ms <= SHORT_TOKEN_S * 1000
        time.sleep(1.1)  # Apache Kafka refuses a second login within a second.
        assert log_in(client, setting.issuer.token("alice")).error_code == 0
        time.sleep(max(0, now + SHORT_TOKEN_S + 0.2 - time.time()))
        assert client.call(MetadataRequest(topics=None), 12).brokers
        silent.send(MetadataRequest(topics=None), 12)
        assert silent.is_closed()


def test_new_key_of_the_issuer_is_found(setting: Setting) -> None:
    """The first login with it fails; the broker then fetches the keys early."""
    old = setting.issuer.issuer
    setting.issuer.issuer = Issuer.create("ES256", "second")
    try:
        deadline = time.monotonic() + 30
        while True:
            with connect(setting.guarded.login) as client:
                answer = log_in(client, setting.issuer.token("alice"))
            if answer.auth_bytes == b"":
                break
            assert time.monotonic() < deadline, "the new key is not used"
            time.sleep(0.5)
    finally:
        setting.issuer.issuer = old


def test_unsecured_tokens_are_accepted_where_nothing_validates_them(
    broker_kind: str, tmp_path: Path, topic: str
) -> None:
    """Kafka's default without a validator's class, for tests only."""
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="node" '
        'unsecuredValidatorRequiredScope="write";',
    }
    with run_guarded(broker_kind, tmp_path / "open", settings) as guarded:
        create(guarded.address, topic)
        client: dict[str, Any] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=alice scope=write",
        }
        round_trip(guarded.login, topic, client)
        client["sasl.oauthbearer.config"] = "principal=alice scope=read"
        assert "insufficient_scope" in refusal(guarded.login, client)
