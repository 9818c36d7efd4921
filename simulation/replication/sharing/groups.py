"""The share group (KIP-932) of some runs: its topic, settings, members, and the end of the run.

A third of the runs of the newest release have share members, so that the others stay as fast as
they are. Runs with the stage "sharing" have no other members.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

import attrs
import trio

from kwire import errors
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest
from kwire.configs.resource_types import GROUP as GROUP_RESOURCE
from kwire.coordinator.partitioning import partition_for
from kwire.types import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from simulation.replication.checks import TOPIC
from simulation.replication.clients import SimClient, World
from simulation.replication.history import demand
from simulation.replication.settings import GROUP_PARTITIONS
from simulation.replication.sharing.book import GROUP, ShareBook
from simulation.replication.sharing.members import ShareMember
from simulation.replication.topics import creatable, create

SHARING: Final = "sharing"
"""The name of runs in a small cluster whose clients are producers and share members."""
MEMBERS: Final = 3
STATE_PARTITIONS: Final = 2
_DRAWN: Final = 1 / 3
"""The part of the runs of the newest release that have share members."""


def has_share_group(seed: int) -> bool:
    """Return whether a run of the newest release has share members."""
    return Random(f"{seed} share group").random() < _DRAWN


async def prepare_share_group(client: "ShareWatcher") -> None:
    """Create the topic of the group's state, and let the group begin at the first record."""
    await create(client, [creatable(client, SHARE_GROUP_STATE, STATE_PARTITIONS, "delete")])
    settings = {"share.auto.offset.reset": "earliest"}
    if client.book.is_committed:
        settings["share.isolation.level"] = "read_committed"
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=GROUP_RESOURCE,
                resource_name=GROUP,
                configs=[
                    resource.AlterableConfig(name=name, config_operation=0, value=value)
                    for name, value in settings.items()
                ],
            )
        ],
        validate_only=False,
    )
    answer = await client.call(client.any_broker(), request)
    demand(answer is not None and not answer.responses[0].error_code, f"settings: {answer}")
    machines = [m for m in client.world.machines.values() if m.config.is_broker]
    while not all(  # noqa: ASYNC110
        m.image is not None and dict(m.image.config(GROUP_RESOURCE, GROUP)) == settings
        for m in machines
    ):
        await trio.sleep(0.1)


@attrs.define(eq=False)
class ShareWatcher(SimClient):
    """An administrator that reads the start offsets of the group, which must not go back."""

    book: ShareBook

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1.0))
            await self.read_offsets()

    async def read_offsets(self) -> dict[int, tuple[int, int]]:
        """Return the start offsets and lags by partition; those that nobody tells are missing."""
        least = dict(self.book.starts)
        group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        request = DescribeShareGroupOffsetsRequest(groups=[group(group_id=GROUP, topics=None)])
        answer = await self.call(self._coordinator(), request, version=1)
        offsets: dict[int, tuple[int, int]] = {}
        if answer is None or answer.groups[0].error_code != errors.NONE:
            return offsets
        for topic in answer.groups[0].topics:
            for each in topic.partitions:
                if each.error_code == errors.NONE and each.start_offset >= 0:
                    index = each.partition_index
                    self.book.on_start(index, each.start_offset, least.get(index, 0))
                    offsets[index] = each.start_offset, each.lag
        return offsets

    async def is_described(self, members: Sequence[ShareMember]) -> bool:
        """Return whether the coordinator reports these members, stable, with their partitions."""
        request = ShareGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False)
        answer = await self.call(self._coordinator(), request, version=1)
        if answer is None or answer.groups[0].error_code != errors.NONE:
            return False
        (group,) = answer.groups
        reported = {
            member.member_id: (
                member.member_epoch,
                {p for t in member.assignment.topic_partitions for p in t.partitions},
            )
            for member in group.members
        }
        own = {m.member_id: (m.epoch, set(m.target)) for m in members}
        return group.group_state == "Stable" and reported == own

    def _coordinator(self) -> int | None:
        return self.leader_of(CONSUMER_OFFSETS, partition_for(GROUP, GROUP_PARTITIONS))


def share_clients(seed: int, first: int, world: World) -> list[SimClient]:
    """Return the members of the share group and their watcher, the clients from ``first`` on."""
    is_committed = Random(f"{seed} share group isolation").random() < 0.5
    book = ShareBook(world, is_committed=is_committed)

    def basis(place: int) -> tuple[int, World, Random]:
        number = -1 - first - place
        return number, world, Random(f"{seed} client {number}")

    members = [ShareMember(*basis(1 + place), book=book) for place in range(MEMBERS)]
    return [ShareWatcher(*basis(0), book=book), *members]


async def check_share_group(world: World, clients: Sequence[SimClient], deadline: float) -> None:
    """Let the group come to the ends, without producers, and check what it got."""
    members = [client for client in clients if isinstance(client, ShareMember)]
    watchers = [client for client in clients if isinstance(client, ShareWatcher)]
    for watcher in watchers:
        for member in members:
            member.is_ending = True
        world.is_quiet = True
        while True:
            ends = _ends(world)
            offsets = await watcher.read_offsets()
            waiting = {
                index: (ends.get(index), offsets.get(index))
                for index in range(world.partition_count)
                if not _is_complete(watcher.book, index, ends, offsets)
            }
            if not waiting and await watcher.is_described(members):
                break
            state = waiting or [(member.epoch, member.target) for member in members]
            demand(trio.current_time() < deadline, f"the share group does not end: {state}")
            await trio.sleep(0.5)
        partitions = {partition for member in members for partition in member.target}
        demand(partitions == set(range(world.partition_count)), f"only {partitions} are assigned")
        watcher.book.check_end(ends)
        world.is_quiet = False


def _ends(world: World) -> dict[int, int]:
    """Return the high watermarks of the partitions that have leaders."""
    partitions = [
        partition
        for machine in world.machines.values()
        for index in range(world.partition_count)
        if (partition := machine.partition(TOPIC, index)) is not None
        and partition.leader is not None
    ]
    return {partition.partition: partition.high_watermark for partition in partitions}


def _is_complete(
    book: ShareBook, index: int, ends: dict[int, int], offsets: dict[int, tuple[int, int]]
) -> bool:
    """Return whether the group has passed the end of a partition.

    The stored start offset moves with the next acknowledgement only, so the lag counts too. A
    deletion of records moves neither.
    """
    if index not in ends or not ends[index]:
        return index in ends
    start, lag = offsets.get(index, (-1, -1))
    is_deleted = book.world.history.delete_end[index] > start
    is_passed = start >= ends[index] or lag == 0
    return is_passed or (is_deleted and book.is_complete(index, ends[index]))
