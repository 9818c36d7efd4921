"""Delegation tokens in a cluster with Apache Kafka: one node makes them, all nodes know them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from compat_tests.security.brokers import PLAIN_MODULE, SCRAM_MODULE
from compat_tests.security.nodes import each_order_in_the_long_run, run_pair
from compat_tests.security.wire import connect_as, log_in_with_token
from kwire.codec.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.codec.messages.expire_delegation_token import ExpireDelegationTokenRequest

ACCOUNT = ("node", "node-secret")
SETTINGS = {
    "inter.broker.listener.name": "BROKERS",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.brokers.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
    'username="node" password="node-secret" user_node="node-secret";',
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "delegation.token.secret.key": "the secret of the cluster",
}


def guarded_address(node: Node) -> str:
    """Return the address of the node's listener with logins."""
    lines = node.config.read_text().splitlines()
    listeners = next(line for line in lines if line.startswith("listeners="))
    return listeners.partition("BROKERS://")[2].split(",")[0]


@pytest.mark.single
@each_order_in_the_long_run
@pytest.mark.with_apache
def test_token_of_one_node_logs_in_at_the_other(
    broker_kind: str, tmp_path: Path, other_is_controller: bool
) -> None:
    with run_pair(
        tmp_path, SETTINGS, broker_kind, other_is_controller=other_is_controller
    ) as cluster:
        for node in cluster.nodes.values():
            share_token(node, cluster)


def share_token(maker: Node, cluster: Cluster) -> None:
    """Make a token at one node, log in with it at each, and remove it."""
    request = CreateDelegationTokenRequest(
        owner_principal_type=None, owner_principal_name=None, renewers=[], max_lifetime_ms=-1
    )
    with connect_as(guarded_address(maker), *ACCOUNT) as client:
        token = client.call(request, 3)
        assert token.error_code == 0
        for node in cluster.nodes.values():

            def may_log_in(address: str = guarded_address(node)) -> bool:
                with connect(address) as bearer:
                    hmac = bytes(token.hmac)
                    answer = log_in_with_token(bearer, token.token_id, hmac, "SCRAM-SHA-512")
                    return bool(answer.error_code == 0)

            eventually(may_log_in, cluster.tails)
        expiry = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
        assert client.call(expiry, 2).error_code == 0
