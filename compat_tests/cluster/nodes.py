"""A cluster of real processes, each of kwire or Apache Kafka by the node's kind.

Rules: all nodes start from the same kind of properties file; ports are free ones; every process
started here is ended by :meth:`Cluster.close`.
"""

from __future__ import annotations

import base64
import io
import signal
import ssl
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import attrs

from compat_tests.harness.broker import ROOT, kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import DEADLINE_SECONDS, eventually
from kwire import cli
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.testing.wire import Closed, WireClient
from kwire.types import METADATA_TOPIC

COMBINED, BROKER, CONTROLLER = "broker,controller", "broker", "controller"
LOOPBACK = "127.0.0.1"
STOP_SECONDS = 120
FEATURES = ("transaction", "share", "streams")
"""The features that are off where Apache's nodes format their directories."""
ELR = "eligible.leader.replicas"
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings of nodes whose topics have three replicas, and whose sessions end soon."""


@attrs.define(eq=False)
class Node:
    """A node with its directory, and its process while that runs."""

    id: int
    kind: str
    roles: str
    directory: Path
    port: int
    controller_port: int
    process: subprocess.Popen[bytes] | None = None
    host: str = LOOPBACK
    prefix: tuple[str, ...] = ()
    """The beginning of its command line, such as the one that enters a network namespace."""
    program: tuple[str, ...] = (str(ROOT / "scripts" / "kwire"),)
    """The program that serves as a kwire node."""
    heap: str = "256m"
    """The limit of a JVM's heap; thousands of partitions need more."""
    tls: ssl.SSLContext | None = None
    """The context of clients, if its listeners encrypt."""
    log_dirs: tuple[Path, ...] = ()
    """Its log directories; the metadata log is in the first one."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_controller(self) -> bool:
        return "controller" in self.roles

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def config(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def replica(self, topic: str, index: int = 0) -> Path:
        """Return the directory of a replica, which need not exist."""
        paths = [path / f"{topic}-{index}" for path in self.log_dirs]
        return next((path for path in paths if path.exists()), paths[0])

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def format(
        self, *arguments: str, features: Sequence[str] = FEATURES
    ) -> subprocess.CompletedProcess[str]:
        """Format its directory with these features off; most begin so with kwire anyway."""
        if self.kind == "kwire":
            command = [str(ROOT / "scripts" / "kwire"), *self._format_options(arguments, features)]
        else:
            kafka.share_classes()
            command = kafka.java_command(*kafka.performance_options(), "kafka.tools.StorageTool")
            command += ["format", "-c", str(self.config), "-t", kafka.CLUSTER_ID, *arguments]
            command += [option for name in features for option in _switched_off(name)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def prepare(self, *arguments: str, features: Sequence[str] = FEATURES) -> None:
        """Format its directory, which must succeed.

        For kwire the command runs within this process: most of a process of its own would be
        imports, and the nodes of all tests would spend two minutes on them.
        """
        if self.kind != "kwire":
            run = self.format(*arguments, features=features)
            assert run.returncode == 0, run.stdout + run.stderr
            return
        output = io.StringIO()
        try:
            with redirect_stdout(output), redirect_stderr(output):
                cli.main(self._format_options(arguments, features))
        except SystemExit:
            raise AssertionError(output.getvalue()) from None

    def _format_options(self, arguments: Sequence[str], features: Sequence[str]) -> list[str]:
        """Return the arguments of `kwire format`."""
        options = ["format", "--config", str(self.config), "--cluster-id", kafka.CLUSTER_ID]
        off = [option for name in features if name == ELR for option in _switched_off(name)]
        return [*options, *arguments, *off]

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        if self.kind == "kwire":
            command = [*self.program, "serve", "--config", str(self.config)]
        else:
            command = kafka.java_command("kafka.Kafka", str(self.config))
            command[1:1] = ["-Xms128m", f"-Xmx{self.heap}", *kafka.performance_options()]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self, timeout_s: float = STOP_SECONDS) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def client(self, timeout_s: float = 30.0) -> WireClient:
        return self._connect(self.port, timeout_s)

    def _connect(self, port: int, timeout_s: float) -> WireClient:
        client = WireClient(self.host, port, timeout_s=timeout_s)
        if self.tls is not None:
            client.sock = self.tls.wrap_socket(client.sock, server_hostname=self.host)
        return client

    def answers(self) -> bool:
        """Whether its controller answers ApiVersions."""
        try:
            with self._connect(self.controller_port, 2.0) as client:
                client.call(ApiVersionsRequest(), 0)
        except (OSError, Closed):
            return False
        return True

    def leader(self) -> int | None:
        """Return this node's id if its controller says that it leads the quorum; else None."""
        topic = DescribeQuorumRequest.TopicData
        part = topic.PartitionData(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])]
        )
        try:
            with self._connect(self.controller_port, 2.0) as client:
                answer = client.call(request, 2).topics[0].partitions[0]
        except (OSError, Closed):
            return None
        leads = answer.error_code == 0 and answer.leader_id == self.id
        return self.id if leads else None

    def brokers_seen(self) -> set[int]:
        """Return the ids of the brokers in this node's Metadata response; empty if it is down."""
        try:
            with self.client(timeout_s=2.0) as client:
                return {b.node_id for b in client.call(MetadataRequest(topics=[]), 12).brokers}
        except (OSError, Closed):
            return set()


@attrs.define(eq=False)
class Cluster:
    """The nodes of one cluster."""

    directory: Path
    overrides: Mapping[str, str] = attrs.field(factory=dict)
    dynamic: bool = False
    log_dirs: tuple[str, ...] = ("data",)
    """The names of each node's log directories."""
    nodes: dict[int, Node] = attrs.field(factory=dict)
    make: type[Node] = Node

    def add(self, node_id: int, kind: str = "kwire", roles: str = COMBINED) -> Node:
        """Add a node that is neither configured nor started yet."""
        directory = self.directory / f"node-{node_id}"
        directory.mkdir(parents=True)
        port, controller_port = new_ports(2)
        self.nodes[node_id] = node = self.make(
            node_id,
            kind,
            roles,
            directory,
            port=port,
            controller_port=controller_port,
            log_dirs=tuple(directory / name for name in self.log_dirs),
        )
        return node

    def configure(self) -> None:
        """Write every node's missing properties; all present controllers are static voters."""
        for node in self.nodes.values():
            if not node.config.exists():
                kafka.write_properties(node.config, self.properties(node))

    def properties(self, node: Node) -> dict[str, str]:
        voters = {n.id: f"{n.host}:{n.controller_port}" for n in self.controllers}
        listeners = []
        if node.is_broker:
            listeners.append(f"PLAINTEXT://{node.address}")
        if node.is_controller:
            listeners.append(f"CONTROLLER://{node.host}:{node.controller_port}")
        properties = {
            "process.roles": node.roles,
            "node.id": str(node.id),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(map(str, node.log_dirs)),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "3",
            "default.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        if self.dynamic:
            properties["controller.quorum.bootstrap.servers"] = ",".join(voters.values())
        else:
            properties["controller.quorum.voters"] = ",".join(f"{k}@{v}" for k, v in voters.items())
        return {**properties, **self.overrides}

    @property
    def controllers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_controller]

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_broker]

    @property
    def living(self) -> list[Node]:
        """The brokers whose process runs."""
        return [node for node in self.brokers if node.alive]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.brokers)

    def start(self, features: Sequence[str] = FEATURES, options: Sequence[str] = ()) -> None:
        """Configure, format with these features off, launch, and wait until all nodes serve.

        ``options``: further options of each node's format.
        """
        self.configure()
        for node in self.nodes.values():
            node.prepare(*options, features=features)
        for node in self.nodes.values():
            node.launch()
        self.wait_complete()

    def start_standalone(self) -> None:
        """Start all nodes, with node 1 as the only voter of a dynamic quorum.

        The other controllers are observers.
        """
        self.configure()
        for node in self.nodes.values():
            node.prepare("--standalone" if node.id == 1 else "--no-initial-controllers")
            node.launch()
        self.wait_complete()

    def start_with_initial_controllers(self, features: Sequence[str] = FEATURES) -> None:
        """Start all nodes, with every controller a voter of a dynamic quorum.

        Their directories are formatted with these features off.
        """
        self.configure()
        first = ",".join(
            f"{node.id}@{node.host}:{node.controller_port}:{fresh_id()}"
            for node in self.controllers
        )
        for node in self.nodes.values():
            voters = ("--initial-controllers", first)
            options = voters if node.is_controller else ("--no-initial-controllers",)
            node.prepare(*options, features=features)
            node.launch()
        self.wait_complete()

    def wait_complete(self, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until every living broker sees exactly the living brokers."""
        living = {node.id for node in self.living}

        def complete() -> bool:
            return all(node.brokers_seen() == living for node in self.living)

        eventually(complete, lambda: f"brokers {living} see each other: {self.tails()}", seconds)

    def active(self) -> Node:
        """Wait for an active controller and return its node."""

        def find() -> Node | None:
            leads = [n for n in self.controllers if n.alive and n.leader() == n.id]
            return leads[0] if leads else None

        node = eventually(find, "an active controller")
        assert node is not None
        return node

    def tails(self) -> str:
        """Return the end of every node's log."""
        return "\n".join(f"{node.id}: {node.read_log()[-600:]}" for node in self.nodes.values())

    def close(self) -> None:
        """Kill all nodes; other tests cover a controlled shutdown."""
        for node in self.nodes.values():
            node.kill()


def _switched_off(feature: str) -> tuple[str, str]:
    return "--feature", f"{feature}.version=0"


def stop_in_order(node: Node) -> None:
    """Stop a node with SIGTERM; the JVM's exit code names the signal also after a clean stop."""
    assert node.stop() == (0 if node.kind == "kwire" else 128 + signal.SIGTERM)


def fresh_id() -> str:
    """Return a directory id that no command line takes for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return text
