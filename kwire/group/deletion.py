"""The deletion of offsets, and of groups.

A share group's persisted state is deleted first, so that a deleted group leaves no state behind.
"""

from collections.abc import Sequence
from functools import partial

from kwire.codec.messages.delete_groups import DeleteGroupsResponse
from kwire.codec.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kwire.coordinator.decision import Decision, Moment
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.group import requests
from kwire.group.coordinator import GroupCoordinator, check_id
from kwire.group.offsets import GroupChange
from kwire.group.shard import GroupShard

Deletion = DeleteGroupsResponse.DeletableGroupResult


async def delete_groups(groups: GroupCoordinator, group_ids: Sequence[str]) -> list[Deletion]:
    """Delete groups and return one result per group."""
    deletions = []
    slices = Slices()
    for group_id in dict.fromkeys(group_ids):
        deletions.append(await _delete_group(groups, group_id))
        await slices.pause()
    return deletions


async def _delete_group(groups: GroupCoordinator, group_id: str) -> Deletion:
    """Delete one group; many tombstones of its offsets are encoded in slices before that."""
    service, index = groups.service, groups.partition_of(group_id)
    try:
        if await service.read(index, partial(_is_share_group, group_id)):
            await groups.share.delete_state(group_id)
        if not await service.call(index, partial(_delete, group_id)):
            from kwire.group.large_requests import LargeDeletion

            deletion = LargeDeletion(group_id, service.draft(GroupChange(group_id)))
            while not await service.call(index, deletion.decide):
                slices = Slices()
                for _ in deletion.encode():
                    await slices.pause()
    except KafkaError as error:
        return Deletion(group_id=group_id, error_code=error.code)
    return Deletion(group_id=group_id)


async def delete_offsets(
    groups: GroupCoordinator, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Delete offsets in one decision; many tombstones are encoded in slices before it."""
    check_id(request.group_id)
    service, index = groups.service, groups.partition_of(request.group_id)
    if not requests.is_large(request):
        reply: OffsetDeleteResponse = await service.call(
            index, lambda shard, *when: requests.delete_offsets(shard, request, *when)
        )
        return reply
    from kwire.group.large_requests import LargeOffsetDeletion

    is_written = False
    while not is_written:
        deletion = LargeOffsetDeletion(request, service.draft(GroupChange(request.group_id)))
        await service.call(index, deletion.check)
        slices = Slices()
        for _ in deletion.encode():
            await slices.pause()
        is_written = await service.call(index, deletion.decide)
    return deletion.reply


def _is_share_group(group_id: str, shard: GroupShard) -> bool:
    return shard.share_group(group_id) is not None


def _delete(group_id: str, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
    return requests.delete_group(shard, group_id, moment, ticket)
