"""OffsetCommit, OffsetFetch and OffsetDelete in all their versions.

The codes are those that Apache Kafka 4.3.1 answered to the same requests.
"""

from typing import Any

import attrs
import pytest
import trio.testing

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.errors import RecordListTooLarge
from kwire.group.shard import GroupShard
from kwire.handlers import offset_delete
from kwire.records import build
from kwire.records.build import New
from kwire.replica.coordinator_log import CoordinatorLog
from kwire.types import CONSUMER_OFFSETS
from tests.support.handlers.group_node import GroupNode, group_node, make_again, topic_id


@pytest.mark.parametrize("version", range(2, 11))
async def test_committed_offset_is_fetched(version: int) -> None:
    async with group_node() as node:
        t = topic_id("t") if version == 10 else "t"
        nope = b"x" * 16 if version == 10 else "nope"
        codes = await node.commit({nope: {0: 1}, t: {0: 10, 99: 5}}, version=version)
        assert codes == {nope: {0: 100 if version == 10 else 3}, t: {0: 0, 99: 3}}
        assert await node.fetch({"t": [0, 2]}) == {"t": {0: 10, 2: -1}}
        assert await node.fetch(None) == {"t": {0: 10}}


@pytest.mark.parametrize(
    ("epoch", "metadata", "returned"),
    [(3, "m\u00e9ta \U0001f600", "m\u00e9ta \U0001f600"), (-1, None, ""), (0, "", "")],
)
async def test_metadata_and_leader_epoch_outlive_a_change_of_the_coordinator(
    epoch: int, metadata: str | None, returned: str
) -> None:
    """Invariant 73: Kafka keeps no metadata as an empty text."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    place = topic.OffsetCommitRequestPartition(
        partition_index=2,
        committed_offset=10,
        committed_leader_epoch=epoch,
        committed_metadata=metadata,
    )
    request = OffsetCommitRequest(
        group_id="g", member_id="", topics=[topic(name="t", partitions=[place])]
    )
    old = OffsetFetchRequest.OffsetFetchRequestTopic
    fetch = OffsetFetchRequest(group_id="g", topics=[old(name="t", partition_indexes=[2])])
    async with group_node() as node:
        assert (await node.ask(request, 9)).topics[0].partitions[0].error_code == 0
        for _ in range(2):
            (spot,) = (await node.ask(fetch, 7)).topics[0].partitions
            assert (spot.committed_offset, spot.error_code) == (10, 0)
            assert (spot.committed_leader_epoch, spot.metadata) == (epoch, returned)
            await load_again(node)


async def test_coordinator_writes_batches_that_fit_into_a_segment() -> None:
    """Offsets that expire are written in several batches, as large as the topic allows."""
    async with group_node() as node:
        await node.commit({"t": {0: 1}})
        replicas = node.broker.replicas
        partition = next(p for p in replicas.partitions if p.topic == CONSUMER_OFFSETS)
        log = CoordinatorLog(replicas, node.broker.services.clock)
        record = New(b"k", bytes(100))
        batch = build.batch([record], timestamp_ms=0)
        partition.configure(attrs.evolve(partition.config, segment_bytes=len(batch)))
        assert log.max_batch_bytes(partition.log.partition) == len(batch)
        end_offset = partition.log.end_offset
        assert log.append(partition.log.partition, batch) == end_offset + 1
        with pytest.raises(RecordListTooLarge):
            log.append(partition.log.partition, build.batch([record, record], timestamp_ms=0))


async def load_again(node: GroupNode) -> None:
    """Let the node lose the partitions of groups, and lead them again."""
    service = node.groups.service
    indexes = list(service.active)
    service.resign_all()
    for index in indexes:
        service.on_elected(index, 7)
    await trio.testing.wait_all_tasks_blocked()
    assert set(service.active) == set(indexes)


async def test_offsets_are_fetched_by_topic_id() -> None:
    async with group_node() as node:
        await node.commit({"t": {0: 10, 1: 11}, "u": {0: 5}})
        t, other = topic_id("t"), b"y" * 16
        offsets = await node.fetch({t: [0, 1, 5], other: [0]}, version=10)
        assert offsets == {t: {0: 10, 1: 11, 5: -1}, other: {0: -100}}
        assert await node.fetch(None, version=10) == {t: {0: 10, 1: 11}, topic_id("u"): {0: 5}}


async def test_rejected_topics_follow_the_others_in_a_fetch() -> None:
    async with group_node() as node:
        await node.commit({"t": {0: 10}})
        other, t = b"y" * 16, topic_id("t")
        offsets = await node.fetch({other: [0], t: [0]}, version=10)
        assert list(offsets.items()) == [(t, {0: 10}), (other, {0: -100})]


async def test_fetch_of_all_topics_omits_those_without_an_id() -> None:
    """The topic was deleted, and the coordinator does not know so yet."""
    async with group_node() as node:
        await node.commit({"t": {0: 10}, "u": {0: 5}})
        index = node.groups.partition_of("g")
        node.groups.service._shards[index].machine.topic_ids = lambda: None
        await node.broker.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
        assert await node.fetch(None, version=10) == {topic_id("u"): {0: 5}}
        assert await node.fetch(None, version=9) == {"t": {0: 10}, "u": {0: 5}}


@pytest.mark.parametrize("version", range(1, 8))
async def test_old_fetch_has_one_group(version: int) -> None:
    async with group_node() as node:
        await node.commit({"t": {0: 10}})
        old = OffsetFetchRequest.OffsetFetchRequestTopic
        request = OffsetFetchRequest(
            group_id="g", topics=[old(name="t", partition_indexes=[0]), old(name="nope")]
        )
        reply = await node.ask(request, version)
        assert [t.name for t in reply.topics] == ["t", "nope"]
        (spot,) = reply.topics[0].partitions
        assert (spot.committed_offset, spot.metadata, spot.error_code) == (10, "m", 0)
        node.groups.service.resign_all()
        reply = await node.ask(request, version)
        if version == 1:
            assert reply.topics[0].partitions[0].error_code == 16
        else:
            assert reply.error_code == 16


async def test_unknown_group_refuses_members_and_has_no_offsets() -> None:
    async with group_node() as node:
        member: dict[str, Any] = {"generation_id_or_member_epoch": 5, "member_id": "m"}
        assert await node.commit({"t": {0: 1}}, version=9, **member) == {"t": {0: 69}}
        assert await node.commit({"t": {0: 1}}, version=8, **member) == {"t": {0: 22}}
        assert await node.fetch(None, "none") == {}
        assert await node.fetch({"t": [0]}, "none") == {"t": {0: -1}}


async def test_group_without_a_name_takes_offsets() -> None:
    """Kafka accepts commits without a member for it."""
    async with group_node() as node:
        assert await node.commit({"t": {0: 3}}, "") == {"t": {0: 0}}
        assert await node.fetch(None, "") == {"t": {0: 3}}
        assert await node.commit({}, "g") == {}


async def test_commit_writes_nothing_if_all_metadata_is_too_long() -> None:
    """A batch without records would end before it begins; followers could not append it."""
    async with group_node({"offset.metadata.max.bytes": "0"}) as node:
        await node.broker.create("wide", partitions=300)
        shape = OffsetCommitRequest.OffsetCommitRequestTopic
        spots = [
            shape.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=1, committed_metadata="long"
            )
            for index in range(300)
        ]
        request = OffsetCommitRequest(
            group_id="g", member_id="", topics=[shape(name="wide", partitions=spots)]
        )
        (answer,) = (await node.ask(request, 9)).topics
        assert {partition.error_code for partition in answer.partitions} == {12}
        files = node.broker.disk.files.items()
        logs = [inode for path, inode in files if path.endswith(".log")]
        assert not any(inode.data for inode in logs)


async def test_too_long_metadata_fails_alone() -> None:
    async with group_node({"offset.metadata.max.bytes": "0"}) as node:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        spots = [
            topic.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=1, committed_metadata=text
            )
            for index, text in enumerate(["x", "", None])
        ]
        request = OffsetCommitRequest(
            group_id="g", member_id="", topics=[topic(name="t", partitions=spots)]
        )
        reply = await node.ask(request, 9)
        assert [p.error_code for p in reply.topics[0].partitions] == [12, 0, 0]


async def test_partition_that_is_named_twice_has_both_results() -> None:
    """Apache Kafka 4.3.1 has the same results; it lists missing partitions first."""
    async with group_node({"offset.metadata.max.bytes": "0"}) as node:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic

        def topic_of(
            name: str, *offsets: tuple[int, str]
        ) -> OffsetCommitRequest.OffsetCommitRequestTopic:
            return topic(
                name=name,
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=1, committed_metadata=metadata
                    )
                    for index, metadata in offsets
                ],
            )

        topics = [
            topic_of("t", (0, "x"), (0, ""), (7, ""), (1, ""), (1, "x")),
            topic_of("none", (0, "")),
            topic_of("t", (0, ""), (1, "x")),
        ]
        request = OffsetCommitRequest(group_id="g", member_id="", topics=topics)
        reply = await node.ask(request, 9)
        results = [[(p.partition_index, p.error_code) for p in t.partitions] for t in reply.topics]
        assert results == [
            [(0, 12), (0, 0), (7, 3), (1, 0), (1, 12)],
            [(0, 3)],
            [(0, 0), (1, 12)],
        ]


async def test_offsets_of_a_deleted_topic_are_removed(autojump_clock: object) -> None:
    """Invariants 40 and 73: a later topic of the same name has no offsets."""
    async with group_node() as node:
        await node.commit({"t": {0: 10}, "u": {0: 5}})
        await make_again(node, "t")
        node.groups.on_topics_deleted({topic_id("t"): "t"})
        await node.commit({"t": {0: 1}}, "other")
        await trio.sleep(1)
        assert topics_by_group(node) == {"g": ["u"], "other": ["t"]}
        assert await node.fetch(None) == {"u": {0: 5}}
        assert await node.fetch(None, "other") == {"t": {0: 1}}


def topics_by_group(node: GroupNode) -> dict[str, list[str]]:
    """Return the topics that groups have offsets of, also those that answers leave out."""
    shards = [shard.machine.offsets for shard in node.groups.service._shards.values()]
    return {group: list(offsets.of(group)) for offsets in shards for group in offsets.groups()}


async def test_offset_is_not_returned_for_a_recreated_topic() -> None:
    """Invariant 40: before offsets are removed, and after a commit for the later topic."""
    async with group_node() as node:
        await node.commit({"t": {0: 10, 1: 11}, "u": {0: 5}})
        await make_again(node, "t")
        assert topics_by_group(node) == {"g": ["t", "u"]}
        assert await node.fetch({"t": [0, 1]}) == {"t": {0: -1, 1: -1}}
        assert await node.fetch({b"t" * 16: [0]}, version=10) == {b"t" * 16: {0: -1}}
        assert await node.fetch(None) == {"u": {0: 5}}
        assert await node.commit({"t": {0: 2}}) == {"t": {0: 0}}
        assert await node.fetch(None) == {"t": {0: 2}, "u": {0: 5}}


async def test_offsets_of_topics_deleted_before_a_crash_are_removed_after_loading(
    autojump_clock: object,
) -> None:
    """Invariant 73: the coordinator was killed before it removed them."""
    async with group_node() as node:
        await node.commit({"t": {0: 10}, "u": {0: 5}})
        await node.commit({"u": {0: 7}}, "other")
        await make_again(node, "t")
        service = node.groups.service
        index = node.groups.partition_of("g")
        service.on_resigned(index)
        service.on_elected(index, 1)
        while service.loading:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked()
        assert topics_by_group(node) == {"g": ["u"], "other": ["u"]}
        # The removal is durable: a coordinator that does not know the topics loads the same.
        service.on_resigned(index)
        make = service.make

        def unaware(number: int) -> GroupShard:
            machine = make(number)
            machine.topic_ids = lambda: None
            return machine

        service.make = unaware
        service.on_elected(index, 2)
        while service.loading:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert await node.fetch(None) == {"u": {0: 5}}


async def test_offsets_are_kept_until_the_metadata_is_current() -> None:
    """Invariants 11 and 73: until then offsets are kept and answered, afterwards checked."""
    async with group_node() as node:
        await node.commit({"t": {0: 10}, "u": {0: 5}})
        await make_again(node, "t")
        index = node.groups.partition_of("g")
        current = node.groups.service._shards[index].machine.topic_ids
        node.groups.service._shards[index].machine.topic_ids = lambda: None
        node.groups.on_metadata_caught_up()
        await trio.testing.wait_all_tasks_blocked()
        assert await node.fetch(None) == {"t": {0: 10}, "u": {0: 5}}
        node.groups.service._shards[index].machine.topic_ids = current
        node.groups.on_metadata_caught_up()
        await trio.testing.wait_all_tasks_blocked()
        assert topics_by_group(node) == {"g": ["u"]}


async def delete(node: GroupNode, group: str, topic: str, partition: int) -> tuple[int, list[int]]:
    shape = OffsetDeleteRequest.OffsetDeleteRequestTopic
    spot = shape.OffsetDeleteRequestPartition(partition_index=partition)
    reply = await node.ask(
        OffsetDeleteRequest(group_id=group, topics=[shape(name=topic, partitions=[spot])])
    )
    return reply.error_code, [p.error_code for t in reply.topics for p in t.partitions]


async def test_offset_delete_answers_each_partition_if_its_topic_is_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition that is named twice has one answer, also when it is there the first time only."""
    async with group_node() as node:
        await node.commit({"t": {0: 10, 1: 11}})

        class DeletingSlices:
            count = 0

            async def pause(self) -> None:
                self.count += 1
                if self.count == 2:
                    await node.broker.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))

        monkeypatch.setattr(offset_delete, "Slices", DeletingSlices)
        shape = OffsetDeleteRequest.OffsetDeleteRequestTopic
        spots = [shape.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1, 0)]
        topics = [shape(name="t", partitions=spots)]
        (answer,) = (await node.ask(OffsetDeleteRequest(group_id="g", topics=topics))).topics
        assert [(p.partition_index, p.error_code) for p in answer.partitions] == [
            (0, 0),
            (1, 0),
            (0, 0),
        ]


async def test_offset_delete_returns_kafkas_codes() -> None:
    async with group_node() as node:
        await node.commit({"t": {0: 10, 1: 11}})
        assert await delete(node, "g", "t", 0) == (0, [0])
        assert await delete(node, "g", "t", 99) == (0, [3])
        assert await delete(node, "g", "nope", 0) == (0, [3])
        assert await delete(node, "none", "t", 0) == (69, [])
        assert await delete(node, "none", "nope", 0) == (69, [])
        assert await delete(node, "", "t", 0) == (24, [])
        assert await node.fetch(None) == {"t": {1: 11}}
