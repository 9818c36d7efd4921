"""Starts and stops the nodes of Apache's tests: a line of JSON for each command and its answer.

Rules: one cluster at a time; a command that fails is answered with ``error``. A node that the tests
want without the role of a controller has none, as with Apache's own clusters.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

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
    cluster = Cluster(Path(folder), log_dirs=disks)
    opened.callback(cluster.close)
    for node_id, role in _roles(description).items():
        cluster.add(node_id, roles=role)
    for node in cluster.nodes.values():
        own = {**description["settings"], **description["perNode"].get(str(node.id), {})}
        usual = cluster.properties(node)
        changed = {name: str(value) for name, value in own.items() if name not in OWN}
        kafka.write_properties(node.config, {**usual, **changed})
    levels = description["features"].items()
    options = [option for name, level in levels for option in ("--feature", f"{name}={level}")]
    cluster.start(features=(), options=options)
    return cluster


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
    elif command["command"] == "start":
        cluster.nodes[command["id"]].launch()
        cluster.wait_complete()
    return {
        "clusterId": kafka.CLUSTER_ID,
        "brokers": {node.id: node.port for node in cluster.brokers},
        "controllers": {node.id: node.controller_port for node in cluster.controllers},
    }


def main() -> None:
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
