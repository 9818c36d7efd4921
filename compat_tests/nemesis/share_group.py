"""A run with a share group (KIP-932)."""

from __future__ import annotations

from typing import Final

import attrs

from compat_tests.durability.observations import Place
from compat_tests.durability.recording import RECOVERY_SECONDS, Client
from compat_tests.durability.share_history import DELIVERY_LIMIT
from compat_tests.harness.wait import eventually
from compat_tests.nemesis.group_clients import MEMBERS, SESSION_MS, GroupRun, ask
from compat_tests.share.members import configure_group
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest

SETTINGS: Final = {
    "group.share.session.timeout.ms": str(SESSION_MS),
    "group.share.min.session.timeout.ms": str(SESSION_MS),
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.min.record.lock.duration.ms": "5000",
    "group.share.delivery.count.limit": str(DELIVERY_LIMIT),
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "3",
}
"""The settings of the nodes."""


@attrs.define
class ShareGroupRun(GroupRun):
    """The clients of a run with a share group."""

    program: str = "compat_tests.nemesis.share_member_process"

    def make_clients(self) -> list[Client]:
        configure_group(
            self.address.split(",")[0], self.group(), share_auto_offset_reset="earliest"
        )
        return super().make_clients()

    def wait_done(self, ends: dict[Place, int]) -> None:
        """Wait until all records before the ends are accepted.

        The stored start offset moves with the next acknowledgement only, so the lag counts too.
        """
        waiting = set(ends)

        def is_done() -> bool:
            for place, (start, lag) in self._offsets().items():
                if start >= ends[place] or lag == 0:
                    waiting.discard(place)
            return not waiting

        eventually(
            lambda: is_done() or self.errors(),
            lambda: f"the share group has {ends} behind it: {self._offsets()}",
            RECOVERY_SECONDS,
        )

    def _offsets(self) -> dict[Place, tuple[int, int]]:
        """Return the start offsets and lags; empty while no coordinator answers."""
        group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        request = DescribeShareGroupOffsetsRequest(
            groups=[group(group_id=self.group(), topics=None)]
        )
        for address in self.address.split(","):
            answer = ask(address, request, 1)
            if answer is not None and not answer.groups[0].error_code:
                return {
                    (topic.topic_name, each.partition_index): (each.start_offset, each.lag)
                    for topic in answer.groups[0].topics
                    for each in topic.partitions
                    if not each.error_code
                }
        return {}

    def wait_settled(self) -> None:
        self._wait_members("Stable", MEMBERS)

    def wait_empty(self) -> None:
        self._wait_members("Empty", 0)

    def _wait_members(self, state: str, count: int) -> None:
        eventually(
            lambda: self._members() == (state, count) or self.errors(),
            lambda: f"the group has {count} members: {self._members()}",
            RECOVERY_SECONDS,
        )

    def _members(self) -> tuple[str, int] | None:
        """Return the state of the group and the number of its members."""
        request = ShareGroupDescribeRequest(
            group_ids=[self.group()], include_authorized_operations=False
        )
        for address in self.address.split(","):
            answer = ask(address, request, 1)
            if answer is not None and not answer.groups[0].error_code:
                return answer.groups[0].group_state, len(answer.groups[0].members)
        return None
