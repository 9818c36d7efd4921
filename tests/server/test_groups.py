"""Groups of a whole node whose topics grow or are deleted, and that restarts."""

from pathlib import Path
from typing import Any

import pytest

from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.group.coordinator import GroupCoordinator
from kwire.node.server import Server
from kwire.testing.wire import TrioWireClient
from kwire.types import CONSUMER_OFFSETS
from tests.support.server.nodes import create, running

GROUPS = [f"group-{number}" for number in range(12)]


async def commit(server: Server, group: str, offset: int) -> int:
    """Commit an offset of partition t-0; return the error code."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    spot = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[topic(name="t", partitions=[spot])]
    )
    async with await TrioWireClient.connect(*server.address) as client:
        reply = await client.call(request, 9)
    code: int = reply.topics[0].partitions[0].error_code
    return code


async def committed_offsets(server: Server) -> dict[str, int]:
    """Return the committed offset of partition t-0 by group; -1 if there is none."""
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = shape.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[shape(group_id=g, topics=[topic]) for g in GROUPS])
    async with await TrioWireClient.connect(*server.address) as client:
        reply = await client.call(request, 9)
    assert not any(group.error_code for group in reply.groups)
    return {g.group_id: g.topics[0].partitions[0].committed_offset for g in reply.groups}


async def commit_all(server: Server) -> None:
    assert await create(server, CONSUMER_OFFSETS, 3) == 0
    assert await create(server, "t") == 0
    for number, group in enumerate(GROUPS):
        assert await commit(server, group, number) == 0


async def test_growing_the_offsets_topic_moves_no_group_while_the_node_runs(tmp_path: Path) -> None:
    """Measured: Apache Kafka 4.3.1 does the same."""
    async with running(tmp_path) as server:
        await commit_all(server)
        creation = CreatePartitionsRequest.CreatePartitionsTopic
        request = CreatePartitionsRequest(
            topics=[creation(name=CONSUMER_OFFSETS, count=7, assignments=None)],
            timeout_ms=10_000,
            validate_only=False,
        )
        async with await TrioWireClient.connect(*server.address) as client:
            assert (await client.call(request, 3)).results[0].error_code == 0
        assert await committed_offsets(server) == {group: n for n, group in enumerate(GROUPS)}
        assert await commit(server, "group-3", 33) == 0
        assert (await committed_offsets(server))["group-3"] == 33


async def test_offsets_of_a_topic_do_not_outlive_a_kill_after_its_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 40 and 73: the node ends before it removes them, and the next start does."""
    async with running(tmp_path) as server:
        await commit_all(server)
        with monkeypatch.context() as patch:
            patch.setattr(GroupCoordinator, "on_topics_deleted", lambda *_: None)
            async with await TrioWireClient.connect(*server.address) as client:
                deleted = DeleteTopicsRequest.DeleteTopicState
                request = DeleteTopicsRequest(topics=[deleted(name="t")], timeout_ms=10_000)
                assert (await client.call(request, 6)).responses[0].error_code == 0
    async with running(tmp_path) as server:
        assert await create(server, "t") == 0
        assert set((await committed_offsets(server)).values()) == {-1}
        assert await commit(server, "group-1", 3) == 0
        assert server.broker is not None
        shards = [
            shard.machine for shard in server.broker.groups.coordinator().service._shards.values()
        ]
        assert sum(shard.offsets.count for shard in shards) == 1
    async with running(tmp_path) as server:
        assert {g: n for g, n in (await committed_offsets(server)).items() if n >= 0} == {
            "group-1": 3
        }


async def test_offsets_of_kept_topics_survive_every_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 11: metadata that is still being read does not make topics look deleted.

    While partitions of the offsets topic are taken up, no topic may be looked for.
    """
    async with running(tmp_path) as server:
        await commit_all(server)
    topics: list[object] = []
    on_role_changed = GroupCoordinator.on_role_changed

    def noting(groups: GroupCoordinator, partition: Any) -> None:
        topics.append(groups.service.make(0).topic_ids())
        on_role_changed(groups, partition)

    monkeypatch.setattr(GroupCoordinator, "on_role_changed", noting)
    for _ in range(2):
        topics.clear()
        async with running(tmp_path) as server:
            assert topics
            assert set(topics) == {None}
            assert await committed_offsets(server) == {group: n for n, group in enumerate(GROUPS)}
            assert server.broker is not None
            assert "t" in (server.broker.groups.coordinator().service.make(0).topic_ids() or {})
