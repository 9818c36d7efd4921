"""Nodes that log in to each other with access tokens, at brokers and at controllers."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.cluster.nodes import BROKER, COMBINED, FEATURES, Cluster
from compat_tests.confluent_kafka.clients import admin, create, deliver, read
from compat_tests.harness.wait import eventually
from compat_tests.security.nodes import configure
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
@pytest.mark.parametrize(
    "other_is_controller", [False, True], ids=["kafka joins", "kafka controls"]
)
def test_kafka_and_the_broker_under_test_log_in_with_tokens(
    broker_kind: str,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    other_is_controller: bool,
) -> None:
    kinds = ("kafka", broker_kind) if other_is_controller else (broker_kind, "kafka")
    with serve_issuer({"node": "secret"}) as issuer:
        issuer.lifetime_s = 20
        name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        urls = f"{issuer.keys_url},{issuer.tokens_url}"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{name}={urls}")
        cluster = Cluster(tmp_path, settings(issuer))
        try:
            for number, (kind, roles) in enumerate(zip(kinds, (COMBINED, BROKER), strict=True), 1):
                cluster.add(number, kind, roles)
            for node in cluster.nodes.values():
                configure(cluster, node)
                run = node.format(features=FEATURES)
                assert run.returncode == 0, run.stdout + run.stderr
                node.launch()
            cluster.wait_complete()
            create(cluster.bootstrap, topic, replicas=2)

            def is_replicated() -> bool:
                metadata = admin(cluster.bootstrap).list_topics(topic, timeout=10)
                return len(metadata.topics[topic].partitions[0].isrs) == 2

            eventually(is_replicated, cluster.tails)
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
            deliver(producer, [{"topic": topic, "value": b"%d" % n} for n in range(50)])
            assert len(read(cluster.bootstrap, topic, 50)) == 50
            assert issuer.requests.count("/tokens") >= 2
            assert is_replicated()
        finally:
            cluster.close()
