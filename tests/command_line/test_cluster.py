"""`kwire cluster`: several nodes on this machine, run as an operator runs them.

Every cluster uses free ports.  No test depends on a time but the limits of its waits.
"""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kwire.cluster.nodes import ClusterNode, NodeState
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.testing.wire import WireClient
from tests.support.command_line.cluster import (
    LIMIT_S,
    READY,
    children,
    cluster,
    eventually,
    is_alive,
)
from tests.support.command_line.process import CLUSTER_ID, ROOT, api_versions_error, run

pytestmark = pytest.mark.slow


def brokers(port: int) -> set[int]:
    with WireClient("127.0.0.1", port) as client:
        return {b.node_id for b in client.call(MetadataRequest(topics=[]), 12).brokers}


def test_nodes_serve_together_and_start_again_on_the_same_folder(tmp_path: Path) -> None:
    """Also invariant 109: a stop in order leaves the marker of a clean shutdown on every node."""
    folder = tmp_path / "data"
    with cluster(tmp_path, "--data", "data", "--port", "0", "--cluster-id", CLUSTER_ID) as running:
        assert [api_versions_error(port) for port in running.ports] == [0, 0, 0]
        assert [brokers(port) for port in running.ports] == [{1, 2, 3}] * 3
        shape = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            topics=[shape(name="t", num_partitions=-1, replication_factor=-1)], timeout_ms=30_000
        )
        with WireClient("127.0.0.1", running.ports[0]) as client:
            (topic,) = client.call(request, 7).topics
        assert (topic.error_code, topic.replication_factor) == (0, 3)
        assert running.stop() == 0
    for node in (1, 2, 3):
        data = folder / f"node-{node}" / "data"
        assert (data / ".kafka_cleanshutdown").exists()
        assert f"cluster.id={CLUSTER_ID}\n" in (data / "meta.properties").read_text()
    with cluster(tmp_path, "--data", "data") as again:
        assert again.addresses == running.addresses
        with WireClient("127.0.0.1", again.ports[1]) as client:
            request_one = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
            (described,) = client.call(request_one, 12).topics
        assert (described.error_code, len(described.partitions)) == (0, 1)
        assert again.stop(signal.SIGINT) == 0


def test_node_that_dies_is_reported_and_the_others_serve(tmp_path: Path) -> None:
    with cluster(tmp_path, "--data", "data", "--port", "0") as running:
        os.kill(running.node_pid(tmp_path / "data", 2), signal.SIGKILL)
        running.wait_line("node ended node=2 reason='signal 9'")
        assert api_versions_error(running.ports[0]) == 0
        assert api_versions_error(running.ports[2]) == 0
        assert running.stop() == 0
    assert not any("node serves again" in line for line in running.lines)


def test_node_that_dies_is_started_again_with_restart(tmp_path: Path) -> None:
    with cluster(tmp_path, "--data", "data", "--port", "0", "--restart") as running:
        os.kill(running.node_pid(tmp_path / "data", 2), signal.SIGKILL)
        running.wait_line("node serves again node=2")
        assert api_versions_error(running.ports[1]) == 0
        assert running.stop() == 0


def test_node_that_is_stopped_is_reported_and_holds_up_nothing(tmp_path: Path) -> None:
    """Neither while it is stopped, nor when the cluster is stopped with it."""
    with cluster(tmp_path, "--data", "data", "--port", "0") as running:
        pids = {node: running.node_pid(tmp_path / "data", node) for node in (1, 2)}
        os.kill(pids[1], signal.SIGSTOP)
        running.wait_line(f"node does not answer node=1 pid={pids[1]}")
        os.kill(pids[1], signal.SIGCONT)
        running.wait_line("node answers again node=1")
        os.kill(pids[2], signal.SIGSTOP)
        running.wait_line("node does not answer node=2")
        assert running.stop() == 0
    assert sum("node does not answer" in line for line in running.lines) == 2


def test_requests_to_a_stopped_node_fill_no_pipe(tmp_path: Path) -> None:
    """Else the supervisor would wait for it, and watch and stop no other node."""
    node = ClusterNode(1, tmp_path, [])
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        os.kill(process.pid, signal.SIGSTOP)
        os.set_blocking(process.stdin.fileno(), False)
        node._process, node.state = process, NodeState.READY
        for second in range(10_000):
            node.ask_figures(float(second))
        assert os.write(process.stdin.fileno(), b"x" * 4096) == 4096, "the pipe has room"
        assert node.state is NodeState.SILENT
        node.stop()
        assert process.wait(LIMIT_S) == -signal.SIGTERM


def test_nodes_end_with_their_supervisor(tmp_path: Path) -> None:
    with cluster(tmp_path, "--data", "data", "--port", "0", "--nodes", "2") as running:
        nodes = children(running.process.pid)
        assert len(nodes) == 2
        running.process.kill()
        eventually(lambda: not any(map(is_alive, nodes)), "nodes end")
    text = (tmp_path / "data" / "node-1" / "server.log").read_text()
    assert "the supervisor has ended node=1" in text


def test_ephemeral_cluster_leaves_no_file(tmp_path: Path) -> None:
    with cluster(tmp_path, "--ephemeral", "--port", "0", "--nodes", "1") as running:
        assert list(tmp_path.glob("kwire-*/cluster.json"))
        assert running.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_second_signal_ends_all_nodes_at_once_and_leaves_no_file(tmp_path: Path) -> None:
    with cluster(tmp_path, "--ephemeral", "--port", "0", "--nodes", "2") as running:
        nodes = children(running.process.pid)
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            running.process.send_signal(number)
        code = running.process.wait(LIMIT_S)
        assert code in (128 + signal.SIGTERM, 128 + signal.SIGINT)
        assert not any(map(is_alive, nodes))
    assert list(tmp_path.iterdir()) == []


def test_node_that_cannot_start_ends_the_cluster_with_its_reason(tmp_path: Path) -> None:
    with cluster(tmp_path, "--data", "data", "--port", "0", "--nodes", "2") as running:
        assert running.stop() == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", running.ports[1]))
        taken.listen()
        result = run(tmp_path, "cluster", "--data", "data")
    assert (result.returncode, result.stdout) == (2, "")
    address = f"127.0.0.1:{running.ports[1]}"
    assert result.stderr.startswith(f"kwire: node 2: cannot listen on PLAINTEXT://{address}: ")
    assert len(result.stderr.splitlines()) == 1


def test_voter_that_lost_its_data_is_not_formatted_again(tmp_path: Path) -> None:
    """Invariant 45: a wiped voter that votes can lose what a majority had agreed on."""
    with cluster(tmp_path, "--data", "data", "--port", "0", "--nodes", "2") as running:
        assert running.stop() == 0
    data = tmp_path / "data" / "node-1" / "data"
    data.rename(tmp_path / "elsewhere")
    result = run(tmp_path, "cluster", "--data", "data")
    assert result.returncode == 2
    assert "node 1: " in result.stderr
    assert "kwire format" in result.stderr
    assert not data.exists()


def test_first_start_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    """A kill between the formatting of two nodes leaves the plan with their directory ids."""
    with cluster(tmp_path, "--data", "data", "--port", "0") as running:
        assert running.stop() == 0
    folder = tmp_path / "data"
    ids = {}
    for node in (1, 2, 3):
        meta = (folder / f"node-{node}" / "data" / "meta.properties").read_text()
        ids[str(node)] = re.findall(r"directory.id=(\S+)", meta)[0]
        subprocess.run(["rm", "-r", str(folder / f"node-{node}" / "data")], check=True)
    plan = json.loads((folder / "cluster.json").read_text())
    (folder / "cluster.json").write_text(json.dumps({**plan, "formatting": ids}))
    with cluster(tmp_path, "--data", "data") as again:
        assert again.stop() == 0
    for node in (1, 2, 3):
        meta = (folder / f"node-{node}" / "data" / "meta.properties").read_text()
        assert f"directory.id={ids[str(node)]}\n" in meta


def test_terminal_shows_the_state_of_nodes(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kwire", "cluster", "--ephemeral", "--port", "0"]
    with subprocess.Popen(
        [*command, "--nodes", "2"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        try:
            # A node's figures may come later than its state, and than the ready line.
            second = r"\n +2. +127\.0\.0\.1:\d+ +ready +0 +0 +0\r\n all[^\r]* 2 serving"
            text = read_until(ours, rf"(?s)^(?=.*kwire ready on \S+\r\n).*{second}")
            assert READY.search(text.replace("\r\n", "\n"))
            for pid in children(process.pid)[:1]:
                os.kill(pid, signal.SIGKILL)
            text = read_until(ours, "signal 9")
            assert "\x1b[5F\x1b[J" in text  # in place of the five lines before
            process.send_signal(signal.SIGINT)
            read_until(ours, "stopping all nodes")
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, pattern: str) -> str:
    content, deadline = "", time.monotonic() + LIMIT_S
    while not re.search(pattern, content):
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], content
        with suppress(OSError):  # the other end is closed
            content += os.read(terminal, 65536).decode()
    return content


def occupied_port() -> socket.socket:
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    probe.listen()
    return probe


def test_port_in_use_is_one_line_and_makes_no_folder(tmp_path: Path) -> None:
    with occupied_port() as taken:
        port = taken.getsockname()[1]
        result = run(tmp_path, "cluster", "--port", str(port), "--nodes", "1")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kwire: cannot listen on 127.0.0.1:{port}: Address already in use; ")
    assert list(tmp_path.iterdir()) == []


def test_misspelt_setting_of_the_command_line_is_shown(tmp_path: Path) -> None:
    arguments = ("--override", "num.partitons=3", "--override", "num.partitions=0")
    result = run(tmp_path, "cluster", "--port", "0", *arguments)
    warning, error = result.stderr.splitlines()
    assert warning.endswith("unknown setting ignored name=num.partitons nearest=num.partitions")
    assert re.match("kwire: node [123]: --override num.partitions: ", error), error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--nodes", "0"], "'0' is not a number from 1 to 100"),
        (["--nodes", "many"], "'many' is not a number from 1 to 100"),
        (["--port", "65534"], "3 nodes need 6 ports"),
        (["--cluster-id", "x"], "not a uuid"),
        (["--data", "a", "--ephemeral"], "not allowed with argument"),
        (["--override", "novalue", "--ephemeral", "--port", "0"], "expected KEY=VALUE"),
        (["--override", "num.partitions=0", "--ephemeral", "--port", "0"], "num.partitions"),
    ],
)
def test_bad_options_are_one_line_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = run(tmp_path, "cluster", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("kwire: ")
    assert reason in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--nodes", "5"], 1, "has 2 nodes; leave out --nodes"),
        (["--port", "1"], 1, "leave out --port"),
        (["--cluster-id", CLUSTER_ID], 1, "leave out --cluster-id"),
    ],
)
def test_options_that_contradict_the_folder_are_refused(
    tmp_path: Path, arguments: list[str], code: int, reason: str
) -> None:
    plan = {"cluster_id": "MkU3OEVBNTcwNTJENDM2QQ", "port": 0, "formatting": {}}
    nodes = [[1, 20001, 20003], [2, 20002, 20004]]
    (tmp_path / "cluster.json").write_text(json.dumps({**plan, "nodes": nodes}))
    result = run(tmp_path, "cluster", "--data", ".", *arguments)
    assert result.returncode == code
    (line,) = result.stderr.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("cluster.json", "{", "is damaged"),
        ("cluster.json", '{"nodes": []}', "is damaged"),
        ("meta.properties", "", "has other files but no cluster.json"),
    ],
)
def test_folder_that_is_no_clusters_is_left_alone(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    result = run(tmp_path, "cluster", "--data", ".")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert reason in line
    assert [path.name for path in tmp_path.iterdir()] == [name]
