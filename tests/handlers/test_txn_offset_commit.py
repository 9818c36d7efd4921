"""TxnOffsetCommit: pending offsets, fencing, and the markers that complete or drop them."""

from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.replica.partition import Partition
from kwire.types import CONSUMER_OFFSETS, TopicPartition
from tests.support.handlers.group_node import GroupNode, group_node, make_again, topic_id
from tests.support.handlers.transactions import ScriptedVerifier, markers_request

RequestTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup


def verifier_of(node: GroupNode) -> ScriptedVerifier:
    verifier = node.broker.parts.verifier
    assert isinstance(verifier, ScriptedVerifier)
    verifier.default = 0
    return verifier


def groups_partition(node: GroupNode, group: str = "g") -> Partition:
    index = node.groups.partition_of(group)
    return node.broker.replicas.partitions.get(CONSUMER_OFFSETS, index)


async def commit(
    node: GroupNode,
    offset: int = 7,
    *,
    producer: int = 5,
    epoch: int = 0,
    version: int = 5,
    topics: dict[str, list[int]] | None = None,
    **fields: Any,
) -> dict[str, list[int]]:
    """Commit an offset for partitions in a transaction; return their error codes by topic."""
    chosen: dict[str, Any] = {
        "transactional_id": "tx",
        "group_id": "g",
        "producer_id": producer,
        "producer_epoch": epoch,
        "topics": [
            RequestTopic(
                name=name,
                topic_id=topic_id(name),
                partitions=[
                    RequestTopic.TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata="m"
                    )
                    for index in indexes
                ],
            )
            for name, indexes in (topics or {"t": [0]}).items()
        ],
    }
    request = TxnOffsetCommitRequest(**(chosen | fields))
    reply = await node.ask(request, version)
    return {
        topic.name: [partition.error_code for partition in topic.partitions]
        for topic in reply.topics
    }


async def end(node: GroupNode, *, is_commit: bool, **marker: Any) -> int:
    """Write the marker to the group's partition; return its error code."""
    index = node.groups.partition_of("g")
    request = markers_request((CONSUMER_OFFSETS, [index]), commit=is_commit, **marker)
    reply = await node.ask(request, 2)
    code: int = reply.markers[0].topics[0].partitions[0].error_code
    return code


async def fetch(node: GroupNode, *, require_stable: bool = False) -> tuple[int, int]:
    """Return the group's offset of t-0 and its error code."""
    topic = FetchGroup.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[FetchGroup(group_id="g", topics=[topic])], require_stable=require_stable
    )
    reply = await node.ask(request, 8)
    (partition,) = reply.groups[0].topics[0].partitions
    return partition.committed_offset, partition.error_code


UNSTABLE = (-1, errors.UnstableOffsetCommit.code)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("is_commit", [True, False])
async def test_offsets_take_effect_when_the_transaction_commits(
    version: int, is_commit: bool
) -> None:
    """Invariants 6 and 62."""
    async with group_node() as node:
        verifier_of(node)
        await node.commit({"t": {0: 3}})
        assert await commit(node, 7, version=version) == {"t": [0]}
        assert await fetch(node) == (3, 0)
        assert await fetch(node, require_stable=True) == UNSTABLE
        assert await end(node, is_commit=is_commit) == 0
        offset = 7 if is_commit else 3
        assert await fetch(node) == await fetch(node, require_stable=True) == (offset, 0)


async def test_pending_offsets_outlive_a_change_of_the_coordinator() -> None:
    """Invariants 62 and 72: the new coordinator completes them with the marker."""
    async with group_node() as node:
        verifier_of(node)
        await commit(node, 7)
        await load_again(node)
        assert await fetch(node, require_stable=True) == UNSTABLE
        assert await end(node, is_commit=True) == 0
        await load_again(node)
        assert await fetch(node, require_stable=True) == (7, 0)


async def load_again(node: GroupNode) -> None:
    partition = groups_partition(node)
    service = node.groups.service
    service.on_resigned(partition.partition)
    service.on_elected(partition.partition, partition.leader_epoch + 1)
    await trio.testing.wait_all_tasks_blocked()
    assert partition.partition in service.active


async def test_marker_is_refused_and_repeated_while_the_coordinator_loads() -> None:
    """Invariants 59 and 62: it is not lost."""
    async with group_node() as node:
        verifier_of(node)
        await commit(node, 7)
        partition = groups_partition(node)
        service = node.groups.service
        service.on_resigned(partition.partition)
        service.on_elected(partition.partition, partition.leader_epoch + 1)
        end_offset = partition.log.end_offset
        assert await end(node, is_commit=True) == errors.NotLeaderOrFollower.code
        assert partition.log.end_offset == end_offset
        await trio.testing.wait_all_tasks_blocked()
        assert await end(node, is_commit=True) == 0
        assert await fetch(node) == (7, 0)


async def test_offset_is_fetched_only_when_the_marker_is_replicated() -> None:
    """Invariant 62."""
    async with group_node(topics=False) as node:
        verifier_of(node)
        await node.broker.create(CONSUMER_OFFSETS, partitions=5, replicas=(1, 2))
        partition = groups_partition(node)

        def replicate() -> None:
            node.broker.replicas.on_follower_fetched(
                partition, 2, offset=partition.log.end_offset, log_start=0, broker_epoch=-1
            )

        replicate()
        answers: list[object] = []
        async with trio.open_nursery() as nursery:

            async def ask_all() -> None:
                assert await commit(node, 7) == {"t": [0]}
                nursery.start_soon(end_and_note)
                await trio.testing.wait_all_tasks_blocked()
                answers.append(await fetch(node, require_stable=True))

            async def end_and_note() -> None:
                answers.append(await end(node, is_commit=True))

            nursery.start_soon(ask_all)
            await trio.testing.wait_all_tasks_blocked()
            replicate()  # the offset
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            replicate()  # the marker
        assert sorted(answers, key=str) == [(7, 0), 0]


async def test_later_plain_commit_wins_over_a_pending_one() -> None:
    async with group_node() as node:
        verifier_of(node)
        await commit(node, 7)
        await node.commit({"t": {0: 9}})
        await end(node, is_commit=True)
        assert await fetch(node, require_stable=True) == (9, 0)


@pytest.mark.parametrize("removal", ["notified", "loaded"])
async def test_removal_of_a_deleted_topic_takes_no_pending_offset_of_a_later_one_along(
    removal: str, autojump_clock: object
) -> None:
    """Invariants 40 and 62: the offset that the transaction commits is that of the new topic."""
    async with group_node() as node:
        verifier_of(node)
        await node.commit({"t": {0: 3}})
        await make_again(node, "t")
        assert await commit(node, 7) == {"t": [0]}
        if removal == "notified":
            node.groups.on_topics_deleted({topic_id("t"): "t"})
        else:
            node.groups.on_metadata_caught_up()
        await trio.sleep(1)
        assert await fetch(node) == (-1, 0)
        assert await end(node, is_commit=True) == 0
        assert await fetch(node) == (7, 0)
        await load_again(node)
        assert await fetch(node) == (7, 0)


async def test_commit_of_a_zombie_producer_is_refused() -> None:
    """Invariant 55."""
    async with group_node() as node:
        verifier_of(node)
        await commit(node, 7, epoch=0)
        await end(node, is_commit=False, epoch=1)
        assert await commit(node, 8, epoch=0) == {"t": [errors.InvalidProducerEpoch.code]}
        assert await fetch(node, require_stable=True) == (-1, 0)


async def test_zombie_whose_verification_raced_the_abort_is_refused() -> None:
    """Invariants 55 and 56: the guard is checked again at the append."""
    async with group_node() as node:
        verifier = verifier_of(node)
        verifier.answers = trio.Event()
        codes: list[dict[str, list[int]]] = []

        async def late() -> None:
            codes.append(await commit(node, 7))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(late)
            await trio.testing.wait_all_tasks_blocked()
            await end(node, is_commit=False)
            verifier.answers.set()
        assert codes == [{"t": [errors.InvalidTxnState.code]}]
        assert await fetch(node, require_stable=True) == (-1, 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"generation_id": 1, "member_id": "c-1"}, 0),
        ({}, 0),
        ({"generation_id": 0, "member_id": "c-1"}, errors.IllegalGeneration.code),
        ({"generation_id": 2, "member_id": "c-1"}, errors.IllegalGeneration.code),
        ({"generation_id": 1, "member_id": "other"}, errors.UnknownMemberId.code),
        ({"generation_id": 1}, errors.UnknownMemberId.code),
        (
            {"generation_id": 1, "member_id": "c-1", "group_instance_id": "i"},
            errors.UnknownMemberId.code,
        ),
    ],
)
async def test_commit_is_fenced_by_the_consumer_group(
    fields: dict[str, Any], expected: int
) -> None:
    """Invariants 62 and 69, KIP-447; also during a rebalance, as in Kafka."""
    async with group_node() as node:
        verifier_of(node)
        joined = await node.join()
        joined = await node.join(member=joined.member_id)
        assert (joined.generation_id, joined.member_id) == (1, "c-1")
        assert await commit(node, **fields) == {"t": [expected]}


async def test_commit_with_a_generation_for_an_unknown_group_is_refused() -> None:
    async with group_node() as node:
        verifier_of(node)
        codes = await commit(node, generation_id=3, member_id="m")
        assert codes == {"t": [errors.IllegalGeneration.code]}


async def test_static_member_is_fenced_by_a_newer_one() -> None:
    """Invariant 68."""
    async with group_node() as node:
        verifier_of(node)
        joined = await node.join(group_instance_id="i")
        fields: dict[str, Any] = {"generation_id": joined.generation_id, "group_instance_id": "i"}
        assert await commit(node, member_id=joined.member_id, **fields) == {"t": [0]}
        assert await commit(node, member_id="old", **fields) == {
            "t": [errors.FencedInstanceId.code]
        }


@pytest.mark.parametrize(
    ("error", "version", "expected"),
    [
        (errors.NetworkException, 5, errors.CoordinatorLoadInProgress),
        (errors.CoordinatorNotAvailable, 5, errors.CoordinatorNotAvailable),
        (errors.NotCoordinator, 5, errors.NotCoordinator),
        (errors.ProducerFenced, 5, errors.InvalidProducerEpoch),
        (errors.TransactionAbortable, 3, errors.InvalidTxnState),
        (errors.TransactionAbortable, 4, errors.TransactionAbortable),
        (errors.InvalidProducerIdMapping, 5, errors.InvalidProducerIdMapping),
        (errors.CoordinatorLoadInProgress, 1, errors.CoordinatorNotAvailable),
    ],
)
async def test_commit_outside_the_transaction_is_refused(
    error: type[errors.KafkaError], version: int, expected: type[errors.KafkaError]
) -> None:
    """Invariant 56."""
    async with group_node() as node:
        verifier = verifier_of(node)
        verifier.default = error.code
        assert await commit(node, version=version) == {"t": [expected.code]}
        partition = groups_partition(node)
        assert verifier.questions == [
            ("tx", 5, 0, [TopicPartition(CONSUMER_OFFSETS, partition.partition)], version == 5)
        ]
        assert partition.log.end_offset == 0


async def test_topics_and_partitions_that_do_not_exist_fail_alone() -> None:
    async with group_node() as node:
        verifier_of(node)
        codes = await commit(node, topics={"t": [0, 9], "nope": [0]})
        assert codes == {"t": [0, 3], "nope": [3]}


async def test_thousand_offsets_are_pending_together() -> None:
    """Invariant 6."""
    async with group_node() as node:
        verifier_of(node)
        await node.broker.create("wide", partitions=450)
        indexes = list(range(450))
        assert await commit(node, 4, topics={"wide": indexes}) == {"wide": [0] * 450}
        assert await node.fetch({"wide": [0, 449]}) == {"wide": {0: -1, 449: -1}}
        await end(node, is_commit=True)
        assert await node.fetch({"wide": [0, 449]}) == {"wide": {0: 4, 449: 4}}


async def test_offset_metadata_that_is_too_long_is_refused() -> None:
    async with group_node({"offset.metadata.max.bytes": "0"}) as node:
        verifier_of(node)
        assert await commit(node) == {"t": [errors.OffsetMetadataTooLarge.code]}


async def test_commit_without_a_coordinator_here_is_refused() -> None:
    async with group_node(topics=False) as node:
        verifier_of(node)
        assert await commit(node) == {"t": [errors.CoordinatorNotAvailable.code]}
        await node.broker.create(CONSUMER_OFFSETS, partitions=5, replicas=(1, 2), leader=2)
        assert await commit(node) == {"t": [errors.NotCoordinator.code]}


async def test_former_transaction_coordinator_is_fenced() -> None:
    """Invariant 60."""
    async with group_node() as node:
        verifier_of(node)
        await commit(node, 7)
        await end(node, is_commit=True, coordinator_epoch=4)
        await commit(node, 8)
        code = await end(node, is_commit=True, coordinator_epoch=3)
        assert code == errors.TransactionCoordinatorFenced.code
        assert await fetch(node, require_stable=True) == UNSTABLE
        assert await end(node, is_commit=False, coordinator_epoch=4) == 0
        assert await fetch(node, require_stable=True) == (7, 0)


async def test_broker_whose_lease_is_over_refuses_offsets_before_it_verifies_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A broker that was paused answers at once when it goes on, whatever the coordinator does."""
    async with group_node() as node:
        verifier = verifier_of(node)
        verifier.answers = trio.Event()  # The transaction coordinator is silent.
        lease = SessionLease(9.0)
        node.broker.replicas.lease = lease
        lease.end = node.broker.replicas.now()
        with trio.move_on_after(10):
            codes = await commit(node)
        assert verifier.questions == []
        assert codes == {"t": [errors.NotCoordinator.code]}
