"""Elections, replicas in sync, reassignments: tables with reasons, and properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire import errors
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.metadata_records import BrokerRegistrationChangeRecord
from kwire.raftmeta.controller.brokers import decide_heartbeat
from kwire.raftmeta.controller.partition_change_builder import Election, PartitionChangeBuilder
from kwire.raftmeta.controller.partitions import (
    PREFERRED,
    UNCLEAN,
    decide_alter_partition,
    decide_assign_directories,
    decide_elect_leaders,
    decide_elect_unclean,
    decide_rebalance_leaders,
)
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.raftmeta.metadata.image_change import apply_partition_change
from tests.support.raftmeta.clusters import Cluster, directory
from tests.support.raftmeta.requests import beat, isr_request, unclean_config

IsrTopic = AlterPartitionRequest.TopicData


def change(
    partition: PartitionImage, alive: set[int], **more: Any
) -> tuple[PartitionImage, PartitionChangeBuilder]:
    builder = PartitionChangeBuilder(
        topic_id=b"t" * 16,
        number=0,
        partition=partition,
        acceptable=lambda broker: broker in alive,
        directory_of=directory,
        **more,
    )
    record = builder.build()
    return (partition if record is None else apply_partition_change(partition, record)), builder


def partition(isr: list[int], leader: int, **more: Any) -> PartitionImage:
    replicas = (1, 2, 3)
    return PartitionImage(
        replicas=replicas,
        directories=tuple(map(directory, replicas)),
        isr=tuple(isr),
        leader=leader,
        **more,
    )


@pytest.mark.parametrize(
    ("isr", "leader", "alive", "election", "expected"),
    [
        ([1, 2], 2, {1, 2, 3}, Election.ONLINE, (2, 0, False)),  # a leader that may stay stays
        ([1, 2], 3, {1, 2, 3}, Election.ONLINE, (1, 1, False)),  # the first in sync, by assignment
        ([2, 3], -1, {1, 3}, Election.ONLINE, (3, 1, False)),  # 1 is alive but not in sync
        ([2], 2, {1, 3}, Election.ONLINE, (-1, 1, False)),  # no in-sync replica is alive
        ([2], 2, {1, 3}, Election.UNCLEAN, (1, 1, True)),  # data may be lost, which is reported
        ([1, 2], 2, {1, 2}, Election.PREFERRED, (1, 1, False)),
        ([2, 3], 2, {1, 2, 3}, Election.PREFERRED, (2, 0, False)),  # the preferred is not in sync
        ([], -1, {1, 2, 3}, Election.ONLINE, (-1, 0, False)),
    ],
)
def test_election_chooses_the_leader(
    isr: list[int], leader: int, alive: set[int], election: Election, expected: tuple[Any, ...]
) -> None:
    after, _ = change(partition(isr, leader), alive, election=election)
    assert (after.leader, after.leader_epoch, after.recovering) == expected
    if after.recovering:
        assert after.isr == (after.leader,), "an unclean leader is alone in sync"


@given(
    st.lists(st.sampled_from([1, 2, 3]), unique=True),
    st.sampled_from([-1, 1, 2, 3]),
    st.sets(st.sampled_from([1, 2, 3])),
    st.sampled_from(Election),
    st.booleans(),
)
def test_only_unclean_elections_choose_leaders_outside_the_isr(
    isr: list[int], leader: int, alive: set[int], election: Election, elr: bool
) -> None:
    leader = leader if leader in isr else -1
    before = partition(isr, leader)
    after, _ = change(before, alive, election=election, elr_enabled=elr)
    assert after.leader == -1 or after.leader in alive
    if after.leader not in (-1, *isr):
        assert election is Election.UNCLEAN
        assert after.recovering
    assert (after.leader_epoch > before.leader_epoch) == (after.leader != before.leader)
    assert set(after.isr) <= set(after.replicas)


def test_replica_that_left_the_isr_below_its_minimum_may_lead() -> None:
    """KIP-966: a replica that left the ISR below its minimum may still lead, no other."""
    full = partition([1, 2], 1)
    builder = PartitionChangeBuilder(
        topic_id=b"t" * 16,
        number=0,
        partition=full,
        acceptable=lambda broker: broker == 1,
        directory_of=directory,
        min_isr=2,
        elr_enabled=True,
    )
    builder.isr = [1]
    record = builder.build()
    assert record is not None
    shrunk = apply_partition_change(full, record)
    assert (shrunk.isr, shrunk.elr, shrunk.leader) == ((1,), (2,), 1)
    builder = PartitionChangeBuilder(
        topic_id=b"t" * 16,
        number=0,
        partition=shrunk,
        acceptable=lambda broker: broker == 3,
        directory_of=directory,
        min_isr=2,
        elr_enabled=True,
    )
    builder.isr = []
    record = builder.build()
    assert record is not None
    empty = apply_partition_change(shrunk, record)
    assert (empty.isr, empty.elr, empty.leader, empty.last_known_elr) == ((), (1, 2), -1, (1,))
    back, _ = change(empty, {2}, min_isr=2, elr_enabled=True)
    assert (back.isr, back.elr, back.leader, back.recovering) == ((2,), (1,), 2, False)


REFUSED: list[tuple[dict[str, Any], list[int], type[errors.KafkaError]]] = [
    ({"partition": 7}, [1, 2], errors.UnknownTopicOrPartition),
    ({"leader_epoch": 9}, [1, 2], errors.NotController),  # we are behind: no longer active
    ({"partition_epoch": 9}, [1, 2], errors.NotController),
    ({"leader_epoch": -1}, [1, 2], errors.FencedLeaderEpoch),
    ({"partition_epoch": -1}, [1, 2], errors.InvalidUpdateVersion),
    ({"broker": 2}, [1, 2], errors.InvalidRequest),  # not the leader
    ({}, [2, 3], errors.InvalidRequest),  # without the leader itself
    ({}, [1, 4], errors.InvalidRequest),  # not a replica
    ({}, [1, 1], errors.InvalidRequest),
    ({"leader_recovery_state": 1}, [1], errors.InvalidRequest),  # it was not recovering
    ({"epochs": {2: 5}}, [1, 2], errors.IneligibleReplica),  # an older incarnation (KIP-903)
]


@pytest.mark.parametrize(("more", "isr", "expected"), REFUSED, ids=str)
def test_invalid_alter_partition_requests_are_refused(
    more: dict[str, Any], isr: list[int], expected: type[errors.KafkaError]
) -> None:
    cluster = Cluster((1, 2, 3, 4))
    topic_id = cluster.topic("t", [1, 2, 3])
    request = isr_request(cluster, topic_id, isr, **more)
    reply = cluster.do(decide_alter_partition, request)
    assert reply.topics[0].partitions[0].error_code == expected.code
    assert not cluster.records


def test_fenced_broker_does_not_enter_the_isr() -> None:
    cluster = Cluster()
    topic_id = cluster.topic("t", [1, 2, 3])
    cluster.fence(3)
    assert cluster.partition("t").isr == (1, 2)
    reply = cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1, 2, 3]))
    assert reply.topics[0].partitions[0].error_code == errors.IneligibleReplica.code


def test_isr_shrinks_and_grows() -> None:
    cluster = Cluster()
    topic_id = cluster.topic("t", [1, 2, 3])
    for isr in ([1, 2], [1], [1, 3, 2]):
        before = cluster.partition("t")
        reply = cluster.do(decide_alter_partition, isr_request(cluster, topic_id, isr))
        answer = reply.topics[0].partitions[0]
        assert (answer.error_code, answer.isr) == (0, isr)
        assert answer.partition_epoch == before.partition_epoch + 1
        assert answer.leader_epoch == 0, "no election, no leader epoch"


def test_alter_partition_of_unknown_topic_or_stale_broker_is_refused() -> None:
    cluster = Cluster()
    topic_id = cluster.topic("t", [1, 2, 3])
    request = isr_request(cluster, topic_id, [1, 2])
    request.topics[0].topic_id = b"x" * 16
    reply = cluster.do(decide_alter_partition, request)
    assert reply.topics[0].partitions[0].error_code == errors.UnknownTopicId.code
    request.broker_epoch = 99
    with pytest.raises(errors.StaleBrokerEpoch):
        cluster.do(decide_alter_partition, request)


def test_fencing_moves_leaders_and_unfencing_elects_for_leaderless_partitions() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("a", [1, 2])
    cluster.topic("b", [1])
    cluster.fence(1)
    moved, alone = cluster.partition("a"), cluster.partition("b")
    assert (moved.leader, moved.isr, moved.leader_epoch) == (2, (2,), 1)
    assert (alone.leader, alone.isr, alone.leader_epoch) == (-1, (1,), 1), "the last stays in sync"
    cluster.unfence(1)
    assert cluster.partition("b").leader == 1
    assert cluster.partition("a").leader == 2, "it has to catch up first"


def test_unclean_election_only_where_the_topic_allows_it() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("safe", [1, 2])
    cluster.topic("loose", [1, 2])
    cluster.write(unclean_config(2, "loose", "true"))
    for broker in (2, 1):
        cluster.fence(broker)
    cluster.unfence(2)
    assert cluster.partition("safe").leader == -1
    loose = cluster.partition("loose")
    assert (loose.leader, loose.isr, loose.recovering) == (2, (2,), True)


def elect(kind: int, topic: str, number: int = 0) -> ElectLeadersRequest:
    partitions = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[number])
    return ElectLeadersRequest(election_type=kind, topic_partitions=[partitions])


def test_preferred_election_and_rebalancing() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1, 2])
    cluster.fence(1)
    cluster.unfence(1)

    def outcome(reply: Any) -> int:
        code: int = reply.replica_election_results[0].partition_result[0].error_code
        return code

    reply = cluster.do(decide_elect_leaders, elect(PREFERRED, "t"))
    assert outcome(reply) == errors.PreferredLeaderNotAvailable.code
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [2, 1]))
    assert cluster.do(decide_rebalance_leaders, None) is False
    assert cluster.partition("t").leader == 1
    reply = cluster.do(decide_elect_leaders, elect(PREFERRED, "t"))
    assert outcome(reply) == errors.ElectionNotNeeded.code
    reply = cluster.do(decide_elect_leaders, elect(UNCLEAN, "t"))
    assert outcome(reply) == errors.ElectionNotNeeded.code


def test_last_known_leader_that_is_no_replica_is_not_elected() -> None:
    """Otherwise a broker that no longer holds the partition would lead it."""
    before = PartitionImage(
        replicas=(1,), directories=(directory(1),), isr=(1,), last_known_elr=(2,), leader=-1
    )
    builder = PartitionChangeBuilder(
        topic_id=b"t" * 16,
        number=0,
        partition=before,
        acceptable=lambda broker: broker == 2,
        directory_of=directory,
        elr_enabled=True,
    )
    builder.isr = []
    builder.unclean_shutdown = 1
    record = builder.build()
    assert record is not None
    assert apply_partition_change(before, record).leader == -1


def test_directories_are_assigned() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1, 2])
    data = AssignReplicasToDirsRequest.DirectoryData
    topics = [
        data.TopicData(
            topic_id=id_,
            partitions=[data.TopicData.PartitionData(partition_index=n) for n in (0, 5)],
        )
        for id_ in (topic_id, b"x" * 16)
    ]
    request = AssignReplicasToDirsRequest(
        broker_id=2, broker_epoch=200, directories=[data(id=directory(2), topics=topics)]
    )
    request.directories[0].id = b"e" * 16
    reply = cluster.do(decide_assign_directories, request)
    codes = [p.error_code for t in reply.directories[0].topics for p in t.partitions]
    assert codes == [0, errors.UnknownTopicOrPartition.code] + [errors.UnknownTopicId.code] * 2
    partition = cluster.partition("t")
    assert partition.directory(2) == b"e" * 16
    assert partition.isr == (1,), "a directory that is not registered is taken for failed"


def test_replica_in_an_offline_directory_does_not_lead() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1, 2])
    cluster.topic("alone", [2])
    other = b"o" * 16
    cluster.write(
        BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=200, log_dirs=[other]),
    )
    cluster.do(decide_heartbeat, beat(2, 200, offline_log_dirs=[directory(2)]))
    cluster.fence(1)
    assert cluster.partition("t").leader == -1, "2 is in sync, but its replica is out of reach"
    for name in ("t", "alone"):
        cluster.write(unclean_config(2, name, "true"))
    cluster.do(decide_elect_unclean, None)
    assert cluster.partition("t").leader == -1
    data = AssignReplicasToDirsRequest.DirectoryData
    topic = data.TopicData(
        topic_id=topic_id, partitions=[data.TopicData.PartitionData(partition_index=0)]
    )
    cluster.do(
        decide_assign_directories,
        AssignReplicasToDirsRequest(
            broker_id=2, broker_epoch=200, directories=[data(id=other, topics=[topic])]
        ),
    )
    assert (cluster.partition("t").leader, cluster.partition("t").directory(2)) == (2, other)


@pytest.mark.parametrize(
    ("cluster_wide", "own", "topic", "leader"),
    [
        (None, None, None, -1),
        ("true", None, None, 2),
        ("true", None, "false", -1),  # the topic's setting has precedence
        (None, None, "true", 2),
        ("false", "true", None, 2),  # this controller's own setting, before the cluster's
    ],
)
def test_unclean_election_follows_topic_broker_and_cluster_settings(
    cluster_wide: str | None, own: str | None, topic: str | None, leader: int
) -> None:
    """Set at run time, it takes effect with the next check of leaderless partitions."""
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1, 2])
    cluster.do(decide_alter_partition, isr_request(cluster, topic_id, [1]))
    cluster.fence(1)
    for kind, name, value in ((4, "", cluster_wide), (4, "1", own), (2, "t", topic)):
        if value is not None:
            cluster.write(unclean_config(kind, name, value))
    assert cluster.partition("t").leader == -1
    cluster.do(decide_elect_unclean, None)
    assert cluster.partition("t").leader == leader
