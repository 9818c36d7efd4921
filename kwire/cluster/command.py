"""The command `kwire cluster`: opens the folder, then runs its nodes."""

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kwire.cluster.display import Display, Lines, Table
from kwire.cluster.folders import open_cluster
from kwire.cluster.nodes import ClusterNode
from kwire.cluster.supervisor import Supervisor

if TYPE_CHECKING:
    from kwire.node.run import StopSignals

NODES: Final = 3
"""The number of nodes in a new cluster, unless the options give another."""


def run_cluster(options: Namespace, directory: Path, signals: "StopSignals") -> None:
    """Run the folder's cluster until the first signal; a second signal kills it."""
    directory = directory.absolute()
    plan = open_cluster(
        directory,
        count=options.nodes,
        default_count=NODES,
        port=options.port,
        cluster_id=options.cluster_id,
    )
    nodes = [
        ClusterNode(member.id, directory, _node_options(options, place))
        for place, member in enumerate(plan.members)
    ]
    display: Display = Table(sys.stdout) if sys.stdout.isatty() else Lines(sys.stdout)
    supervisor = Supervisor(nodes, display, now=time.monotonic, restarts=options.restart)
    if signals.received is not None:
        return
    signals.end_at_once_after(supervisor.kill)
    signals.notify(supervisor.stop)
    try:
        supervisor.run()
    finally:
        signals.notify(None)


def _node_options(options: Namespace, place: int) -> list[str]:
    """Return the options of one node's `kwire serve`, apart from its file."""
    result = [f"--log-level={options.log_level}"]
    result += [f"--override={override}" for override in options.override]
    if options.metrics_port is not None:
        metrics_port = options.metrics_port + place if options.metrics_port else 0
        result.append(f"--metrics-port={metrics_port}")
    return result
