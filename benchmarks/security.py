"""Measure what ACLs, logins and TLS cost, the latter beside Apache Kafka.

    python benchmarks/security.py [--peers kwire,kafka] [--mb N] [--only acls,logins,tls]

- acls: one check of a right among 10,000 ACLs, new and repeated, in this process.
- logins: logins a second with SCRAM and PLAIN, of clients that connect one after the other.
- tls: librdkafka writes records of 1 KB and reads them again, with TLS 1.3 and without; MB a second
  and the broker's CPU seconds for each GB.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.security.attacks import (  # noqa: E402
    PASSWORD,
    SCRAM,
    TOPIC,
    Target,
    connect_alice,
    log_in,
    run_target,
)
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest  # noqa: E402
from kwire.security.acls import ALLOW, LITERAL, OPERATIONS, PREFIXED, Acl  # noqa: E402
from kwire.security.authorizer import AclIndex, Authorizer, IndexChange  # noqa: E402
from kwire.security.scram import salt_password  # noqa: E402
from kwire.security.scram_client import ScramClient  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402

ACLS: Final = 10_000
CHECKS: Final = 100_000
USERS: Final = 1000
LOGINS_S: Final = 5.0
RECORD_BYTES: Final = 1000


def check_acls() -> None:
    """Print the time of a check, with ACLs of literal names and of prefixes of 20 lengths."""
    rng, change = Random(1), IndexChange(AclIndex())
    for number in range(ACLS):
        user = f"User:user-{number % USERS}"
        pattern = PREFIXED if number % 4 == 0 else LITERAL
        name = f"topic-{number}" + "x" * rng.randrange(20)
        change.add(Acl(2, name, pattern, user, "*", OPERATIONS["Read"], ALLOW))
    authorizer = Authorizer(frozenset(), allows_uncovered=False)
    authorizer.replace_index(change.finish())
    questions = [
        (("User", f"user-{rng.randrange(USERS)}"), f"topic-{rng.randrange(ACLS)}")
        for _ in range(CHECKS)
    ]
    few = questions[:1000] * (CHECKS // 1000)
    for title, checks in (("each another one", questions), ("1,000 in turn", few)):
        started = time.process_time()
        for principal, name in checks:
            authorizer.allows(principal, "10.0.0.1", "Read", "Topic", name)
        elapsed_us = (time.process_time() - started) / len(checks) * 1e6
        print(f"a check among {ACLS} ACLs, {title}: {elapsed_us:.2f} us")


def _log_in_with_scram(target: Target, salted: bytes) -> None:
    user = ScramClient(SCRAM, "carol", "anonce")
    with WireClient(*target.login) as client:
        answer = log_in(client, user.first(), SCRAM.name)
        user.challenge(bytes(answer.auth_bytes))
        final = SaslAuthenticateRequest(auth_bytes=user.final(salted))
        assert client.call(final, 2).error_code == 0


def measure_logins(target: Target, peer: str) -> None:
    """Print the logins a second of one client, and what they cost the broker."""
    salted = salt_password(SCRAM, PASSWORD, b"salt", 4096)
    ways: dict[str, Callable[[], None]] = {
        "PLAIN": lambda: connect_alice(target).close(),
        SCRAM.name: lambda: _log_in_with_scram(target, salted),
    }
    for name, act in ways.items():
        count, started, cpu_s = 0, time.monotonic(), target.cpu_s
        while time.monotonic() - started < LOGINS_S:
            act()
            count += 1
        cost_ms = (target.cpu_s - cpu_s) / count * 1000
        print(f"{peer}: {name}: {count / LOGINS_S:.0f} logins/s, {cost_ms:.2f} ms of CPU each")


def measure_tls(target: Target, peer: str, size_mb: int) -> None:
    """Print the rates with TLS and without."""
    tls: dict[str, Any] = {"security.protocol": "ssl", "ssl.ca.location": str(target.trusted)}
    count = size_mb * 1_000_000 // RECORD_BYTES
    for name, address, more in (("plain", target.owner, {}), ("TLS", target.tls, tls)):
        settings = {"bootstrap.servers": f"{address[0]}:{address[1]}", **more}
        for verb, act in (("write", _write), ("read", _read)):
            cpu_s, started = target.cpu_s, time.monotonic()
            act(settings, count)
            elapsed_s = time.monotonic() - started
            cost_s = (target.cpu_s - cpu_s) / size_mb * 1000
            rate = size_mb / elapsed_s
            print(f"{peer}: {verb} {name}: {rate:.0f} MB/s, {cost_s:.2f} s of CPU/GB", flush=True)


def _write(settings: dict[str, Any], count: int) -> None:
    producer = Producer({**settings, "linger.ms": 20, "batch.size": 1 << 19})
    value = os.urandom(RECORD_BYTES)
    for _ in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(60) == 0


def _read(settings: dict[str, Any], count: int) -> None:
    consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while count > 0:
        count -= len(consumer.consume(1000, 10))
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", default="kwire,kafka")
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--only", default="acls,logins,tls")
    options = parser.parse_args()
    parts = options.only.split(",")
    if "acls" in parts:
        check_acls()
    for peer in options.peers.split(","):
        with (
            tempfile.TemporaryDirectory() as folder,
            run_target(peer, Path(folder)) as target,
        ):
            if "logins" in parts:
                measure_logins(target, peer)
            if "tls" in parts:
                measure_tls(target, peer, options.mb)


if __name__ == "__main__":
    main()
