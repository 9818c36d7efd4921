"""Apache's tools for clusters: their classes, and the parts of their output that tests compare."""

from __future__ import annotations

import re
import subprocess

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.harness.broker import kafka
from compat_tests.harness.jvm import Jvm, Ran

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
SHELL = "org.apache.kafka.shell.MetadataShell"
SHELL_SECONDS = 180


def by_broker(cluster: Cluster) -> tuple[str, str]:
    return "--bootstrap-server", ",".join(node.address for node in cluster.living)


def by_controller(node: Node) -> tuple[str, str]:
    return "--bootstrap-controller", f"127.0.0.1:{node.controller_port}"


def status(jvm: Jvm, cluster: Cluster) -> dict[str, str]:
    """Return the values in ``describe --status``, by the text before the colon."""
    output = jvm.tool(QUORUM, *by_broker(cluster), "describe", "--status").ok()
    pairs = (line.partition(":") for line in output.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def replicas(jvm: Jvm, cluster: Cluster) -> dict[tuple[int, str], tuple[str, int]]:
    """Return role and lag of each node and directory in ``describe --replication``."""
    output = jvm.tool(QUORUM, *by_broker(cluster), "describe", "--replication")
    rows = [line.split() for line in output.ok().splitlines()[1:] if line.strip()]
    return {(int(row[0]), row[1]): (row[-1], int(row[3])) for row in rows}


def replication(jvm: Jvm, cluster: Cluster) -> dict[int, str]:
    """Return each node's role in ``describe --replication``: Leader, Follower or Observer."""
    rows = replicas(jvm, cluster)
    voters = {node: role for (node, _), (role, _) in rows.items() if role != "Observer"}
    return {**{node: "Observer" for node, _ in rows}, **voters}


def directory_id(node: Node) -> str:
    match = re.search(r"directory.id=(\S+)", (node.directory / "data/meta.properties").read_text())
    assert match is not None
    return match[1]


def add(jvm: Jvm, how: tuple[str, str], node: Node, *more: str) -> Ran:
    return jvm.tool(QUORUM, *how, "--command-config", str(node.config), "add-controller", *more)


def remove(jvm: Jvm, how: tuple[str, str], node_id: int, directory: str, *more: str) -> Ran:
    named = ["--controller-id", str(node_id), "--controller-directory-id", directory]
    return jvm.tool(QUORUM, *how, "remove-controller", *named, *more)


def is_added(jvm: Jvm, how: tuple[str, str], node: Node) -> bool:
    """Add a voter; return whether it is one, perhaps by an earlier unanswered attempt."""
    ran = add(jvm, how, node)
    return ran.code == 0 or "DuplicateVoterException" in ran.out + ran.err


def is_removed(jvm: Jvm, how: tuple[str, str], node_id: int, directory: str) -> bool:
    """Remove a voter; return whether it is gone, perhaps by an earlier unanswered attempt."""
    ran = remove(jvm, how, node_id, directory)
    return ran.code == 0 or "VoterNotFoundException" in ran.out + ran.err


def error(ran: Ran) -> str:
    """Return the name of the exception that ended a tool."""
    assert ran.code != 0, ran.out
    match = re.search(r"org\.apache\.kafka\.common\.errors\.(\w+)", ran.out + ran.err)
    assert match is not None, ran.out + ran.err
    return match[1]


def shell(*arguments: str) -> str:
    """Run the metadata shell in a process of its own, because ``tree`` hangs in a shared one."""
    command = kafka.java_command(*kafka.performance_options(), SHELL, *arguments)
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SHELL_SECONDS
    )
    noise = [line for line in ran.stderr.splitlines() if "SnapshotFileReader" not in line]
    return ran.stdout + "\n".join(noise)


def feature_levels(jvm: Jvm, how: tuple[str, str]) -> dict[str, tuple[str, str, str]]:
    """Return the lowest, the highest and the finalized level of each feature."""
    output = jvm.tool(FEATURES, *how, "describe").ok()
    rows = re.findall(
        r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+"
        r"FinalizedVersionLevel: (\S+)\s+Epoch: \d+",
        output,
    )
    return {name: (low, high, level) for name, low, high, level in rows}
