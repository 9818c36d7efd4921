"""Starts and stops the nodes of Apache's tests: a line of JSON for each command and its answer.

Rules: one cluster at a time; a command that fails is answered with ``error``. A node that the tests
want without the role of a controller has none, as with Apache's own clusters.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from compat_tests.apache_tests.forks import ForkedNode
from compat_tests.cluster.nodes import BROKER, COMBINED, CONTROLLER, Cluster
from compat_tests.harness.broker import kafka

OWN: Final = {
    "listeners",
    "advertised.listeners",
    "controller.listener.names",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "process.roles",
    "node.id",
    "broker.id",
    "log.dirs",
    "log.dir",
}
"""The settings that stay those of the nodes' own listeners and directories."""
FIRST_CONTROLLER: Final = 3000
"""Apache's clusters number controllers of their own from here."""


def open_cluster(description: Mapping[str, Any], opened: ExitStack) -> Cluster:
    """Start a cluster, which ends with ``opened``."""
    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="kwire-apache-tests-"))
    disks = tuple(f"data-{number}" for number in range(description["disks"]))
    cluster = Cluster(Path(folder), log_dirs=disks, make=ForkedNode)
    opened.callback(cluster.close)
    for node_id, role in _roles(description).items():
        cluster.add(node_id, roles=role).host = "localhost"
    for node in cluster.nodes.values():
        own = {**description["settings"], **description["perNode"].get(str(node.id), {})}
        changed = {name: str(value) for name, value in own.items() if name not in OWN}
        usual = _name_listener(cluster.properties(node), description["listener"])
        kafka.write_properties(node.config, {**usual, **changed})
    levels = description["features"].items()
    options = [option for name, level in levels for option in ("--feature", f"{name}={level}")]
    cluster.start(features=(), options=options)
    return cluster


def _name_listener(properties: Mapping[str, str], name: str) -> dict[str, str]:
    """Return a node's properties with this name for the listener of clients and brokers."""
    replication = "default.replication.factor"  # A test may ask which node's default counts.
    return {
        **{name: value for name, value in properties.items() if name != replication},
        "listeners": properties["listeners"].replace("PLAINTEXT://", f"{name}://"),
        "inter.broker.listener.name": name,
        "listener.security.protocol.map": f"{name}:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def _roles(description: Mapping[str, Any]) -> dict[int, str]:
    """Return the role of each node, with the ids of Apache's own clusters."""
    brokers, controllers = description["brokers"], description["controllers"]
    if description["combined"]:
        both = dict.fromkeys(range(min(brokers, controllers)), COMBINED)
        more = dict.fromkeys(range(controllers, brokers), BROKER)
        rest = dict.fromkeys(range(brokers, controllers), CONTROLLER)
        return {**both, **more, **rest}
    alone = {FIRST_CONTROLLER + number: CONTROLLER for number in range(controllers)}
    return {**dict.fromkeys(range(brokers), BROKER), **alone}


def answer(command: Mapping[str, Any], cluster: Cluster | None) -> dict[str, Any]:
    assert cluster is not None, "no cluster is open"
    if command["command"] == "stop":
        cluster.nodes[command["id"]].stop()
    elif command["command"] == "logs":
        return {"logs": cluster.tails()}
    elif command["command"] == "start":
        cluster.nodes[command["id"]].launch()
        cluster.wait_complete()
    nodes = cluster.nodes.values()
    return {
        "clusterId": kafka.CLUSTER_ID,
        "brokers": {node.id: node.port for node in cluster.brokers},
        "directories": {node.id: list(map(str, node.log_dirs)) for node in nodes},
        "properties": {node.id: _read_properties(node.config) for node in nodes},
        "controllers": {node.id: node.controller_port for node in cluster.controllers},
    }


def _read_properties(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text().splitlines())
    return {name: value for name, _, value in pairs}


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as opened:
        cluster = None
        for line in sys.stdin:
            command = json.loads(line)
            try:
                if command["command"] == "open":
                    cluster = open_cluster(command, opened)
                reply = answer(command, cluster)
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"[:2000]}
            if command["command"] == "close" or cluster is None:
                opened.close()
                cluster = None
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
