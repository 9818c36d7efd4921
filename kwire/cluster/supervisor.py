"""Runs the nodes of a cluster until a signal: starts, watches and cleanly stops them.

Rules: one thread, and one loop, in :meth:`Supervisor.run`, which sleeps until a node writes
something or a time is reached. A node that cannot start ends the cluster with that node's reason. A
node that ends later is reported, and restarted only if that was requested. A rolling restart ends
early if a node ends by itself or cannot be stopped cleanly.
"""

import os
import selectors
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from kwire.cluster.display import Display
from kwire.cluster.folders import BadRequestError, CannotStartError
from kwire.cluster.nodes import ClusterNode, NodeState
from kwire.cluster.rolling import RollingRestart

BAD_REQUEST: Final = 1
"""The exit code of a node that rejects its settings."""
RESTART_AFTER_S: Final = 1.0
"""Seconds between the end of a node and its restart; they double with each further end."""
RESTART_AFTER_AT_MOST_S: Final = 30.0
ROLLING_PERIOD_S: Final = 0.5
"""The seconds between two checks of the nodes during a rolling restart."""
STEADY_AFTER_S: Final = 60.0
"""After a node has run for this long, its next restart has the shortest delay again."""

_STOP: Final = b"."
_RESTART: Final = b"r"


class Supervisor:
    """The nodes of one cluster."""

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        display: Display,
        *,
        now: Callable[[], float],
        restarts: bool,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        """``renew`` sets the nodes' options before a rolling restart; raises BadRequestError."""
        self.nodes = nodes
        self._renew = renew
        self._display = display
        self._now = now
        self._restarts = restarts
        self._selector = selectors.DefaultSelector()
        self._wake_end, self._wake_start = os.pipe()
        os.set_blocking(self._wake_start, False)
        self._selector.register(self._wake_end, selectors.EVENT_READ)
        self._is_stopping = False
        self._has_served = False
        self._started_at: dict[int, float] = {}
        self._delay_s: dict[int, float] = {}
        self._restart_at: dict[int, float] = {}
        self._rolling: RollingRestart | None = None
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Begin to stop all nodes; may be called from a signal handler."""
        os.write(self._wake_start, _STOP)

    def restart_all(self) -> None:
        """Begin to restart the nodes one by one; may be called from a signal handler."""
        with suppress(BlockingIOError):
            os.write(self._wake_start, _RESTART)

    def kill(self) -> None:
        """Kill all nodes; may be called from a signal handler."""
        for node in self.nodes:
            node.kill()

    def run(self) -> None:
        """Run the nodes until :meth:`stop`.

        Raises CannotStartError if a node could not start or did not stop cleanly, or if all have
        ended; BadRequestError if a node rejects its settings.
        """
        try:
            for node in self.nodes:
                self._start(node)
            figures_at = self._now() + self._period_s
            while any(node.is_running for node in self.nodes) or self._restart_at:
                for key, _ in self._selector.select(self._timeout_s(figures_at)):
                    self._on_readable(key)
                now = self._now()
                for node in self.nodes:
                    if now >= self._restart_at.get(node.id, now + 1):
                        self._start(node)
                if now >= figures_at and not self._is_stopping:
                    self._display.on_figures(self.nodes)
                    for node in self.nodes:
                        self._ask_figures(node, now)
                    self._roll()
                    figures_at = now + self._period_s
        finally:
            self.kill()
            self._selector.close()
        if self._failure is not None:
            raise self._failure
        if not self._is_stopping:
            raise CannotStartError("all nodes have ended; see their logs")

    @property
    def _period_s(self) -> float:
        period_s = self._display.period_s
        return period_s if self._rolling is None else min(period_s, ROLLING_PERIOD_S)

    def _timeout_s(self, figures_at: float) -> float | None:
        if self._is_stopping:
            return None
        return max(0.0, min([figures_at, *self._restart_at.values()]) - self._now())

    def _start(self, node: ClusterNode) -> None:
        self._restart_at.pop(node.id, None)
        self._started_at[node.id] = self._now()
        self._selector.register(node.start(), selectors.EVENT_READ, node)

    def _on_readable(self, key: selectors.SelectorKey) -> None:
        node = key.data
        if not isinstance(node, ClusterNode):
            if _STOP in os.read(self._wake_end, 4096):
                self._stop_all("stopping all nodes")
            else:
                self._begin_rolling()
            return
        before = node.state
        if not node.read():
            self._selector.unregister(key.fd)
            self._on_end(node)
        elif before is NodeState.STARTING and node.state is NodeState.READY:
            self._on_node_ready(node)
        elif before is NodeState.SILENT and node.state is NodeState.READY:
            self._display.on_event(f"node answers again node={node.id}")

    def _on_node_ready(self, node: ClusterNode) -> None:
        if self._has_served:
            self._display.on_event(f"node serves again node={node.id} address={node.address}")
        elif all(other.state is NodeState.READY for other in self.nodes):
            self._has_served = True
            self._display.on_ready(",".join(other.address for other in self.nodes))
            for other in self.nodes:
                self._ask_figures(other, self._now())

    def _ask_figures(self, node: ClusterNode, now: float) -> None:
        before = node.state
        node.ask_figures(now)
        if node.state is NodeState.SILENT and before is not NodeState.SILENT:
            self._display.on_event(f"node does not answer node={node.id} pid={node.pid}")

    def _begin_rolling(self) -> None:
        if self._is_stopping or not self._has_served or self._rolling is not None:
            self._display.on_event("no rolling restart begins: nodes start, stop or restart now")
            return
        try:
            self._renew()
        except BadRequestError as error:
            self._display.on_event(f"no rolling restart begins: {error}")
            return
        self._display.on_event(f"rolling restart of {len(self.nodes)} nodes")
        self._rolling = RollingRestart(self.nodes)
        for node in self.nodes:
            node.forget_figures()

    def _roll(self) -> None:
        """Stop the next node of a rolling restart, if it is time."""
        rolling = self._rolling
        if rolling is None:
            return
        if (node := rolling.next_node()) is not None:
            self._display.on_event(f"node restarts node={node.id}")
            node.stop()
        elif rolling.has_ended:
            self._rolling = None
            self._display.on_event("all nodes have restarted")

    def _on_end(self, node: ClusterNode) -> None:
        if self._rolling is not None and not self._is_stopping:
            if node is self._rolling.current and node.exit_code == 0:
                self._start(node)
                return
            self._rolling = None
            self._display.on_event("the rolling restart has ended early")
        if self._is_stopping:
            # Otherwise the node had not installed its handler yet.
            has_begun = node.exit_code != -signal.SIGTERM
            if node.exit_code and has_begun and self._failure is None:
                self._failure = CannotStartError(
                    f"node {node.id} did not stop cleanly: {node.reason}{node.where_log}"
                )
            return
        if not self._has_served:
            error = BadRequestError if node.exit_code == BAD_REQUEST else CannotStartError
            self._failure = error(f"node {node.id}: {node.reason}")
            self._stop_all("")
            return
        event = f"node ended node={node.id} reason={node.reason!r}{node.where_log}"
        self._display.on_event(event)
        if self._restarts:
            self._plan_restart(node)

    def _plan_restart(self, node: ClusterNode) -> None:
        now = self._now()
        delay_s = self._delay_s.get(node.id, RESTART_AFTER_S)
        if now - self._started_at[node.id] > STEADY_AFTER_S:
            delay_s = RESTART_AFTER_S
        self._delay_s[node.id] = min(2 * delay_s, RESTART_AFTER_AT_MOST_S)
        self._restart_at[node.id] = now + delay_s

    def _stop_all(self, event: str) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self._restart_at.clear()
        if event:
            self._display.on_event(event)
        for node in self.nodes:
            node.stop()
