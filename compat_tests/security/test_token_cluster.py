"""Nodes that log in to each other with access tokens, at brokers and at controllers.

They prove to the identity provider who they are by a secret or by an assertion, which may also be
the grant.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.security.nodes import check_replication, each_order_in_the_long_run, run_pair
from tests.support.security.issuer import Issuer
from tests.support.security.issuer_server import AUDIENCE, IssuerServer, serve_issuer

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"


WAYS = ("secret", "assertion", "grant")


def proof_settings(way: str, issuer: IssuerServer, folder: Path) -> dict[str, str]:
    """Return the settings by which nodes prove to the provider who they are."""
    if way == "secret":
        return {}
    signer = Issuer.create("RS256", "node")
    issuer.signers["node-id"] = signer
    (folder / "assertion.key").write_text(signer.private_key())
    (folder / "template.json").write_text('{"header": {"kid": "node"}, "payload": {"team": "a"}}')
    proof = {
        "sasl.oauthbearer.assertion.private.key.file": str(folder / "assertion.key"),
        "sasl.oauthbearer.assertion.template.file": str(folder / "template.json"),
        "sasl.oauthbearer.assertion.claim.iss": "node-id",
        "sasl.oauthbearer.assertion.claim.sub": "node",
        "sasl.oauthbearer.assertion.claim.aud": issuer.tokens_url,
        "sasl.oauthbearer.assertion.claim.jti.include": "true",
    }
    if way == "grant":
        proof["sasl.oauthbearer.jwt.retriever.class"] = f"{PACKAGE}.JwtBearerJwtRetriever"
    return proof


def settings(issuer: IssuerServer, way: str, folder: Path) -> dict[str, str]:
    """Return the settings of nodes whose accounts are at the identity provider."""
    options = ' clientId="node" clientSecret="secret"' if way == "secret" else ""
    both: dict[str, str] = proof_settings(way, issuer, folder)
    for listener in ("brokers", "controller"):
        prefix = f"listener.name.{listener}.oauthbearer.sasl."
        both |= {
            f"{prefix}jaas.config": f"{MODULE} required{options};",
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
@each_order_in_the_long_run
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.with_apache
def test_kafka_and_the_broker_under_test_log_in_with_tokens(
    broker_kind: str,
    way: str,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    other_is_controller: bool,
) -> None:
    with serve_issuer({"node": "secret"}) as issuer:
        issuer.lifetime_s = 20
        name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        urls = f"{issuer.keys_url},{issuer.tokens_url}"
        files = f"-D{name.removesuffix('urls')}files={tmp_path}/assertion.key"
        files += f",{tmp_path}/template.json"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{name}={urls} {files}")
        own = settings(issuer, way, tmp_path)
        with run_pair(
            tmp_path, own, broker_kind, other_is_controller=other_is_controller
        ) as cluster:
            check_replication(cluster, topic)
        assert issuer.requests.count("/tokens") >= 2
        teams = [each.get("team") for each in issuer.assertions]
        assert len(teams) >= 2 or way == "secret"
        assert set(teams) <= {"a"}
