"""`kwire serve --secure` and `kwire cluster --secure`, as an operator runs them."""

import json
import re
import socket
import stat
import time
from pathlib import Path

import pytest

from kwire.cluster.ports import free_ports
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.secure.folder import SecureFolder
from kwire.testing.wire import Closed, WireClient
from tests.support.command_line.process import Node, run, serve

pytestmark = pytest.mark.slow

ARGUMENTS = ("--secure", "--port", "0")


def greeting(node: Node) -> str:
    """Return the line after the ready line."""
    assert node.process.stdout is not None
    return node.process.stdout.readline()


def client_settings(directory: Path) -> dict[str, str]:
    settings: dict[str, str] = json.loads((directory / "client.json").read_text())
    return settings


def is_served_in_the_clear(node: Node) -> bool:
    with WireClient(node.host, node.port, timeout_s=20) as client:
        try:
            client.call(
                ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3
            )
        except Closed:
            return False
    return True


def test_node_says_where_the_client_files_are_and_tells_no_password(tmp_path: Path) -> None:
    folder = tmp_path / "kwire-data-secure"
    with serve(tmp_path, *ARGUMENTS) as node:
        words = greeting(node)
        assert (
            words == f"client files: {folder}/client.properties (Java), "
            f"{folder}/client.json (librdkafka)\n"
        )
        settings = client_settings(folder)
        assert settings["bootstrap.servers"] == f"{node.host}:{node.port}"
        command_line = Path(f"/proc/{node.process.pid}/cmdline").read_text()
        assert not is_served_in_the_clear(node)
        assert node.stop() == 0
    passwords = json.loads((folder / "passwords.json").read_text()).values()
    for text in (words, command_line, node.errors.read_text()):
        assert not any(password in text for password in passwords)


def others_may_use(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def test_other_users_of_the_machine_cannot_read_the_data(tmp_path: Path) -> None:
    """The data have all records, and keys from which the passwords of users can be guessed."""
    with serve(tmp_path, *ARGUMENTS) as node:
        greeting(node)
        assert node.stop() == 0
    files = list((tmp_path / "kwire-data").rglob("*"))
    assert "meta.properties" in {file.name for file in files}
    assert not [file for file in files if others_may_use(file)]


def test_empty_data_directory_is_closed_to_others(tmp_path: Path) -> None:
    data = tmp_path / "kwire-data"
    data.mkdir(mode=0o755)
    with serve(tmp_path, *ARGUMENTS) as node:
        greeting(node)
        assert not others_may_use(data)
        assert node.stop() == 0


def test_data_of_an_open_node_are_closed_to_others_when_it_is_protected(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0") as node:
        assert node.stop() == 0
    data = tmp_path / "kwire-data"
    data.chmod(0o755)
    with serve(tmp_path, *ARGUMENTS) as node:
        greeting(node)
        assert node.stop() == 0
    assert not others_may_use(data)


def test_next_start_reuses_the_files_and_the_client_files_follow_the_port(tmp_path: Path) -> None:
    folder = tmp_path / "kwire-data-secure"
    states = []
    for _ in range(2):
        with serve(tmp_path, *ARGUMENTS) as node:
            greeting(node)
            assert client_settings(folder)["bootstrap.servers"].endswith(f":{node.port}")
            names = ("ca.pem", "ca.key", "server.pem", "passwords.json")
            states.append({name: (folder / name).read_bytes() for name in names})
            assert node.stop() == 0
    assert states[0] == states[1]


def test_protected_node_does_not_start_open_by_mistake(tmp_path: Path) -> None:
    with serve(tmp_path, *ARGUMENTS) as node:
        greeting(node)
    result = run(tmp_path, "serve", "--port", "0")
    assert result.returncode == 1
    assert re.fullmatch(
        r"kwire: this node was protected, .* start it with --secure, or move .*\n", result.stderr
    )


def test_protected_node_does_not_start_open_for_tests_either(tmp_path: Path) -> None:
    (tmp_path / "kwire-data-secure").mkdir()
    result = run(tmp_path, "serve", "--port", "0", "--control-port", "0")
    assert result.returncode == 1
    assert re.fullmatch(r"kwire: this node was protected, .*\n", result.stderr)


def test_node_of_a_protected_cluster_uses_the_files_of_the_cluster(tmp_path: Path) -> None:
    """`kwire serve` restarts one node with the file that `kwire cluster` wrote."""
    cluster = tmp_path / "kwire-cluster"
    cluster.mkdir()
    (cluster / "cluster.json").touch()
    folder = SecureFolder(cluster / "secure")
    folder.fill(["127.0.0.1"], time.time_ns() // 1_000_000)
    folder.write_client_files("127.0.0.1:1,127.0.0.1:2")
    port, controller_port = free_ports(2)
    file = tmp_path / "server.properties"
    file.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={cluster}/node-1/data\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
    )
    result = run(tmp_path, "serve", "--config", str(file))
    assert result.returncode == 1
    assert f"this node was protected, and its files are in {cluster}/secure" in result.stderr
    with serve(tmp_path, "--config", str(file), "--secure") as node:
        assert f"{cluster}/secure/client.json" in greeting(node)
        assert not is_served_in_the_clear(node)
        assert node.stop() == 0
    assert client_settings(folder.path)["bootstrap.servers"] == "127.0.0.1:1,127.0.0.1:2"
    assert not (cluster / "node-1" / "data-secure").exists()


def test_cluster_for_tests_is_not_open_where_protection_was_asked_for(tmp_path: Path) -> None:
    result = run(tmp_path, "cluster", "--ephemeral", "--control-port", "0", "--secure")
    assert result.returncode == 1
    assert re.fullmatch(
        r"kwire: --control-port .* cannot be combined with .* --secure\n", result.stderr
    )


def test_ephemeral_node_leaves_no_secret(tmp_path: Path) -> None:
    with serve(tmp_path, *ARGUMENTS, "--ephemeral") as node:
        greeting(node)
        assert list(tmp_path.glob("kwire-*/data-secure/passwords.json"))
        assert node.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["stderr.txt"]


@pytest.mark.parametrize(
    ("options", "is_open"), [((), False), (("--metrics-host", "0.0.0.0"), True)]
)
def test_metrics_of_a_protected_node_are_for_its_own_machine(
    tmp_path: Path, options: tuple[str, ...], is_open: bool
) -> None:
    """Its clients may be elsewhere: 127.0.0.2 is another address, of the same machine."""
    port, metrics_port = free_ports(2)
    listeners = f"listeners=SASL_SSL://0.0.0.0:{port},CONTROLLER://127.0.0.1:0"
    advertised = f"advertised.listeners=SASL_SSL://127.0.0.1:{port}"
    arguments = ("--secure", "--metrics-port", str(metrics_port), *options)
    overrides = ("--override", listeners, "--override", advertised)
    with serve(tmp_path, *arguments, *overrides) as node:
        greeting(node)
        assert is_reachable("127.0.0.2", port)
        assert is_reachable("127.0.0.1", metrics_port)
        assert is_reachable("127.0.0.2", metrics_port) == is_open


def is_reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_settings_of_protection_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    result = run(tmp_path, "serve", *ARGUMENTS, "--override", "ssl.client.auth=required")
    assert result.returncode == 1
    assert result.stderr.startswith("kwire: --secure sets ssl.client.auth itself: remove")
    assert not list(tmp_path.glob("*-secure"))
