"""Partitions that move: when the move is complete, and a new target before that."""

import pytest

from kwire import errors
from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.raftmeta.controller.brokers import decide_register_broker
from kwire.raftmeta.controller.partitions import decide_alter_partition, decide_reassign
from kwire.raftmeta.controller.topics import decide_create_partitions
from kwire.raftmeta.storage.levels import ELR
from kwire.storage_format.format import feature_records
from tests.support.raftmeta.clusters import Cluster, directory
from tests.support.raftmeta.requests import isr_request, reassign, register, unclean_config


def test_reassignment_waits_for_the_new_replicas() -> None:
    cluster = Cluster((1, 2, 3, 4))
    topic_id = cluster.topic("t", [1, 2])
    cluster.do(decide_reassign, reassign([3, 4]))
    moving = cluster.partition("t")
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert (moving.leader, moving.isr) == (1, (1, 2))
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2, 3]))
    assert cluster.partition("t").is_reassigning, "4 is not in sync yet"
    reply = cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2, 3, 4]))
    done = cluster.partition("t")
    assert (done.replicas, done.isr, done.leader) == ((3, 4), (3, 4), 3)
    assert done.directories == (directory(3), directory(4))
    answer = reply.topics[0].partitions[0]
    assert answer.error_code == errors.NewLeaderElected.code, "the old leader learns that"


def test_cancelled_reassignment_restores_the_old_replicas() -> None:
    cluster = Cluster((1, 2, 3))
    topic_id = cluster.topic("t", [1, 2])
    before = cluster.partition("t")
    cluster.do(decide_reassign, reassign([3, 1]))
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1]))
    cluster.do(decide_reassign, reassign(None))
    after = cluster.partition("t")
    assert (after.replicas, after.adding, after.removing) == (before.replicas, (), ())
    assert (after.leader, after.isr) == (1, (1,))


def test_replicas_are_removed_only_when_the_remaining_are_in_sync() -> None:
    """Otherwise only the replicas that are removed might have all records."""
    cluster = Cluster((1, 2, 3))
    topic_id = cluster.topic("t", [1, 2, 3])
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2]))
    cluster.do(decide_reassign, reassign([2, 3]))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.removing, partition.isr) == ((2, 3, 1), (1,), (1, 2))
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2, 3]))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 3), (2, 3), 2)


def test_new_target_in_the_middle_of_a_reassignment() -> None:
    """An added replica that is in sync, here the leader, stays until the new ones are in sync."""
    cluster = Cluster((1, 2, 3, 4, 5))
    topic_id = cluster.topic("t", [1, 2])
    cluster.do(decide_reassign, reassign([3, 4]))
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2, 3]))
    for broker in (1, 2):
        cluster.fence(broker)
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (3, (3,))
    cluster.do(decide_reassign, reassign([2, 5]))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.adding, partition.removing) == (
        (2, 5, 1, 3, 4),
        (5,),
        (1, 3, 4),
    )
    assert (partition.leader, partition.isr) == (3, (3,))
    cluster.unfence(2)
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [3, 5, 2]))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 5), (5, 2), 2)


def test_reassignment_to_the_old_replicas_cancels_the_move() -> None:
    cluster = Cluster((1, 2, 3, 4))
    cluster.topic("t", [1, 2])
    cluster.do(decide_reassign, reassign([3, 4]))
    cluster.do(decide_reassign, reassign([1, 2]))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.isr, partition.is_reassigning) == ((1, 2), (1, 2), False)


def test_replication_factor_is_that_of_the_target() -> None:
    cluster = Cluster((1, 2, 3, 4))
    cluster.topic("t", [1])
    cluster.do(decide_reassign, reassign([2, 3]))
    for replicas, code in (([4], errors.InvalidReplicationFactor.code), ([2, 4], errors.NONE)):
        request = reassign(replicas)
        request.allow_replication_factor_change = False
        reply = cluster.do(decide_reassign, request)
        assert reply.responses[0].partitions[0].error_code == code


@pytest.mark.parametrize("assigned", [None, [1, 2]])
def test_partitions_added_during_a_reassignment_have_the_factor_of_its_target(
    assigned: list[int] | None,
) -> None:
    """Old and new replicas together may be more than there are brokers."""
    cluster = Cluster((1, 2, 3))
    cluster.topic("t", [1, 2])
    cluster.do(decide_reassign, reassign([2, 3]))
    assert cluster.partition("t").replicas == (2, 3, 1)
    shape = CreatePartitionsRequest.CreatePartitionsTopic
    assignments = (
        None if assigned is None else [shape.CreatePartitionsAssignment(broker_ids=assigned)]
    )
    topic = shape(name="t", count=2, assignments=assignments)
    reply = cluster.do(
        decide_create_partitions,
        CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False),
    )
    assert reply.results[0].error_code == errors.NONE
    assert len(cluster.partition("t", 1).replicas) == 2


def test_cancelled_reassignment_of_a_leaderless_partition_elects_no_unclean_leader() -> None:
    """KIP-966: an eligible replica stays so, and leads when its broker serves again."""
    cluster = Cluster((1, 2, 3))
    cluster.write(*feature_records({ELR: 1}), unclean_config(4, "", "true"))
    cluster.topic("t", [2])
    cluster.fence(2)
    cluster.write(unclean_config(4, "", "false"))
    cluster.do(decide_reassign, reassign([3]))
    reply = cluster.do(decide_reassign, reassign(None))
    assert reply.responses[0].partitions[0].error_code == errors.NONE
    partition = cluster.partition("t")
    assert (partition.replicas, partition.isr, partition.elr, partition.leader) == (
        (2,),
        (),
        (2,),
        -1,
    )
    cluster.unfence(2)
    partition = cluster.partition("t")
    assert (partition.leader, partition.recovering) == (2, False)


def leaderless_on_a_new_replica(*, is_known_by_elr: bool) -> Cluster:
    """Return a cluster in which only a replica that a reassignment adds has all records.

    Its broker is fenced, so that the partition has no leader.
    """
    cluster = Cluster((1, 2, 3, 4))
    cluster.write(*feature_records({ELR: 1}))
    topic_id = cluster.topic("t", [1])
    cluster.do(decide_reassign, reassign([2, 3]))
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2]))
    cluster.fence(1)
    cluster.fence(2)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), (2,))
    if not is_known_by_elr:
        cluster.do(decide_register_broker, register(2))
        partition = cluster.partition("t")
        assert (partition.leader, partition.elr, partition.last_known_elr) == (-1, (), (2,))
    return cluster


@pytest.mark.parametrize("is_known_by_elr", [True, False])
def test_cancellation_keeps_the_only_replica_that_may_lead(is_known_by_elr: bool) -> None:
    """Otherwise the acknowledged records on it would be given up without an unclean election."""
    cluster = leaderless_on_a_new_replica(is_known_by_elr=is_known_by_elr)
    reply = cluster.do(decide_reassign, reassign(None))
    answer = reply.responses[0].partitions[0]
    assert answer.error_code == errors.InvalidReplicaAssignment.code
    assert "would require an unclean leader election" in answer.error_message
    assert cluster.partition("t").replicas == (2, 3, 1)
    if is_known_by_elr:
        cluster.unfence(2)
        assert cluster.partition("t").leader == 2


def test_cancellation_gives_up_the_only_eligible_replica_if_unclean_leaders_are_allowed() -> None:
    cluster = leaderless_on_a_new_replica(is_known_by_elr=True)
    cluster.write(unclean_config(2, "t", "true"))
    cluster.unfence(1)
    cluster.do(decide_reassign, reassign(None))
    partition = cluster.partition("t")
    assert (partition.replicas, partition.leader, partition.isr) == ((1,), 1, (1,))
    assert partition.recovering


def test_order_of_replicas_changes_at_once() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("t", [1, 2])
    cluster.do(decide_reassign, reassign([2, 1]))
    after = cluster.partition("t")
    assert (after.replicas, after.leader, after.is_reassigning) == ((2, 1), 1, False)
    assert after.directories == (directory(2), directory(1)), "directories go with replicas"


def test_reassignment_of_too_many_partitions_is_refused_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kwire.raftmeta.controller.state.USER_RECORDS_MAX", 1)
    cluster = Cluster((1, 2))
    cluster.topic("t", [1], [1])
    first = reassign([2])
    assert not cluster.do(decide_reassign, first).responses[0].partitions[0].error_code
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    parts = [topic.ReassignablePartition(partition_index=n, replicas=[1, 2]) for n in (0, 1)]
    both = AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=parts)])
    with pytest.raises(errors.PolicyViolation):
        cluster.do(decide_reassign, both)
