"""Brokers with a second listener, whose clients log in, for the variants of other people's suites.

The suite gets the address of that listener. The user logs in with every mechanism; the harness
itself uses the other listener.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from compat_tests.cluster.nodes import Cluster
from compat_tests.harness.suite import running, running_cluster
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import JAAS, LOGIN_LISTENERS, SCRAM_MODULE
from compat_tests.security.clients import login

USER, PASSWORD = "alice", "alice-secret"
SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
LOGINS = {
    **LOGIN_LISTENERS,
    "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM]),
    "listener.name.login.plain.sasl.jaas.config": JAAS,
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "delegation.token.secret.key": "the secret of the cluster",
}
"""Settings of the brokers, which also issue delegation tokens."""


@contextmanager
def start(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Run brokers; yield the address of the listener that the suite uses, and a reader of logs."""
    if "LOGIN" not in settings.get("listeners", ""):
        with running(kind, settings, node_count) as brokers:
            yield brokers
        return
    with running_cluster(kind, settings, node_count) as cluster:
        addresses = login_addresses(cluster)
        if "SCRAM" in settings.get("sasl.enabled.mechanisms", ""):
            for mechanism in SCRAM:
                create_user(cluster.bootstrap, addresses, mechanism, USER, PASSWORD)
        yield ",".join(addresses), cluster.tails


def login_addresses(cluster: Cluster) -> list[str]:
    """Return the address at which the clients of each node log in."""
    configs = [node.config.read_text() for node in cluster.nodes.values()]
    return [re.findall(r"LOGIN://([\d.:]+)", config)[0] for config in configs]


def create_user(
    bootstrap: str, addresses: Sequence[str], mechanism: str, user: str, password: str
) -> None:
    """Create a user's credentials for a mechanism, and wait until every broker knows them."""
    info = ScramCredentialInfo(SCRAM[mechanism], 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.alter_user_scram_credentials([change])[user].result(60)
    for address in addresses:
        may_enter = functools.partial(may_log_in, address, mechanism, user, password)
        eventually(may_enter, f"a log-in of {user} at {address}")


def may_log_in(address: str, mechanism: str, user: str, password: str) -> bool:
    """Return whether the broker lets the user in."""
    settings = login(user, password, mechanism)
    try:
        AdminClient({"bootstrap.servers": address, **settings}).list_topics(timeout=10)
    except KafkaException:
        return False
    return True
