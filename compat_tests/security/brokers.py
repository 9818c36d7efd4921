"""A broker with two listeners for clients: one for anybody, and one whose clients log in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.ports import new_ports

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob,=secret";'
MECHANISMS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": JAAS,
}

PROTOCOLS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
    "CONTROLLER:PLAINTEXT"
}
LOGIN_LISTENERS = {
    **PROTOCOLS,
    "listeners": "PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port},"
    "CONTROLLER://127.0.0.1:{controller_port}",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port}",
}
"""The listeners of the broker of a foreign suite's variant, whose ports the suite fills in."""


@attrs.frozen
class Guarded:
    """The running broker and the addresses of its listeners."""

    broker: Broker
    address: str
    """The listener that serves anybody."""
    login: str
    """The listener whose clients must log in."""


@contextmanager
def run_guarded(
    kind: str, directory: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Guarded]:
    """Run a broker of ``kind`` kwire or kafka with two listeners, and stop it at the end."""
    anybody, login, controller = new_ports(3)
    listeners = f"PLAINTEXT://127.0.0.1:{anybody},LOGIN://127.0.0.1:{login}"
    broker = make_broker(
        kind,
        directory,
        {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            **PROTOCOLS,
            **MECHANISMS,
            **(settings or {}),
        },
    )
    try:
        yield Guarded(broker, f"127.0.0.1:{anybody}", f"127.0.0.1:{login}")
    finally:
        broker.close()
