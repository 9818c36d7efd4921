"""Decides when the next node of a rolling restart is stopped.

Pure. Rules: nodes are restarted one at a time; the first node, which may be a controller, is the
last. The next node is stopped only while all nodes run and every partition with a replica on one of
them has all its replicas in the ISR, according to metadata at least as new as that of the restarted
node.
"""

from collections.abc import Sequence

from kwire.cluster.nodes import ClusterNode, NodeState


class RollingRestart:
    """One restart of all nodes."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self._nodes = nodes
        self._remaining = list(nodes)
        self.current: ClusterNode | None = None
        """The node that is being restarted, until all nodes are in sync again."""
        self._metadata = 0.0
        """The offset in the metadata of the first figures after the last restart."""

    @property
    def has_ended(self) -> bool:
        return not self._remaining and self.current is None

    def next_node(self) -> ClusterNode | None:
        """Return the node to stop now; None while a restart is in progress, or at the end."""
        current = self.current
        if current is not None and current.state is NodeState.READY and not self._metadata:
            self._metadata = current.figures.get("metadata", 0.0)
        if not all(map(self._is_in_sync, self._nodes)):
            return None
        self.current = self._remaining.pop() if self._remaining else None
        self._metadata = 0.0
        return self.current

    def _is_in_sync(self, node: ClusterNode) -> bool:
        figures = node.figures
        return (
            node.state is NodeState.READY
            and bool(figures)
            and figures["metadata"] >= self._metadata
            and not figures["out_of_sync"]
        )
