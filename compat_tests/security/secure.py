"""A broker with `--secure`, and Apache Kafka with the settings and files that it makes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from compat_tests.harness.broker import PLAIN_PROFILE, ROOT, kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from kwire.secure.folder import SecureFolder
from kwire.secure.location import ADMIN
from kwire.secure.settings import NODE, node_settings


@attrs.frozen
class Secure:
    """The running broker or cluster, and its folder of files."""

    folder: SecureFolder
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def settings(self) -> dict[str, Any]:
        """The admin's settings of librdkafka."""
        settings: dict[str, Any] = json.loads(self.folder.json_client.read_text())
        return settings

    @property
    def address(self) -> str:
        """The addresses of all nodes."""
        return str(self.settings["bootstrap.servers"])

    @property
    def java(self) -> str:
        """The admin's file for Kafka's tools."""
        return str(self.folder.java_client)


@contextmanager
def run_secure(kind: str, directory: Path) -> Iterator[Secure]:
    """Run a broker of ``kind`` kwire or kafka that `--secure` protects."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = new_ports(2)
    properties = kafka.node_properties(directory, ports, PLAIN_PROFILE)
    folder = SecureFolder(directory / "data-secure")
    log = directory / "server.log"
    if kind == "kafka":
        process = _start_kafka(directory, properties, folder, ports[0])
    else:
        kafka.write_properties(directory / "server.properties", properties)
        process = start(directory, log, "serve", "--config", "server.properties", "--secure")
    try:
        eventually(lambda: folder.has_client_files, lambda: log.read_text()[-2000:])
        yield Secure(folder, process, log)
    finally:
        process.terminate()
        process.wait(60)


def start(directory: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of kwire that runs until it is stopped."""
    command = [str(ROOT / "scripts" / "kwire"), *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def _start_kafka(
    directory: Path, properties: dict[str, str], folder: SecureFolder, port: int
) -> subprocess.Popen[bytes]:
    folder.fill([], time.time_ns() // 1_000_000)
    passwords = folder.passwords
    protected = node_settings(properties, passwords, folder.server, folder.authority)
    kafka.write_properties(directory / "server.properties", protected)
    format_kafka(directory / "server.properties", folder)
    process: subprocess.Popen[bytes] = kafka.launch(directory)
    folder.write_client_files(f"127.0.0.1:{port}")
    return process


def format_kafka(properties: Path, folder: SecureFolder) -> None:
    """Format the data of an Apache node, with the two users."""
    command = kafka.java_command(*kafka.performance_options(), "kafka.tools.StorageTool")
    command += ["format", "-c", str(properties), "-t", kafka.CLUSTER_ID]
    for user, password in ((ADMIN, folder.passwords.admin), (NODE, folder.passwords.node)):
        command += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
