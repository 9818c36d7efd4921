"""Logins over TLS (SASL_SSL) by clients in Java, Go and Node, and the errors that users see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import pytest

from compat_tests.security.encrypted import MECHANISMS, OAUTHBEARER
from compat_tests.security.encrypted_broker import Encrypted, run_encrypted
from compat_tests.security.programs import Attempt, attempt, run_attempts


class Errors(NamedTuple):
    """Regular expressions for what a client library reports."""

    password: str
    """A wrong password."""
    token: str
    """A token for another audience."""
    expired: str
    """An expired certificate of the broker."""
    elsewhere: str
    """A certificate of another host."""


GO_EXPIRED: Final = "failed to verify certificate: .* has expired"
GO_ELSEWHERE: Final = "failed to verify certificate: .* any IP SANs$"
CLIENTS: Final = {
    "Java": Errors(
        password="^SaslAuthenticationException: Authentication failed",
        token="^SaslAuthenticationException: .*invalid_token",
        expired="^SslAuthenticationException: .*CertificateExpiredException",
        elsewhere="^SslAuthenticationException: .*No subject alternative names matching",
    ),
    "franz-go": Errors(
        password="^SASL_AUTHENTICATION_FAILED: ",
        token="^unexpected data in oauth response$",
        expired=GO_EXPIRED,
        elsewhere=GO_ELSEWHERE,
    ),
    "sarama": Errors(
        password="kafka server: SASL Authentication failed: ",
        token="kafka server: SASL Authentication failed: ",
        expired=GO_EXPIRED,
        elsewhere=GO_ELSEWHERE,
    ),
    "kafka-go": Errors(
        password="SASL Authentication Failed: ",
        token="SASL Authentication Failed: .*invalid_token",
        expired=GO_EXPIRED,
        elsewhere=GO_ELSEWHERE,
    ),
    "kafkajs": Errors(
        password="^KafkaJSSASLAuthenticationError: SASL .* authentication failed: ",
        token="KafkaJSConnectionClosedError: Closed connection$",
        expired="KafkaJSConnectionError: Connection error: certificate has expired$",
        elsewhere="KafkaJSConnectionError: .* altnames: IP: 127.0.0.1 is not in the cert's list",
    ),
}
KAFKAJS_AT_KAFKA: Final = "KafkaJSProtocolError: Request is not valid given the current SASL state$"
"""An invalid token: kafkajs takes the first answer to it for a success, and sends the next request.

Kafka answers that one with an error, kwire closes the connection (docs/differences.md).
"""


@pytest.fixture(scope="module")
def place(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    with run_encrypted(broker_kind, tmp_path_factory.mktemp("languages")) as running:
        yield running


@pytest.mark.parametrize(
    "client", [c if c == "Java" else pytest.param(c, marks=pytest.mark.long) for c in CLIENTS]
)
def test_client_logs_in_over_tls_or_reports_why_not(
    client: str, place: Encrypted, unique: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    """Logins over TLS by Apache's client, franz-go, sarama, kafka-go and kafkajs

    Each mechanism, with a right and a wrong secret, and at brokers with wrong certificates.
    """
    errors = CLIENTS[client]
    if (client, place.broker.kind) == ("kafkajs", "kafka"):
        errors = errors._replace(token=KAFKAJS_AT_KAFKA)
    attempts = list[Attempt]()
    expected = dict[str, str]()
    for mechanism in MECHANISMS:
        topic = unique(mechanism)
        place.create(topic)
        right = place.login(mechanism, "alice")
        wrong = place.login(mechanism, "alice", is_right=False)
        refused = errors.token if mechanism == OAUTHBEARER else errors.password
        for case, login, listener, pattern in (
            ("right secret", right, "LOGIN", f"^{mechanism} right secret$"),
            ("wrong secret", wrong, "LOGIN", refused),
            ("expired certificate", right, "EXPIRED", errors.expired),
            ("certificate of another host", right, "ELSEWHERE", errors.elsewhere),
        ):
            name = f"{mechanism} {case}"
            attempts.append(attempt(name, client, place.at(listener), topic, login))
            expected[name] = pattern
    observed = run_attempts(client, attempts, lambda: request.getfixturevalue("jvm"))
    assert find_unexpected(observed, expected) == {}


def find_unexpected(observed: Mapping[str, str], expected: Mapping[str, str]) -> dict[str, str]:
    """Return what was observed by name where it does not match the expected pattern."""
    texts = {name: observed.get(name, "nothing was reported") for name in expected}
    return {name: text for name, text in texts.items() if not re.search(expected[name], text)}
