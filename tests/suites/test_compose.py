"""The program `docker` that sarama's tests call does what `docker compose` would do."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import Cluster
from compat_tests.sarama.docker import Compose, serving

RELEASE, INTERNAL = "/opt/kafka-4.3.1", "kafka-1:9091"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.add(1)
    return cluster


@pytest.fixture
def docker(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    with serving(Compose(cluster, tmp_path / "home", RELEASE, INTERNAL), tmp_path) as programs:
        yield programs / "docker"


def call(docker: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([docker, *arguments], capture_output=True, text=True, check=False)


def test_exec_starts_the_tool_with_the_real_address(
    cluster: Cluster, docker: Path, tmp_path: Path
) -> None:
    words = ("echo", f"{RELEASE}/bin/tool.sh", "--bootstrap-server", INTERNAL)
    output = call(docker, "compose", "exec", "-T", "kafka-1", *words).stdout
    address = cluster.nodes[1].address
    assert output == f"{tmp_path / 'home'}/bin/tool.sh --bootstrap-server {address}\n"


def test_stop_ends_the_node_of_that_number(cluster: Cluster, docker: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    cluster.nodes[1].process = process
    assert call(docker, "compose", "stop", "kafka-1").returncode == 0
    assert process.poll() is not None


def test_logs_print_the_log_of_the_node(cluster: Cluster, docker: Path) -> None:
    cluster.nodes[1].log.write_text("became leader\n")
    assert call(docker, "compose", "logs", "--since", "now", "kafka-1").stdout == "became leader\n"


def test_whole_cluster_is_left_to_the_runner(docker: Path) -> None:
    assert call(docker, "compose", "--profile", "zookeeper", "down", "--volumes").returncode == 0


def test_unknown_command_is_refused(docker: Path) -> None:
    assert call(docker, "run", "kafka").returncode == 2
