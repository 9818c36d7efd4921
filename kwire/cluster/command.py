"""The command `kwire cluster`: opens the folder, then runs its nodes."""

import logging
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kwire.cluster.display import Display, Lines, Table
from kwire.cluster.folders import BadRequestError, CannotStartError, open_cluster
from kwire.cluster.layout import HOST, folder_of
from kwire.cluster.nodes import ClusterNode
from kwire.cluster.supervisor import Supervisor
from kwire.secure.location import CLUSTER_FOLDER

if TYPE_CHECKING:
    from kwire.node.run import StopSignals
    from kwire.secure.folder import SecureFolder

logger = logging.getLogger(__name__)
PORT_MAX: Final = 65535
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
    _warn_of(options.override)
    secure = _secure_folder(options, directory)
    nodes = [
        _node(folder_of(directory, member.id), member.id, _node_options(options, place, secure))
        for place, member in enumerate(plan.members)
    ]
    display: Display = Table(sys.stdout) if sys.stdout.isatty() else Lines(sys.stdout)
    if secure is not None:
        display = WithClientFiles(display, secure)
    supervisor = Supervisor(nodes, display, now=time.monotonic, restarts=options.restart)
    if options.metrics_port is not None:
        serve_metrics_of(nodes, HOST, options.metrics_port)
    if signals.received is not None:
        return
    signals.end_at_once_after(supervisor.kill)
    signals.notify(supervisor.stop)
    try:
        supervisor.run()
    finally:
        signals.notify(None)


def _warn_of(overrides: Sequence[str]) -> None:
    """Log what is odd about the settings of the command line; the nodes' own logs are files."""
    if not overrides:
        return
    from kwire.configs.checks import secrets_warnings, warnings
    from kwire.configs.declare import BadValue

    pairs = [override.split("=", 1) for override in overrides if "=" in override]
    settings = {name.strip(): text.strip() for name, text in pairs}
    try:
        for warning in (*secrets_warnings(settings), *warnings(settings)):
            logger.warning("%s", warning)
    except BadValue:
        pass  # The first node reports it, and does not start.


def _node(folder: Path, node: int, options: list[str]) -> ClusterNode:
    return ClusterNode(node, folder / "server.properties", options, folder / "server.log")


class WithClientFiles:
    """A display of a protected cluster, which has client files once it is ready."""

    def __init__(self, display: Display, folder: "SecureFolder") -> None:
        self.period_s = display.period_s
        self.on_event = display.on_event
        self.on_figures = display.on_figures
        self._display = display
        self._folder = folder

    def on_ready(self, addresses: str) -> None:
        from kwire.secure.command import where

        try:
            self._folder.write_client_files(addresses)
        except OSError as error:
            raise CannotStartError(
                f"cannot write client files into {self._folder.path}: {error.strerror}"
            ) from error
        self._display.on_ready(addresses)
        self._display.on_event(where(self._folder))


def _secure_folder(options: Namespace, directory: Path) -> "SecureFolder | None":
    """Return the files of a protected cluster: one with `--secure`, now or at an earlier start."""
    path = Path(options.secure).absolute() if options.secure else directory / CLUSTER_FOLDER
    if options.secure is None and not path.is_dir():
        return None
    from kwire.clock import SystemClock
    from kwire.configs.declare import ConfigError
    from kwire.secure.folder import SecureFolder

    folder = SecureFolder(path)
    try:
        folder.fill([HOST], SystemClock().now_ms())
    except ConfigError as error:
        raise BadRequestError(str(error)) from error
    return folder


def _node_options(options: Namespace, place: int, secure: "SecureFolder | None") -> list[str]:
    """Return the options of one node's `kwire serve`, apart from its file."""
    result = [f"--log-level={options.log_level}"]
    if secure is not None:
        result.append(f"--secure={secure.path}")
    result += [f"--override={override}" for override in options.override]
    return result + metrics_options(options.metrics_port, place)


def metrics_options(port: int | None, place: int) -> list[str]:
    """Return the options for a node's own metrics; ``port`` is that of the page for all nodes."""
    if port is None:
        return []
    if port == 0 or port + 1 + place > PORT_MAX:
        raise BadRequestError(f"--metrics-port {port}: the nodes need the ports after it")
    return [f"--metrics-port={port + 1 + place}", f"--metrics-host={HOST}"]


def serve_metrics_of(nodes: Sequence[ClusterNode], host: str, port: int) -> None:
    """Serve one page with the metrics of all nodes."""
    from kwire.cluster.metrics_page import serve_metrics

    serve_metrics(host, port, {node.id: port + 1 + place for place, node in enumerate(nodes)})
