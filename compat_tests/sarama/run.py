"""sarama's own functional tests, from the Go module proxy; part of ``scripts/test --all``.

    python -m compat_tests.sarama.run --broker kwire|kafka

They need Go, and five brokers, each behind a proxy of toxiproxy; they steer the brokers with
`docker compose`, which docker.py replaces. The brokers have the settings of sarama's
docker-compose.yml. The addresses of the proxies and of toxiproxy itself are fixed in the tests, so
a machine has room for one run at a time. The subtests of a test are known only when it runs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from compat_tests.harness.go_tests import compile_tests, install_program, run_tests
from compat_tests.harness.kafka_home import make_kafka_home
from compat_tests.harness.suite import Suite, cache, main, running_cluster
from compat_tests.harness.wait import eventually
from compat_tests.sarama.docker import Compose, serving

FOLDER = Path(__file__).resolve().parent
MODULE, VERSION = "github.com/IBM/sarama", "v1.61.1"
TOXIPROXY, TOXIPROXY_VERSION = "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.5.0"
TOXIPROXY_PORT = 8474
KAFKA = "4.3.1"
SECONDS = 1500
AT_ONCE = 2
NODE_COUNT = 5
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:{port},CLIENTS://127.0.0.1:2919{id},"
    "CONTROLLER://127.0.0.1:{controller_port}",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:{port},CLIENTS://127.0.0.1:2909{id}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "broker.rack": "{id}",
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.create.topics.enable": "false",
}
"""Settings of sarama's docker-compose.yml, and of the file in Kafka's release to which it adds."""


def binary() -> Path:
    """Return the path of the compiled tests; compile them first if needed."""
    built = cache(f"sarama-{VERSION}") / "sarama.test"
    compile_tests(built, MODULE, VERSION, ".", ["-tags", "functional"])
    return built


def toxiproxy() -> Path:
    """Return the path of toxiproxy's server; install it first if needed."""
    built = cache(f"toxiproxy-{TOXIPROXY_VERSION}") / "server"
    install_program(built, TOXIPROXY, TOXIPROXY_VERSION)
    return built


def package() -> Path:
    """Return the folder in which the tests run."""
    return binary().parent / "source"


def upstream() -> list[str]:
    """Return every functional test; the unit tests are not counted."""
    texts = [path.read_text() for path in sorted(package().glob("functional_*_test.go"))]
    return re.findall(r"^func (Test\w+)\(t \*testing\.T", "\n".join(texts), re.MULTILINE)


@attrs.define
class Scene:
    """The brokers with all that is around them; ``programs`` is the folder of `docker`."""

    programs: str = ""

    @contextmanager
    def start(
        self, kind: str, settings: Mapping[str, str], node_count: int
    ) -> Iterator[tuple[str, Callable[[], str]]]:
        """Run brokers, toxiproxy, and what answers `docker`."""
        if kind not in ("kwire", "kafka"):
            raise SystemExit("sarama's tests stop brokers: --broker must be kwire or kafka")
        server = toxiproxy()
        with (
            running_cluster(kind, settings, node_count) as cluster,
            tempfile.TemporaryDirectory() as scratch,
            proxies(server, Path(scratch)),
        ):
            compose = Compose(cluster, make_kafka_home(), f"/opt/kafka-{KAFKA}", "kafka-1:9091")
            with serving(compose, Path(scratch)) as programs:
                self.programs = str(programs)
                yield cluster.bootstrap, cluster.tails

    def run(self, address: str, names: Sequence[str]) -> Mapping[str, bool]:
        built = binary()
        top = sorted({name.split("/")[0] for name in names})
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "KAFKA_VERSION": KAFKA}
        return run_tests(built, package(), top, environment, seconds=SECONDS, at_once=AT_ONCE)


@contextmanager
def proxies(server: Path, folder: Path) -> Iterator[None]:
    """Run toxiproxy with one proxy for each broker's listener of the clients."""
    config = folder / "proxies.json"
    table = [
        {
            "name": f"kafka{node_id}",
            "listen": f"127.0.0.1:2909{node_id}",
            "upstream": f"127.0.0.1:2919{node_id}",
            "enabled": True,
        }
        for node_id in range(1, NODE_COUNT + 1)
    ]
    config.write_text(json.dumps(table))
    command = [str(server), "-host", "127.0.0.1", "-port", str(TOXIPROXY_PORT)]
    with (folder / "toxiproxy.log").open("w") as output:
        process = subprocess.Popen([*command, "-config", str(config)], stdout=output, stderr=output)
    try:
        eventually(_answers, "toxiproxy listens")
        yield
    finally:
        process.kill()
        process.wait()


def _answers() -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", TOXIPROXY_PORT), 1):
        return True
    return False


SCENE = Scene()
SUITE = Suite(
    "sarama", FOLDER, SCENE.run, upstream, SETTINGS, node_count=NODE_COUNT, start=SCENE.start
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
