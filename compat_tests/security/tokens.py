"""A broker whose clients log in with access tokens: its settings, and the issuer of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.support.security.issuer_server import AUDIENCE, IssuerServer, serve_issuer

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
PREFIX = "listener.name.login.oauthbearer."


@contextmanager
def run_issuer() -> Iterator[tuple[IssuerServer, dict[str, str]]]:
    """Run an identity provider; yield it and the settings of brokers that accept its tokens.

    Apache's brokers that start meanwhile may ask it for its keys.
    """
    with serve_issuer({"alice": "alice-secret"}) as issuer, pytest.MonkeyPatch.context() as patch:
        allowed = f"-D{'org.apache.kafka.sasl.oauthbearer.allowed.urls'}="
        patch.setenv("JAVA_TOOL_OPTIONS", f"{allowed}{issuer.keys_url},{issuer.tokens_url}")
        yield (
            issuer,
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{PREFIX}sasl.jaas.config": f"{MODULE} required;",
                f"{PREFIX}sasl.server.callback.handler.class": (
                    f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
                ),
                "sasl.oauthbearer.jwks.endpoint.url": issuer.keys_url,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": issuer.url,
            },
        )


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """The tokens of a client of kafka-python."""

    def __init__(self, make_token: Callable[[], str]) -> None:
        super().__init__()
        self.make_token = make_token

    def token(self) -> str:
        return self.make_token()
