"""Nodes that log in to each other: to controllers with PLAIN, to brokers with SCRAM."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.security.brokers import PLAIN_MODULE, SCRAM_MODULE
from compat_tests.security.nodes import check_replication, each_order, run_pair

ACCOUNT = 'username="node" password="node-secret"'
SETTINGS = {
    "inter.broker.listener.name": "BROKERS",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT,"
    "CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {ACCOUNT} "
    'user_node="node-secret";',
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required {ACCOUNT};",
    "listener.name.brokers.scram-sha-512.connections.max.reauth.ms": "5000",
}
USER = "SCRAM-SHA-512=[name=node,password=node-secret]"


@pytest.mark.single
@each_order
@pytest.mark.with_apache
def test_kafka_and_the_broker_under_test_log_in_to_each_other(
    broker_kind: str, tmp_path: Path, topic: str, other_is_controller: bool
) -> None:
    user = ("--add-scram", USER)
    with run_pair(
        tmp_path, SETTINGS, broker_kind, *user, other_is_controller=other_is_controller
    ) as cluster:
        check_replication(cluster, topic)
