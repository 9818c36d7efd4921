"""The command `kwire serve --processes N`: runs the brokers of this machine.

Rules: a broker that ends unexpectedly is restarted; SIGHUP restarts the brokers one by one, unless
it comes from a terminal that was closed. Their logs go to standard error, each line with its
broker's id. Only this process reports to a service manager such as systemd.
"""

import signal
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kwire.cluster.command import metrics_options, serve_metrics_of
from kwire.cluster.display import Display, Lines
from kwire.cluster.folders import BadRequestError
from kwire.cluster.layout import HOST
from kwire.cluster.machine import this_machine
from kwire.cluster.nodes import ClusterNode, NodeState
from kwire.cluster.supervisor import Supervisor
from kwire.configs.declare import ConfigError
from kwire.configs.files import read_properties, with_variables
from kwire.node.service_manager import connect_service_manager

if TYPE_CHECKING:
    from kwire.node.run import StopSignals
    from kwire.node.service_manager import ServiceManager

_EXCLUDED: Final = ("ephemeral", "port", "secure", "supervised", "control_port", "cluster_id")
"""Options of `kwire serve` that cannot be used with several brokers."""


def run_machine(options: Namespace, overrides: Mapping[str, str], signals: "StopSignals") -> None:
    """Run the brokers until the first signal; a second signal kills them.

    ``overrides`` are the settings of the command line. Raises BadRequestError for the settings and
    the options, CannotStartError if a broker cannot start.
    """
    _check_options(options)
    nodes = [
        ClusterNode(node, options.config, own)
        for node, own in _options_by_node(options, overrides).items()
    ]
    display: Display = Lines(sys.stdout)
    manager = connect_service_manager()
    if manager is not None:
        display = Announced(display, manager)

    def renew() -> None:
        by_node = _options_by_node(options, overrides)
        if by_node.keys() != {node.id for node in nodes}:
            raise BadRequestError(f"{options.config}: node.id has changed; stop all brokers first")
        for node in nodes:
            node.options = by_node[node.id]

    supervisor = Supervisor(nodes, display, now=time.monotonic, restarts=True, renew=renew)
    if options.metrics_port is not None:
        serve_metrics_of(nodes, options.metrics_host or HOST, options.metrics_port)
    if signals.received is not None:
        return
    # In a terminal, SIGHUP means that the terminal was closed, and stops the brokers.
    if hasattr(signal, "SIGHUP") and not (sys.stdin is not None and sys.stdin.isatty()):
        signal.signal(signal.SIGHUP, lambda *_: supervisor.restart_all())
    signals.end_at_once_after(supervisor.kill)

    def stop() -> None:
        if manager is not None:
            manager.tell(STOPPING="1")
        supervisor.stop()

    signals.notify(stop)
    try:
        supervisor.run()
    finally:
        signals.notify(None)


def _check_options(options: Namespace) -> None:
    if options.config is None:
        raise BadRequestError("--processes: describe this machine in a file and give it --config")
    for name in _EXCLUDED:
        if getattr(options, name) not in (None, False):
            option = name.replace("_", "-")
            raise BadRequestError(f"--processes cannot be combined with --{option}: leave one out")


def _options_by_node(options: Namespace, overrides: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the brokers' options from the machine's file as it is now; raise BadRequestError."""
    try:
        settings = read_properties(options.config)
    except ConfigError as error:
        raise BadRequestError(str(error)) from error
    try:
        machine = this_machine(with_variables({**settings, **overrides}), options.processes)
    except ConfigError as error:
        raise BadRequestError(f"{options.config}: {error}") from error
    return {
        int(own["node.id"]): _node_options(options, own, place) for place, own in enumerate(machine)
    }


def _node_options(options: Namespace, own: Mapping[str, str], place: int) -> list[str]:
    """Return the options of one broker's `kwire serve`, apart from its file."""
    result = [f"--log-level={options.log_level}"]
    result += [f"--override={override}" for override in options.override]
    result += [f"--override={name}={value}" for name, value in own.items()]
    return result + metrics_options(options.metrics_port, place)


class Announced:
    """A display that also tells the service manager that the brokers are ready and supervised.

    A broker that does not answer within the service manager's watchdog time is killed and
    restarted.
    """

    def __init__(self, display: Display, manager: "ServiceManager") -> None:
        self._silent_since: dict[int, float] = {}
        """The time at which each silent broker was first found silent, by id."""
        watchdog_s = manager.watchdog_s
        self.period_s = min(display.period_s, watchdog_s / 2 if watchdog_s else display.period_s)
        self.on_event = display.on_event
        self._display = display
        self._manager = manager

    def on_ready(self, addresses: str) -> None:
        self._display.on_ready(addresses)
        self._manager.tell(READY="1", STATUS=f"serving on {addresses}")

    def on_figures(self, nodes: Sequence[ClusterNode]) -> None:
        self._display.on_figures(nodes)
        watchdog_s = self._manager.watchdog_s
        if watchdog_s is None:
            return
        self._manager.tell(WATCHDOG="1")
        now = time.monotonic()
        for node in nodes:
            if node.state is not NodeState.SILENT:
                self._silent_since.pop(node.id, None)
            elif now - self._silent_since.setdefault(node.id, now) >= watchdog_s:
                node.send_kill()
