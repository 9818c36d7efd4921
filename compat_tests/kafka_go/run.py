"""kafka-go's own tests, from the Go module proxy. Needs Go; part of ``scripts/test --all``.

    python -m compat_tests.kafka_go.run --broker kwire|kafka

The addresses of the broker's two listeners are fixed in the tests, so a machine has room for one
run at a time. The tests of logins are in a package of their own, and have a user for each
mechanism. The subtests of a test are known only when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compat_tests.harness.go_tests import compile_tests, list_tests, run_tests
from compat_tests.harness.logins import create_user
from compat_tests.harness.suite import AUTHORIZING, Suite, cache, main, running_cluster
from compat_tests.security.brokers import PLAIN_MODULE, SCRAM_MODULE

FOLDER = Path(__file__).resolve().parent
MODULE, VERSION = "github.com/segmentio/kafka-go", "v0.4.51"
SECONDS = 900
AT_ONCE = 2
CLIENTS, LOGINS = "localhost:9092", "localhost:9093"
PACKAGES = (".", "./sasl")
PASSWORDS = {"SCRAM-SHA-256": "admin-secret-256", "SCRAM-SHA-512": "admin-secret-512"}
SKIPPED = (
    "consumer_group_commits_on_close",
    "consumer_group_rebalance",
    "verify_offset_committed",
    "verify_offset_committed_when_using_interval_committer",
)
"""Subtests that end the whole program, and one that needs luck (FINDINGS.md)."""
LISTENERS = f"PLAINTEXT://127.0.0.1:{{port}},CLIENTS://{CLIENTS},LOGIN://{LOGINS}"
SETTINGS = {
    **AUTHORIZING,
    "listeners": f"{LISTENERS},CONTROLLER://127.0.0.1:{{controller_port}}",
    "advertised.listeners": LISTENERS,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,"
    "LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "sasl.enabled.mechanisms": ",".join(["PLAIN", *PASSWORDS]),
    "listener.name.login.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
    'user_adminplain="admin-secret";',
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "super.users": "User:ANONYMOUS;User:adminplain;User:adminscram256;User:adminscram512",
    "message.max.bytes": "200000000",
}
"""Settings of kafka-go's docker-compose-400.yml."""


def binary(package: str) -> Path:
    """Return the path of a package's compiled tests; compile them first if needed."""
    name = Path(package).name or "kafka-go"
    built = cache(f"kafka-go-{VERSION}", name) / "kafka-go.test"
    compile_tests(built, MODULE, VERSION, package, ["-mod=mod"])
    return built


def folder(package: str) -> Path:
    """Return the folder in which the package's tests run."""
    return binary(package).parent / "source" / package


def upstream() -> list[str]:
    """Return every test of the packages."""
    return [name for each in PACKAGES for name in list_tests(binary(each), folder(each))]


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    top = {name.split("/")[0] for name in names}
    environment = {"KAFKA_VERSION": "4.0.0", "KAFKA_SKIP_NETTEST": "1"}
    pattern = f"^TestReaderConsumerGroup$/^({'|'.join(SKIPPED)})$"
    results: dict[str, bool] = {}
    for each in PACKAGES:
        built, source = binary(each), folder(each)
        own = sorted(top & set(list_tests(built, source)))
        if own:
            results |= run_tests(
                built, source, own, environment, seconds=SECONDS, at_once=AT_ONCE, skip=pattern
            )
    return results


@contextmanager
def start(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Run a broker with a user for each mechanism."""
    with running_cluster(kind, settings, node_count) as cluster:
        for mechanism, password in PASSWORDS.items():
            user = f"adminscram{mechanism[-3:]}"
            create_user(CLIENTS, [LOGINS], mechanism, user, password)
        yield CLIENTS, cluster.tails


SUITE = Suite("kafka_go", FOLDER, run, upstream, SETTINGS, start=start)

if __name__ == "__main__":
    sys.exit(main(SUITE))
