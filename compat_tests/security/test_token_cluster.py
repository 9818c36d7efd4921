"""Nodes that log in to each other with access tokens, at brokers and at controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.security.nodes import check_replication, each_order, run_pair
from tests.support.security.issuer_server import AUDIENCE, IssuerServer, serve_issuer

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"


def settings(issuer: IssuerServer) -> dict[str, str]:
    """Return the settings of nodes whose accounts are at the identity provider."""
    both: dict[str, str] = {}
    for listener in ("brokers", "controller"):
        prefix = f"listener.name.{listener}.oauthbearer.sasl."
        both |= {
            f"{prefix}jaas.config": f'{MODULE} required clientId="node" clientSecret="secret";',
            f"{prefix}login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
            f"{prefix}server.callback.handler.class": (
                f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
            ),
        }
    return {
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT,"
        "CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.keys_url,
        "sasl.oauthbearer.token.endpoint.url": issuer.tokens_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": issuer.url,
        **both,
    }


@pytest.mark.single
@each_order
def test_kafka_and_the_broker_under_test_log_in_with_tokens(
    broker_kind: str,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    other_is_controller: bool,
) -> None:
    with serve_issuer({"node": "secret"}) as issuer:
        issuer.lifetime_s = 20
        name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        urls = f"{issuer.keys_url},{issuer.tokens_url}"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{name}={urls}")
        with run_pair(
            tmp_path, settings(issuer), broker_kind, other_is_controller=other_is_controller
        ) as cluster:
            check_replication(cluster, topic)
            assert issuer.requests.count("/tokens") >= 2
