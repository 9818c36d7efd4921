"""Attacks on a broker: nobody gets in, a client with an account is served, memory is bounded.

Speed is measured by ``benchmarks/attack.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from compat_tests.harness.wait import eventually
from compat_tests.security.attacks import (
    ATTACKS,
    Target,
    connect_alice,
    log_in,
    produce,
    run_target,
    silent_connections,
)
from kwire.testing.wire import WireClient

STEPS = {
    "silent_connections": 2500,
    "half_open_handshakes": 2500,
    "slow_handshakes": 2500,
    "requests_without_a_login": 30,
    "replayed_tokens": 30,
}
"""The numbers of steps, if not 300; a failed login is answered after 0.1 s.

More connections than kwire keeps are opened for kwire alone: Kafka keeps all of them, until its
heap is exhausted.
"""
GROWTH_MB = 300
"""More than 2,048 handshakes take, of 90 KB each, or as many frames of 16 KB."""


@pytest.fixture(scope="module")
def target(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with run_target(broker_kind, tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.mark.parametrize("name", ATTACKS)
def test_attacker_gets_nothing_and_disturbs_nobody(
    target: Target, broker_kind: str, name: str
) -> None:
    """Invariants 95, 102 and 105."""
    with connect_alice(target) as alice:
        assert produce(alice) == 0
        memory_mb, descriptor_count = target.resident_mb, target.descriptor_count
        with closing(ATTACKS[name](target)) as attack:
            most = 3000 if broker_kind == "kwire" else 300
            for step in range(min(STEPS.get(name, 300), most)):
                next(attack)
                if step % 50 == 0:
                    assert produce(alice) == 0
            with connect_alice(target) as late:
                assert produce(late) == 0
            if broker_kind == "kwire":  # The memory of a JVM shows nothing.
                assert target.resident_mb - memory_mb < GROWTH_MB
        eventually(
            lambda: target.descriptor_count < descriptor_count + 20, "the connections are closed"
        )
        assert produce(alice) == 0


def test_silent_connections_are_bounded(target: Target, broker_kind: str) -> None:
    """Invariant 102: Kafka keeps them for connections.max.idle.ms."""
    if broker_kind == "kafka":
        pytest.skip("Kafka has no such bound")
    before = target.descriptor_count
    with closing(silent_connections(target)) as attack:
        for _ in range(2800):
            next(attack)
        eventually(lambda: target.descriptor_count < before + 2100, "further ones are closed")


def test_user_without_a_right_writes_nothing(target: Target) -> None:
    with WireClient(*target.login) as client:
        assert log_in(client, b"\0bob\0bob,=secret").error_code == 0
        assert produce(client) == 29
