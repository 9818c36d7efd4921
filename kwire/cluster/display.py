"""Shows an operator how a cluster is doing: a table that is redrawn, or lines.

Rules: standard output carries only the ready line unless it is a terminal; on a terminal, the table
follows the ready line and is redrawn in place; everything else goes to the log, a line each.
"""

import logging
import shutil
from collections.abc import Sequence
from typing import Final, Protocol, TextIO

from kwire.cluster.nodes import ClusterNode, NodeState

logger = logging.getLogger(__name__)

_UP_AND_CLEAR: Final = "\x1b[{}F\x1b[J"
_TITLES: Final = ("node", "address", "state", "leaders", "under-replicated", "offsets/s")
_COLUMNS: Final = "{:>5}  {:<21}  {:<10}  {:>7}  {:>16}  {:>10}"


class Display(Protocol):
    """The place where the supervisor shows a cluster."""

    period_s: float
    """The seconds between two updates of the figures."""

    def on_ready(self, addresses: str) -> None:
        """Show that every node is ready to answer requests."""

    def on_event(self, text: str) -> None:
        """Show an event of a node."""

    def on_figures(self, nodes: Sequence[ClusterNode]) -> None:
        """Show the nodes' states and newest figures."""


def total(nodes: Sequence[ClusterNode], figure: str) -> int:
    """Return the sum of a figure over all nodes."""
    return int(sum(node.figures.get(figure, 0) for node in nodes))


def newest(nodes: Sequence[ClusterNode], figure: str) -> int:
    """Return a cluster-wide figure from the node with the newest metadata; 0 by default."""
    ready = [node for node in nodes if node.figures]
    return int(max(ready, key=lambda n: n.figures["metadata"]).figures[figure]) if ready else 0


class Lines:
    """Lines for a program or a file: one whenever the brokers or in-sync replicas change."""

    period_s = 5.0

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = ""

    def on_ready(self, addresses: str) -> None:
        try:
            self._out.write(f"kwire ready on {addresses}\n")
            self._out.flush()
        except OSError as error:
            logger.warning("ready, but stdout is closed addresses=%s error=%s", addresses, error)

    def on_event(self, text: str) -> None:
        logger.info("%s", text)

    def on_figures(self, nodes: Sequence[ClusterNode]) -> None:
        if not any(node.figures for node in nodes):
            return
        text = (
            f"brokers={newest(nodes, 'brokers')} controller={newest(nodes, 'controller')} "
            f"partitions={newest(nodes, 'partitions')} leaderless={newest(nodes, 'leaderless')} "
            f"under_replicated={total(nodes, 'under_replicated')}"
        )
        if text != self._last:
            logger.info("cluster %s", text)
        self._last = text


class Table:
    """A table on a terminal."""

    period_s = 1.0

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._height = 0
        self._nodes: Sequence[ClusterNode] = ()

    def on_ready(self, addresses: str) -> None:
        self._write_above(f"kwire ready on {addresses}")

    def on_event(self, text: str) -> None:
        self._write_above(text)

    def on_figures(self, nodes: Sequence[ClusterNode]) -> None:
        self._nodes = nodes
        self._write_above()

    def _write_above(self, *lines: str) -> None:
        """Write lines in place of the table, and redraw the table below them."""
        shown = table(self._nodes) if self._nodes else []
        width = shutil.get_terminal_size().columns
        text = _UP_AND_CLEAR.format(self._height) if self._height else ""
        text += "".join(f"{line}\n" for line in lines)
        text += "".join(f"{line[: width - 1]}\n" for line in shown)
        self._height = len(shown)
        self._out.write(text)
        self._out.flush()


def table(nodes: Sequence[ClusterNode]) -> list[str]:
    """Return the lines of a table with one row per node and one for the cluster.

    The lines fit a terminal of 80 columns.
    """
    lines = [_COLUMNS.format(*_TITLES)]
    for node in nodes:
        state = node.state.value
        if node.state is NodeState.ENDED and node.exit_code is not None and node.exit_code < 0:
            state = f"signal {-node.exit_code}"
        figures = ("leaders", "under_replicated")
        lines.append(
            _COLUMNS.format(
                f"{node.id}{'*' if newest(nodes, 'controller') == node.id else ' '}",
                node.address,
                state,
                *(int(node.figures[name]) if node.figures else "-" for name in figures),
                f"{node.records_per_s:,.0f}" if node.figures else "-",
            )
        )
    lines.append(
        _COLUMNS.format(
            "all ",
            f"{newest(nodes, 'partitions')} partitions",
            f"{newest(nodes, 'brokers')} serving",
            total(nodes, "leaders"),
            total(nodes, "under_replicated"),
            f"{sum(node.records_per_s for node in nodes):,.0f}",
        )
    )
    leaderless = newest(nodes, "leaderless")
    lines.append(f"{leaderless} partitions without a leader  (* active controller)")
    return lines
