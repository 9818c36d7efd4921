"""Requests that name a thousand groups: other tasks run before all groups are handled."""

from itertools import count
from typing import Any

import pytest
import trio

from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.drive import Slices
from tests.support.handlers.group_node import group_node

GROUPS = [f"g{number}" for number in range(1000)]
RequestedGroup = OffsetFetchRequest.OffsetFetchRequestGroup


@pytest.mark.parametrize(
    ("module", "request_", "answers"),
    [
        ("handlers.describe_groups", DescribeGroupsRequest(groups=GROUPS), "groups"),
        (
            "handlers.offset_fetch",
            OffsetFetchRequest(
                groups=[RequestedGroup(group_id=group, topics=None) for group in GROUPS]
            ),
            "groups",
        ),
        (
            "handlers.find_coordinator",
            FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS),
            "coordinators",
        ),
        ("group.deletion", DeleteGroupsRequest(groups_names=GROUPS), "results"),
    ],
    ids=["describe", "fetch-offsets", "find", "delete"],
)
async def test_other_tasks_run_during_requests_for_many_groups(
    module: str, request_: Any, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading of the clock takes a millisecond, so a slice ends after two groups."""
    ticks = count()
    async with group_node() as node:
        monkeypatch.setattr(
            f"kwire.{module}.Slices", lambda: Slices(now=lambda: next(ticks) / 1000)
        )
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            reply = await node.ask(request_)
            nursery.cancel_scope.cancel()
        assert len(getattr(reply, answers)) == len(GROUPS)
        assert turns > 300
