"""One node whose directory is opened by kwire and by Apache Kafka in turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compat_tests.harness.broker import PLAIN_PROFILE, Broker, kafka
from compat_tests.harness.ports import new_ports

DYNAMIC = "controller.quorum.bootstrap.servers"
STATIC = "controller.quorum.voters"


def prepare(
    directory: Path, *, dynamic: bool = False, overrides: Mapping[str, str] | None = None
) -> Broker:
    """Make a node that is not started; ``dynamic``: with a quorum of kraft.version 1."""
    ports = port, _ = new_ports(2)
    directory.mkdir(parents=True, exist_ok=True)
    properties = kafka.node_properties(directory, ports, {**PLAIN_PROFILE, **(overrides or {})})
    if dynamic:
        properties[DYNAMIC] = properties.pop(STATIC).partition("@")[2]
    kafka.write_properties(directory / "server.properties", properties)
    return Broker(kind="kwire", address=f"127.0.0.1:{port}", directory=directory)


def hand_over(node: Broker, kind: str) -> None:
    """Start the other server on the same directory, with a new log file."""
    (node.directory / "server.log").unlink(missing_ok=True)
    node.kind = kind
    node.start()


def complaints(node: Broker) -> list[str]:
    """Return the warnings and errors in a node's log, except those of every start of Kafka.

    On a busy machine, the broker's first request may come before the controller is active, and
    events of the controller take long. The frames of a stack trace belong to the line above them.
    """
    ignored = (
        "Performing controller activation",
        "Exceptionally slow controller event",
        "NetworkClient that has already been closed",
        "[ControllerApis nodeId=1] Unexpected error handling request",
        "NotControllerException: The active controller appears to be node 1",
        "errors.TimeoutException: ",
    )
    return [
        line
        for line in (node.directory / "server.log").read_text(errors="replace").splitlines()
        if any(word in line for word in ("WARN", "ERROR", "Exception", "FATAL"))
        and not line.startswith("\tat ")
        and not any(part in line for part in ignored)
    ]
