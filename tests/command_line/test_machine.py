"""Several brokers on one machine: `kwire format --processes N` and `kwire serve --processes N`."""

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kwire.cluster.machine import node_overrides
from kwire.cluster.metrics_page import merge
from kwire.cluster.nodes import ClusterNode, NodeState
from kwire.cluster.ports import free_ports
from kwire.cluster.rolling import RollingRestart
from kwire.codec.messages.metadata import MetadataRequest
from kwire.configs.declare import ConfigError
from kwire.node.supervisor_link import collect_figures
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.testing.wire import WireClient
from tests.support.command_line.cluster import RunningCluster, cluster, eventually
from tests.support.command_line.process import CLUSTER_ID, run

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "10",
    "listeners": "PLAINTEXT://host1:9092,CONTROLLER://host1:9192",
    "advertised.listeners": "PLAINTEXT://outside:19092",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/one,/two",
}


def test_file_of_a_machine_describes_each_of_its_brokers() -> None:
    first, _, third = node_overrides(SETTINGS, 3, "here")
    assert first == {
        "node.id": "10",
        "listeners": "PLAINTEXT://host1:9092,CONTROLLER://host1:9192",
        "advertised.listeners": "PLAINTEXT://outside:19092",
        "log.dirs": "/one/node-10,/two/node-10",
        "broker.rack": "here",
    }
    assert third == {
        "process.roles": "broker",
        "node.id": "12",
        "listeners": "PLAINTEXT://host1:9094",
        "advertised.listeners": "PLAINTEXT://outside:19094",
        "log.dirs": "/one/node-12,/two/node-12",
        "broker.rack": "here",
    }
    (own,) = node_overrides({**SETTINGS, "broker.rack": "r1"}, 1, "here")
    assert own["broker.rack"] == "r1"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"node.id": ""}, "node.id: set the id"),
        ({"log.dirs": ""}, "log.dirs: name the directories"),
        ({"process.roles": "controller"}, "process.roles: a machine of several brokers"),
        (
            {"listeners": "PLAINTEXT://host1:9092,CONTROLLER://host1:9093"},
            "PLAINTEXT of broker 2 would listen on host1:9093, as CONTROLLER of broker 1 does",
        ),
        ({"listeners": "PLAINTEXT://host1:65535"}, "broker 2 has no port left"),
        ({"listeners": "PLAINTEXT://host1"}, "has no port"),
    ],
)
def test_file_that_describes_no_machine_is_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        node_overrides({**SETTINGS, **change}, 2, "here")


def test_page_has_the_samples_of_all_nodes_by_family() -> None:
    page = '# HELP a Bytes.\n# TYPE a counter\na 1\n# TYPE b gauge\nb{t="x"} 2\n'
    assert list(merge({1: page, 2: page}, [1, 2, 3])) == [
        "# HELP kwire_node_up Whether the node answered.",
        "# TYPE kwire_node_up gauge",
        'kwire_node_up{node="1"} 1',
        'kwire_node_up{node="2"} 1',
        'kwire_node_up{node="3"} 0',
        "# HELP a Bytes.",
        "# TYPE a counter",
        'a{node="1"} 1',
        'a{node="2"} 1',
        "# TYPE b gauge",
        'b{node="1",t="x"} 2',
        'b{node="2",t="x"} 2',
    ]


def node(number: int) -> ClusterNode:
    result = ClusterNode(number, Path("unused"), [])
    answer(result, 1)
    return result


def answer(node: ClusterNode, metadata: int, behind: int = 0) -> None:
    """Let a node be ready, with these figures."""
    node.state = NodeState.READY
    node.figures = {"metadata": metadata, "out_of_sync": behind}


def test_next_node_waits_until_the_others_are_in_sync_after_the_restart() -> None:
    first, second = nodes = [node(1), node(2)]
    rolling = RollingRestart(nodes)
    answer(first, 1, behind=1)
    assert rolling.next_node() is None
    answer(first, 1)
    assert rolling.next_node() is second
    second.state, second.figures = NodeState.STARTING, {}
    assert rolling.next_node() is None
    answer(second, 5)
    assert rolling.next_node() is None, "the other's figures are older than the restart"
    answer(first, 6)
    answer(second, 6, behind=2)
    assert rolling.next_node() is None
    answer(second, 7)
    answer(first, 7, behind=1)
    assert rolling.next_node() is None
    answer(first, 7)
    assert rolling.next_node() is first
    assert not rolling.has_ended
    answer(first, 9)
    answer(second, 9)
    assert rolling.next_node() is None
    assert rolling.has_ended


@pytest.mark.parametrize(
    ("isr", "adding", "count"),
    [((1, 2, 3), (), 0), ((2, 3), (), 1), ((1, 2), (), 1), ((1, 2), (3,), 0)],
)
async def test_broker_counts_partitions_that_lack_any_replica(
    isr: tuple[int, ...], adding: tuple[int, ...], count: int
) -> None:
    """Stopping one more replica of such a partition could stop its producers."""
    partition = PartitionImage(replicas=(1, 2, 3), isr=isr, leader=2, adding=adding)
    others = PartitionImage(replicas=(2, 3), isr=(2,), leader=2)
    topic = SimpleNamespace(partitions={0: partition, 1: others})
    image = SimpleNamespace(topics={"t": topic}, brokers={}, applied=SimpleNamespace(offset=1))
    core = SimpleNamespace(
        publisher=SimpleNamespace(image=image),
        quorum=SimpleNamespace(leader=lambda: SimpleNamespace(leader_id=1)),
        clock=SimpleNamespace(now=lambda: 0.0),
        metrics=SimpleNamespace(total=lambda metric: 0),
    )
    server: Any = SimpleNamespace(core=core, config=SimpleNamespace(node_id=1))
    assert (await collect_figures(server))["out_of_sync"] == count


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[tuple[RunningCluster, int]]:
    """Two running brokers, and the port of their metrics."""
    ports = first_of_three_free_ports(), first_of_three_free_ports(), free_ports(1)[0]
    file = tmp_path / "server.properties"
    file.write_text(
        f"""process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[2]}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{ports[2]}
log.dirs={tmp_path / "data"}
"""
    )
    of_file = ("--config", str(file), "--processes", "2")
    formatting = run(tmp_path, "format", *of_file, "--cluster-id", CLUSTER_ID, "--standalone")
    assert formatting.returncode == 0, formatting.stderr
    options = (*of_file, "--metrics-port", str(ports[1]))
    with cluster(tmp_path, *options, command="serve") as running:
        yield running, ports[1]


def first_of_three_free_ports() -> int:
    """Return a free port that is followed by two others."""
    for port in free_ports(50):
        if all(is_free(port + place) for place in (1, 2)):
            return port
    raise AssertionError("no free ports")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def racks(port: int) -> set[str | None]:
    with WireClient("127.0.0.1", port) as client:
        return {b.rack for b in client.call(MetadataRequest(topics=[]), 12).brokers}


@pytest.mark.slow
def test_brokers_of_a_machine_serve_and_restart_one_by_one_with_their_new_file(
    machine: tuple[RunningCluster, int], tmp_path: Path
) -> None:
    running, metrics_port = machine
    assert running.ports == [running.ports[0], running.ports[0] + 1]
    assert page(metrics_port, "/readyz") == "ok\n"
    assert 'kwire_node_up{node="2"} 1' in page(metrics_port, "/metrics")
    pids = set(running.node_pids)
    assert len(pids) == 2
    file = next(tmp_path.glob("server.properties"))
    text = file.read_text()
    file.write_text(text.replace("node.id=1", "node.id=5"))
    running.process.send_signal(signal.SIGHUP)
    running.wait_line("node.id has changed")
    file.write_text(text + "broker.rack=elsewhere\n")
    running.process.send_signal(signal.SIGHUP)
    running.wait_line("all nodes have restarted")
    assert racks(running.ports[0]) == {"elsewhere"}
    assert not pids & set(running.node_pids)
    order = [line.split("node=")[1] for line in running.lines if "node restarts" in line]
    assert order == ["2\n", "1\n"], "the controller comes last"
    os.kill(running.node_pids[1], signal.SIGKILL)
    running.wait_line("node ended")
    eventually(lambda: len(set(running.node_pids)) == 2, "it is started again")
    assert any("[2] kwire." in line for line in running.lines), "lines name their node"
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "describe this machine in a file"),
        (("--config", "f", "--ephemeral"), "cannot be combined with --ephemeral"),
        (("--config", "f", "--metrics-port", "0"), "the nodes need the ports after it"),
    ],
)
def test_options_that_several_brokers_cannot_have_are_refused(
    tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    lines = [f"{name}={value}" for name, value in SETTINGS.items()]
    (tmp_path / "f").write_text("\n".join(lines))
    result = run(tmp_path, "serve", "--processes", "2", *options)
    assert result.returncode == 1
    assert text in result.stderr
