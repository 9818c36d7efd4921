"""The files of a cluster on one machine: its folder, and the settings of each node.

Pure. Rules: ``cluster.json`` lists the folder's nodes; each node has its own folder with its
``server.properties``, its data and its log. Until the nodes are formatted, ``cluster.json`` also
has their directory ids, so that an interrupted formatting continues with the same ids. A formatted
node is never formatted again: a voter that has lost its log but votes can cause data loss.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kwire.configs.standalone import PROMPT_GROUPS

HOST: Final = "127.0.0.1"
PLAN_FILE: Final = "cluster.json"
NODES_AT_MOST: Final = 100
VOTERS_AT_MOST: Final = 5
"""The number of nodes that are also controllers; each further voter slows down every commit."""
_ELECTION_TIMEOUT_MS: Final = 200
"""On one machine, messages take microseconds; the default of 1000 ms would dominate the start."""


_FETCH_TIMEOUT_MS: Final = 1000
_SESSION_TIMEOUT_MS: Final = 1500
_HEARTBEAT_INTERVAL_MS: Final = 300
"""A node that hangs blocks its partitions for about this long; the default is 9 s.

On a machine that was starved for an hour, no heartbeat came more than 800 ms after the previous one
(docs/operations.md).
"""


class DamagedPlan(ValueError):
    """The content of ``cluster.json`` is not a plan."""


class Member(NamedTuple):
    """A node of the cluster, with the ports in its first configuration."""

    id: int
    port: int
    controller_port: int


class Plan(NamedTuple):
    """The nodes of a cluster, as stored in ``cluster.json``."""

    cluster_id: str
    port: int
    """The first client port; 0 if free ports were chosen."""
    members: tuple[Member, ...]
    directory_ids: Mapping[int, str]
    """The data directories' ids by node, until all nodes are formatted; then empty."""

    @property
    def voters(self) -> tuple[Member, ...]:
        return self.members[:VOTERS_AT_MOST]

    @property
    def initial_controllers(self) -> str:
        """The initial voters in the form of `kwire format --initial-controllers`."""
        return ",".join(
            f"{voter.id}@{HOST}:{voter.controller_port}:{self.directory_ids[voter.id]}"
            for voter in self.voters
        )

    def to_text(self) -> str:
        content = {
            "cluster_id": self.cluster_id,
            "port": self.port,
            "nodes": [list(member) for member in self.members],
            "formatting": {str(node): text for node, text in self.directory_ids.items()},
        }
        return json.dumps(content, indent=2) + "\n"


def parse_plan(text: str) -> Plan:
    """Return the plan in the text of a ``cluster.json``; raise DamagedPlan if it is not one."""
    try:
        content = json.loads(text)
        return Plan(
            str(content["cluster_id"]),
            int(content["port"]),
            tuple(Member(*map(int, member)) for member in content["nodes"]),
            {int(node): str(text) for node, text in content["formatting"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedPlan(repr(error)) from error


def members_from(first_port: int, count: int) -> tuple[Member, ...]:
    """Return nodes with consecutive ports: client ports first, then controller ports."""
    return tuple(
        Member(number + 1, first_port + number, first_port + count + number)
        for number in range(count)
    )


def folder_of(directory: Path, node: int) -> Path:
    return directory / f"node-{node}"


def properties(plan: Plan, member: Member, directory: Path) -> str:
    """Return the ``server.properties`` of one node."""
    count = len(plan.members)
    replicas = min(count, 3)
    in_sync = max(1, replicas - 1)
    listeners = [f"PLAINTEXT://{HOST}:{member.port}"]
    roles = ["broker"]
    if member in plan.voters:
        listeners.append(f"CONTROLLER://{HOST}:{member.controller_port}")
        roles.append("controller")
    controllers = ",".join(f"{HOST}:{voter.controller_port}" for voter in plan.voters)
    settings = {
        "process.roles": ",".join(roles),
        "node.id": member.id,
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": controllers,
        "controller.quorum.election.timeout.ms": _ELECTION_TIMEOUT_MS,
        "controller.quorum.fetch.timeout.ms": _FETCH_TIMEOUT_MS,
        "broker.session.timeout.ms": _SESSION_TIMEOUT_MS,
        "broker.heartbeat.interval.ms": _HEARTBEAT_INTERVAL_MS,
        "log.dirs": folder_of(directory, member.id) / "data",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        **PROMPT_GROUPS,
    }
    return "".join(f"{name}={_escape(str(value))}\n" for name, value in settings.items())


def _escape(value: str) -> str:
    """Escape backslashes as java.util.Properties requires."""
    return value.replace("\\", "\\\\")
