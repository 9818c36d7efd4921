"""A run with a group whose partitions the coordinator assigns (KIP-848)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import attrs

from compat_tests.durability.group_views import GroupMember, GroupView, Owned
from compat_tests.durability.observations import Place
from compat_tests.durability.recording import RECOVERY_SECONDS, Client, Observer
from compat_tests.harness.wait import eventually
from compat_tests.nemesis.group_clients import MEMBERS, SESSION_MS, GroupRun, ask
from kwire.codec.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
)

SETTINGS: Final = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
"""The settings of the nodes."""
VIEW_SECONDS: Final = 0.2


@attrs.define
class GroupWatcher(Client):
    """A client that describes the group repeatedly."""

    group: str = ""

    def work(self) -> None:
        assert isinstance(self.run, AssignedGroupRun)
        while not self.run.stop_watching.wait(VIEW_SECONDS):
            for address in self.run.address.split(","):
                self._ask(address)

    def _ask(self, address: str) -> None:
        request = ConsumerGroupDescribeRequest(
            group_ids=[self.group], include_authorized_operations=False
        )
        answer = ask(address, request, 0)
        if answer is None:
            return
        (group,) = answer.groups
        if group.error_code:  # Another node is the coordinator.
            return
        members = tuple(
            GroupMember(
                member.member_id,
                member.member_epoch,
                _partitions(member.assignment),
                _partitions(member.target_assignment),
            )
            for member in group.members
        )
        self.history.group_views.append(
            GroupView(self.group, group.group_state, group.group_epoch, members, time.monotonic())
        )


def _partitions(assignment: Assignment) -> Owned:
    return frozenset(
        (topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


@attrs.define
class AssignedGroupRun(GroupRun):
    """The clients of a run with a group that `GroupWatcher` describes."""

    program: str = "compat_tests.nemesis.member_process"
    stop_watching: threading.Event = attrs.field(factory=threading.Event)
    watcher: GroupWatcher = attrs.field(init=False)

    def make_clients(self) -> list[Client]:
        self.watcher = GroupWatcher("watcher", self, group=self.group())
        observer = Observer("observer", self, groups=(self.group(),))
        return [*super().make_clients(), self.watcher, observer]

    def summary(self) -> str:
        return f"{super().summary()}, {len(self.watcher.history.group_views)} views"

    def wait_done(self, ends: dict[Place, int]) -> None:
        """Wait until the group has committed the ends."""

        def has_committed() -> bool:
            committed = self.read_group(self.group())
            return all(committed.get(place, 0) >= end for place, end in ends.items())

        eventually(
            lambda: has_committed() or self.errors(),
            lambda: f"the group has committed {ends}: {self._last_view()}",
            RECOVERY_SECONDS,
        )

    def wait_settled(self) -> None:
        partitions = frozenset((self.topic, number) for number in range(self.partitions))
        self._wait_view(
            lambda view: len(view.members) == MEMBERS and view.is_settled(partitions),
            "the group is settled",
        )

    def wait_empty(self) -> None:
        self._wait_view(lambda view: view.state == "Empty", "the group is empty")
        self.stop_watching.set()

    def _wait_view(self, is_expected: Callable[[GroupView], bool], what: str) -> None:
        """Wait for a new description of the group that is as expected (invariant 70)."""
        count = len(self.watcher.history.group_views)

        def has_view() -> bool:
            return any(map(is_expected, self.watcher.history.group_views[count:]))

        eventually(
            lambda: has_view() or self.errors(),
            lambda: f"{what}: {self._last_view()}; errors: {self.errors()}",
            RECOVERY_SECONDS,
        )

    def _last_view(self) -> GroupView | None:
        views = self.watcher.history.group_views
        return views[-1] if views else None
