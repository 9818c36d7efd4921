"""`kwire container`, run as the start scripts of the image run it, outside a container."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kwire.cluster.ports import free_ports
from kwire.configs.properties import parse_properties
from tests.support.command_line.process import CLUSTER_ID, ROOT, api_versions_error
from tests.support.testing.control import Controlled

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
COMMAND = (sys.executable, "-m", "kwire", "container")
WORDS = (
    "Kafka Server started",
    "started (kafka.server.KafkaRaftServer)",
    "Transitioning from RECOVERY to RUNNING",
)
"""The words that testcontainers for Python, Java, Go and .NET and compose files wait for."""
OTHER_ID = "4L6g3nShT-eMCtK--X86sw"


def variables(folder: Path, controller: int | None = None, **changes: str) -> dict[str, str]:
    """Return the environment of a single node, as a container library sets it."""
    port, free = free_ports(2)
    controller = free if controller is None else controller
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "CLUSTER_ID": CLUSTER_ID,
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@127.0.0.1:{controller}",
        "KAFKA_LOG_DIRS": str(folder / "data"),
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        **changes,
    }


def finish(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment,
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


@contextmanager
def running(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a node for the length of the block."""
    process = subprocess.Popen(
        [*COMMAND, "run", *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_ready(process: subprocess.Popen[str]) -> list[str]:
    """Return the two lines that a ready node prints."""
    assert process.stdout is not None
    return [process.stdout.readline(), process.stdout.readline()]


def port_of(environment: dict[str, str]) -> int:
    return int(environment["KAFKA_LISTENERS"].partition(",")[0].rpartition(":")[2])


def test_node_prints_the_words_that_container_libraries_wait_for(tmp_path: Path) -> None:
    environment = variables(tmp_path)
    assert finish(environment, "health").returncode == 1
    with running(environment) as process:
        ready, words = wait_ready(process)
        assert ready == f"kwire ready on 127.0.0.1:{port_of(environment)}\n"
        assert all(word in words for word in WORDS)
        assert api_versions_error(port_of(environment)) == 0
        assert finish(environment, "health").returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_data_keep_their_cluster_when_the_variable_changes(tmp_path: Path) -> None:
    environment = variables(tmp_path)
    for cluster_id in (CLUSTER_ID, OTHER_ID):
        with running({**environment, "CLUSTER_ID": cluster_id}) as process:
            assert wait_ready(process)[0].startswith("kwire ready on")
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0
    meta = parse_properties((tmp_path / "data" / "meta.properties").read_text())
    assert meta["cluster.id"] == CLUSTER_ID


def test_voters_of_a_new_cluster_format_their_empty_volumes(tmp_path: Path) -> None:
    """A compose file starts three voters from empty volumes, all with one CLUSTER_ID."""
    ports = dict(enumerate(free_ports(3), start=1))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
    settings_1, settings_2 = (
        variables(
            tmp_path / str(node),
            port,
            KAFKA_CONTROLLER_QUORUM_VOTERS=voters,
            KAFKA_NODE_ID=str(node),
        )
        for node, port in ports.items()
        if node != 3
    )
    with running(settings_1) as first, running(settings_2) as second:
        assert wait_ready(first)[0].startswith("kwire ready on")
        assert wait_ready(second)[0].startswith("kwire ready on")


def test_voter_that_lost_its_identity_does_not_format_over_its_data(tmp_path: Path) -> None:
    lost = tmp_path / "data" / "t-0"
    lost.mkdir(parents=True)
    (lost / f"{0:020}.log").write_bytes(b"")
    environment = variables(tmp_path, KAFKA_CONTROLLER_QUORUM_VOTERS="1@127.0.0.1:1,2@127.0.0.1:2")
    result = finish(environment, "run")
    assert result.returncode == 2
    assert "holds data but lost its meta.properties" in result.stderr
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_configured_file_can_be_formatted_and_run(tmp_path: Path) -> None:
    """The steps of Confluent's image, between which container libraries format the data."""
    environment = variables(tmp_path, KAFKA_AN_UNKNOWN_PATH="a\\\\b")
    file = tmp_path / "kafka.properties"
    assert finish(environment, "configure", "--config", str(file)).returncode == 0
    assert parse_properties(file.read_text())["an.unknown.path"] == "a\\b"
    arguments = ["format", "--ignore-formatted", "-t", OTHER_ID, "-c", str(file)]
    subprocess.run([*COMMAND[:-1], *arguments], env=environment, check=True, timeout=LIMIT_S)
    with running({"PATH": "", "PYTHONPATH": str(ROOT)}, "--config", str(file)) as process:
        assert wait_ready(process)[0].startswith("kwire ready on")


def test_bad_setting_ends_the_container_with_one_line(tmp_path: Path) -> None:
    result = finish(variables(tmp_path, KAFKA_NUM_PARTITIONS="many"), "run")
    assert result.returncode == 1
    assert result.stderr.startswith("kwire: Invalid value many for configuration num.partitions")
    assert result.stderr.count("\n") == 1
    argument = finish(variables(tmp_path), "run", "KAFKA_NUM_PARTITIONS=few")
    assert argument.stderr.startswith("kwire: Invalid value few for configuration num.partitions")


def test_tests_control_a_container_by_the_name_that_they_know_it_by(tmp_path: Path) -> None:
    """Another container calls it `kafka`; a web page is refused all the same."""
    (control_port,) = free_ports(1)
    environment = variables(tmp_path, KWIRE_CONTROL_PORT=str(control_port))
    with running(environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"kwire control on http://0.0.0.0:{control_port}\n"
        ready, words = wait_ready(process)
        assert ready == f"kwire ready on 127.0.0.1:{port_of(environment)}\n"
        assert all(word in words for word in WORDS)
        control = Controlled(process, port_of(environment), control_port)
        headers = {"Host": f"kafka:{control_port}"}
        status, state = control.request("POST", "/v1/state", headers=headers)
        assert (status, state["nodes"][0]["is_running"]) == (200, True)
        page = {**headers, "Origin": f"http://kafka:{control_port}"}
        assert control.request("POST", "/v1/state", headers=page)[0] == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"KWIRE_CONTROL_PORT": "http"}, "KWIRE_CONTROL_PORT=http: expected a port"),
        (
            {"KWIRE_CONTROL_PORT": "9100", "KAFKA_PROCESS_ROLES": "controller"},
            "KWIRE_CONTROL_PORT is set, but tests can control brokers only",
        ),
    ],
    ids=["no port", "no broker"],
)
def test_control_port_that_cannot_be_served_ends_the_container(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    environment = {**variables(tmp_path), **changes}
    if "KAFKA_PROCESS_ROLES" in changes:
        environment["KAFKA_LISTENERS"] = environment["KAFKA_LISTENERS"].partition(",")[2]
    result = finish(environment, "run")
    assert result.returncode == 1
    assert result.stderr.startswith(f"kwire: {reason}"), result.stderr


def test_control_port_in_use_ends_the_container_with_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        result = finish(variables(tmp_path, KWIRE_CONTROL_PORT=str(port)), "run")
    assert result.returncode == 2
    reason = "Address already in use; choose another control port"
    assert result.stderr.endswith(f" cannot listen on 0.0.0.0:{port}: {reason}\n")
