"""The numbers of groups by kind and state, for the metrics of a node.

They are counted when the metrics are read, in slices: keeping them up to date would cost each
request about a group.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from kwire.drive import Slices

if TYPE_CHECKING:
    from kwire.group.group_tables import GroupTables

STATES: Final = {
    "classic": ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
    "consumer": ("Empty", "Assigning", "Reconciling", "Stable"),
    "share": ("Empty", "Stable"),
    "streams": ("Empty", "NotReady", "Assigning", "Reconciling", "Stable"),
}
"""The states of each kind of group; listing them here avoids loading the modules of all kinds."""


@attrs.define(eq=False, repr=False)
class GroupCounts:
    """The numbers of a node's groups at the last count."""

    _tables: "Callable[[], Iterable[GroupTables]]"
    """Returns the groups of each partition that this node coordinates."""
    _counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)

    async def update(self) -> None:
        """Count the groups; groups that change meanwhile may count as before."""
        counts: Counter[tuple[str, str]] = Counter()
        slices = Slices()
        for tables in self._tables():
            for kind_and_state in _kinds_and_states(tables):
                counts[kind_and_state] += 1
                await slices.pause()
        self._counts = counts

    def by_state(self, kind: str) -> Iterator[tuple[tuple[str], int]]:
        """Yield each state of a kind, with the number of groups in it."""
        for state in STATES[kind]:
            yield (state,), self._counts[kind, state]

    def by_kind(self) -> Iterator[tuple[tuple[str], int]]:
        """Yield each kind, with the number of its groups."""
        for kind in STATES:
            yield (kind,), sum(count for _, count in self.by_state(kind))


def _kinds_and_states(tables: "GroupTables") -> Iterator[tuple[str, str]]:
    for classic in list(tables.groups.values()):
        yield "classic", classic.state.value
    for group in list(tables.assigned_groups):
        yield group.kind, group.state.value
