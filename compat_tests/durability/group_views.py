"""Descriptions of groups whose partitions the coordinator assigns, and the checks of them.

Each check is a pure function to anomalies, one text each, as in `history.py`, which runs them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import attrs

from compat_tests.durability.observations import Commit

Owned = frozenset[tuple[str, int]]
"""Topics with their partitions."""


@attrs.frozen
class GroupMember:
    """A member of a group in one description of the group."""

    id: str
    epoch: int
    owned: Owned
    target: Owned


@attrs.frozen
class GroupView:
    """One description of a group as a broker returned it."""

    group: str
    state: str
    epoch: int
    members: tuple[GroupMember, ...]
    ended: float

    def is_settled(self, partitions: Owned) -> bool:
        """Return whether its members have all ``partitions``, each member those of its target."""
        owned = [partition for member in self.members for partition in member.owned]
        return (
            self.state == "Stable"
            and all(member.owned == member.target for member in self.members)
            and sorted(owned) == sorted(partitions)
        )


def double_owners(views: Iterable[GroupView]) -> list[str]:
    """Find partitions that two members own in one description, or at one epoch (invariant 66)."""
    anomalies = []
    owners: dict[tuple[str, tuple[str, int], int], set[str]] = defaultdict(set)
    for view in views:
        in_view: dict[tuple[str, int], list[str]] = defaultdict(list)
        for member in view.members:
            for partition in member.owned:
                in_view[partition].append(member.id)
                owners[view.group, partition, member.epoch].add(member.id)
        anomalies += [
            f"two owners: {partition} of {view.group} is owned by {sorted(ids)}"
            for partition, ids in in_view.items()
            if len(ids) > 1
        ]
    anomalies += [
        f"two owners: {partition} of {group} at epoch {epoch}: {sorted(ids)}"
        for (group, partition, epoch), ids in owners.items()
        if len(ids) > 1
    ]
    return anomalies


def lost_epochs(views: Iterable[GroupView]) -> list[str]:
    """Find groups whose last description has an epoch below an earlier one (invariant 72)."""
    last: dict[str, GroupView] = {}
    highest: dict[str, int] = {}
    for view in sorted(views, key=lambda view: view.ended):
        last[view.group] = view
        highest[view.group] = max(view.epoch, highest.get(view.group, 0))
    return [
        f"group epoch: {group} ends with {view.epoch}, after {highest[group]}"
        for group, view in last.items()
        if view.epoch < highest[group]
    ]


def commits_of_former_owners(commits: Sequence[Commit]) -> list[str]:
    """Find commits below an earlier one of another member (invariant 69).

    ``commits`` are the accepted ones of one group and partition, in the order of their beginnings.
    A member begins at the committed offset, and the epoch of its assignment fences former owners.
    """
    anomalies = []
    settled = deque(sorted(commits, key=lambda commit: commit.ended))
    highest: dict[str, int] = {}
    for commit in commits:
        while settled[0].ended < commit.began:
            earlier = settled.popleft()
            highest[earlier.client] = max(earlier.offset, highest.get(earlier.client, 0))
        anomalies += [
            f"former owner: {commit} after {offset} of {client}"
            for client, offset in highest.items()
            if client != commit.client and offset > commit.offset
        ]
    return anomalies
