"""Operating systems without Linux's own calls, and without a Unix system's."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.support.command_line.process import ROOT, Node

SCRIPT = ROOT / "tests" / "support" / "command_line" / "other_system.py"
RECORDS = [b"%d" % number for number in range(100)]


def command(system: str, *arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPT), system, *arguments]


def run(system: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(system, *arguments),
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@contextmanager
def serve(system: str, cwd: Path, *arguments: str) -> Iterator[Node]:
    errors = cwd / "stderr.txt"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            command(system, "serve", "--port", "0", *arguments),
            cwd=cwd,
            env={"PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as process,
    ):
        try:
            yield Node(process, errors)
        finally:
            process.kill()


def write_and_read(node: Node, *, before: int = 0) -> None:
    """Write all records, and read them and what was written ``before`` as a group."""
    address = {"bootstrap.servers": f"{node.host}:{node.port}"}
    producer = Producer({**address, "acks": "all"})
    for value in RECORDS:
        producer.produce("t", value)
    assert producer.flush(30) == 0
    settings = {"group.id": f"g-{before}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**address, **settings})
    consumer.subscribe(["t"])
    count = before + len(RECORDS)
    messages = consumer.consume(count, timeout=30)
    consumer.commit()
    consumer.close()
    values = [message.value() for message in messages]
    assert values[before:] == RECORDS
    assert len(values) == count


def test_broker_serves_and_recovers_without_calls_of_linux(tmp_path: Path) -> None:
    with serve("darwin", tmp_path) as node:
        write_and_read(node)
        node.process.kill()
        node.process.wait()
    with serve("darwin", tmp_path) as node:
        write_and_read(node, before=len(RECORDS))
        assert node.stop() == 0
        assert "Traceback" not in node.errors.read_text()


def test_broker_says_that_windows_lacks_what_it_needs(tmp_path: Path) -> None:
    result = run("win32", tmp_path, "serve", "--ephemeral")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "kwire: a broker cannot run on Windows, where Python lacks os.pread and "
        "os.pwritev; use WSL 2 or the container image\n"
    )


def test_commands_without_data_run_on_windows(tmp_path: Path) -> None:
    assert run("win32", tmp_path, "random-uuid").returncode == 0
    result = run("win32", tmp_path, "users", "list", "--bootstrap", "127.0.0.1:1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("kwire: cannot use 127.0.0.1:1: ")
    assert "Traceback" not in result.stderr


def test_pytest_runs_on_windows_and_says_why_a_broker_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\ndef test_two(kafka): pass\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "del os.pread, os.pwritev\n"
        "sys.modules['fcntl'] = sys.modules['resource'] = None\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert "1 passed, 1 error" in result.stdout, result.stdout + result.stderr
    assert "BrokerError: a broker cannot run on Windows" in result.stdout
