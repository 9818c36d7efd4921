"""The contract of `scripts/kwire serve` and `format` with scripts; both run as processes.

One test per promise of the command line: arguments, the ready line, exit codes, signals, files.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command_line.process import (
    CLUSTER_ID,
    ROOT,
    api_versions_error,
    config_file,
    free_port,
    run,
    serve,
)

pytestmark = pytest.mark.slow


def test_ready_means_every_request_is_answered(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0", "--ephemeral") as node:
        assert node.host == "127.0.0.1"
        assert api_versions_error(node.port) == 0


def test_ready_is_one_write_even_without_buffers(tmp_path: Path) -> None:
    """Nodes that share a stream, as three in the README's shell, do not mix their lines."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "kwire", "serve", "--port", "0", "--ephemeral"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
        )
        try:
            written = ours.recv(1000)
        finally:
            process.terminate()
            process.wait(60)
    assert re.fullmatch(rb"kwire ready on 127\.0\.0\.1:\d+\n", written)


def test_no_arguments_keep_data_in_the_current_folder(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0", "--cluster-id", CLUSTER_ID) as node:
        meta = (tmp_path / "kwire-data" / "meta.properties").read_text()
        assert f"cluster.id={CLUSTER_ID}" in meta
        assert node.stop() == 0
    with serve(tmp_path, "--port", "0"):
        assert (tmp_path / "kwire-data" / "meta.properties").read_text() == meta


def test_script_is_replaced_by_the_broker_process(tmp_path: Path) -> None:
    """Same process id, so that signals reach the broker."""
    with serve(tmp_path, "--port", "0", "--ephemeral") as node:
        command = Path(f"/proc/{node.process.pid}/cmdline").read_bytes().split(b"\0")
        assert b"kwire" in command
        assert b"python" in command[0]


def test_port_argument_is_the_client_port(tmp_path: Path) -> None:
    port = free_port()
    with serve(tmp_path, "--port", str(port), "--ephemeral") as node:
        assert node.port == port


def test_ephemeral_data_is_gone_on_exit(tmp_path: Path) -> None:
    os.environ["TMPDIR"] = str(tmp_path)
    try:
        with serve(tmp_path, "--port", "0", "--ephemeral") as node:
            assert list(tmp_path.glob("kwire-*/data/meta.properties"))
            assert node.stop() == 0
        assert not list(tmp_path.glob("kwire-*"))
    finally:
        del os.environ["TMPDIR"]


def test_second_signal_removes_ephemeral_data_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both signals are pending before the node handles the first."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve(tmp_path, "--port", "0", "--ephemeral") as node:
        assert list(tmp_path.glob("kwire-*/data/meta.properties"))
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            node.process.send_signal(number)
        assert node.process.wait(20) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert not list(tmp_path.glob("kwire-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_a_clean_stop(tmp_path: Path, number: int) -> None:
    with serve(tmp_path, "--port", "0") as node:
        assert node.stop(number) == 0
    assert (tmp_path / "kwire-data" / ".kafka_cleanshutdown").exists()


def test_second_signal_ends_the_node_at_once(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0") as node:
        node.process.send_signal(signal.SIGTERM)
        node.process.send_signal(signal.SIGTERM)
        node.process.wait(20)


def test_each_random_uuid_is_a_cluster_id(tmp_path: Path) -> None:
    results = [run(tmp_path, "random-uuid") for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0]
    first, second = (result.stdout for result in results)
    assert first != second
    config = config_file(tmp_path)
    done = run(tmp_path, "format", "--cluster-id", first.strip(), "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")


def test_format_then_serve(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    formatted = run(tmp_path, "format", "--cluster-id", CLUSTER_ID, "--config", str(config))
    assert formatted.returncode == 0, formatted.stderr
    meta = (tmp_path / "data" / "meta.properties").read_text()
    assert "node.id=5" in meta
    assert f"cluster.id={CLUSTER_ID}" in meta
    assert (tmp_path / "data" / "bootstrap.checkpoint").exists()
    with serve(tmp_path, "--config", str(config)) as node:
        assert api_versions_error(node.port) == 0
    again = run(tmp_path, "format", "--cluster-id", CLUSTER_ID, "--config", str(config))
    assert again.returncode == 1
    assert "already formatted" in again.stderr


def test_dump_shows_the_fields_of_metadata_records(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    with serve(tmp_path, "--config", str(config)):
        pass
    folder = tmp_path / "data"
    level = "FeatureLevelRecord(name='metadata.version', feature_level=30)"
    snapshot = run(folder, "dump-log", "--records", "bootstrap.checkpoint")
    assert level in snapshot.stdout
    # also by a relative path from within the directory
    log = run(folder / "__cluster_metadata-0", "dump-log", "--records", f"{0:020}.log")
    assert level in log.stdout
    assert "RegisterBrokerRecord(broker_id=5" in log.stdout
    assert "problem" not in snapshot.stdout + log.stdout


def test_override_wins_over_the_file(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    other = tmp_path / "elsewhere"
    with serve(tmp_path, "--config", str(config), "--override", f"log.dirs={other}"):
        assert (other / "meta.properties").exists()
        assert not (tmp_path / "data").exists()


def test_unknown_property_is_warned_about_by_name(tmp_path: Path) -> None:
    config = config_file(tmp_path, my_invention="1")
    with serve(tmp_path, "--config", str(config)) as node:
        assert "my.invention" in node.errors.read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num.partitions", "many"),
        ("log.segment.bytes", "1"),
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("ssl.engine.factory.class", "org.example.Factory"),
    ],
)
def test_invalid_or_unsupported_security_setting_is_one_line_and_exit_1(
    tmp_path: Path, key: str, value: str
) -> None:
    config = config_file(tmp_path)
    config.write_text(config.read_text() + f"{key}={value}\n")
    result = run(tmp_path, "serve", "--config", str(config))
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert key in lines[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--config", "no-such-file"],
        ["serve", "--nonsense"],
        ["serve", "--override", "novalue"],
        ["serve", "--port", "70000"],
        ["frobnicate"],
        [],
    ],
)
def test_bad_usage_is_exit_1(tmp_path: Path, arguments: list[str]) -> None:
    result = run(tmp_path, *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("kwire: ")
    assert "Traceback" not in result.stderr


def test_voter_of_a_larger_quorum_is_not_formatted_at_the_start(tmp_path: Path) -> None:
    """A wiped voter that votes can lose data."""
    config = config_file(tmp_path)
    voters = f"5@127.0.0.1:{free_port()},6@127.0.0.1:{free_port()},7@127.0.0.1:{free_port()}"
    result = run(
        tmp_path,
        "serve",
        "--config",
        str(config),
        "--override",
        f"controller.quorum.voters={voters}",
    )
    assert result.returncode == 2
    assert "kwire format" in result.stderr


def test_data_of_another_node_is_exit_2(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    assert not run(
        tmp_path, "format", "--cluster-id", CLUSTER_ID, "--config", str(config)
    ).returncode
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=5", "node.id=9"))
    result = run(tmp_path, "serve", "--config", str(config))
    assert result.returncode == 2
    assert "9" in result.stderr


def test_two_brokers_do_not_share_a_directory(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0"):
        result = run(tmp_path, "serve", "--port", "0")
        assert result.returncode == 2
        assert "kwire-data" in result.stderr


def test_killed_broker_starts_again_on_the_same_port(tmp_path: Path) -> None:
    port = free_port()
    with serve(tmp_path, "--port", str(port)) as node:
        node.stop(signal.SIGKILL)
    with serve(tmp_path, "--port", str(port)) as node:
        assert api_versions_error(node.port) == 0


def test_metrics_port_serves_metrics(tmp_path: Path) -> None:
    port = free_port()
    with serve(tmp_path, "--port", "0", "--ephemeral", "--metrics-port", str(port)):
        deadline = time.monotonic() + 10
        text = ""
        while "kafka" not in text and time.monotonic() < deadline:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                chunks = iter(lambda: connection.recv(65536), b"")
                text = b"".join(chunks).decode()
        assert text.startswith("HTTP/1.")
        assert "# TYPE" in text


def test_metrics_port_in_use_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = run(tmp_path, "serve", "--port", "0", "--ephemeral", "--metrics-port", port)
    assert result.returncode == 2
    expected = f"kwire: cannot show metrics on 127.0.0.1:{port}: Address already in use; choose"
    assert result.stderr.splitlines()[-1].startswith(expected)
    assert "Traceback" not in result.stderr


def test_logs_go_to_stderr_one_line_per_event(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0", "--ephemeral") as node:
        node.stop()
    lines = node.errors.read_text().splitlines()
    assert lines
    assert all(re.match(r"\d{4}-\d\d-\d\d \S+ (INFO|WARNING) kwire\.", line) for line in lines)


def test_log_level_filters_log_lines(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0", "--ephemeral", "--log-level", "ERROR") as node:
        node.stop()
    assert node.errors.read_text() == ""


def test_version_is_printed() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kwire", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"kwire \d+\.\d+\.\d+ \(speedups: (c|python)\)\n", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--add-scram", "SCRAM-SHA-999=[name=a,password=b]"], "--add-scram"),
        (["--add-scram", "SCRAM-SHA-256=[name=a,password=b]", "-r", "3.4"], "3.5-IV2"),
        (["--add-scram", "@absent"], "cannot read absent: No such file"),
        (["--feature", "foo.version=1"], "foo.version"),
        (["--release-version", "9.9"], "9.9"),
        (["--standalone", "--no-initial-controllers"], "--standalone"),
        (["--initial-controllers", "5@a:1:" + "A" * 21 + "Q," + "5@a:1:" + "A" * 21 + "g"], "once"),
        (["--initial-controllers", "6@a:1:" + "A" * 21 + "Q"], "this node"),
    ],
)
def test_refused_format_makes_no_directory(
    tmp_path: Path, arguments: list[str], reason: str
) -> None:
    config = config_file(tmp_path)
    lines_of_config = [x for x in config.read_text().splitlines() if "quorum.voters" not in x]
    lines_of_config.append("controller.quorum.bootstrap.servers=localhost:9093")
    config.write_text("\n".join(lines_of_config))
    command = ["format", "-t", CLUSTER_ID, "-c", str(config)]
    if not {"--standalone", "--initial-controllers"} & set(arguments):
        command.append("-s")
    result = run(tmp_path, *command, *arguments)
    assert result.returncode == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert reason in lines[0]
    assert not (tmp_path / "data").exists()
