"""Replicas whose log directory is gone: it may come back, or be lost for good."""

from collections.abc import Sequence

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.elect_leaders import ElectLeadersResponse
from kwire.configs.resource_types import TOPIC
from kwire.raftmeta.controller.brokers import (
    begin_sessions,
    decide_heartbeat,
    decide_register_broker,
)
from kwire.raftmeta.controller.partitions import (
    decide_alter_partition,
    decide_assign_directories,
    decide_elect_leaders,
    decide_elect_unclean,
    decide_rebalance_leaders,
)
from kwire.raftmeta.storage.levels import ELR
from kwire.storage_format.format import feature_records
from kwire.types import NO_LEADER, DirectoryId
from tests.support.raftmeta.clusters import Cluster, directory
from tests.support.raftmeta.requests import (
    assignment,
    beat,
    isr_request,
    register,
    unclean_config,
    unclean_election,
)


@pytest.mark.parametrize("replicas", [[2, 1], [2]])
@pytest.mark.parametrize("is_back", [False, True])
def test_last_known_leader_leads_again_only_with_its_log(
    replicas: list[int], is_back: bool
) -> None:
    """All replicas were killed, and the one that led last returns without its directory."""
    cluster = Cluster((1, 2))
    cluster.write(*feature_records({ELR: 1}))
    topic_id = cluster.topic("t", replicas)
    cluster.write(
        r.PartitionChangeRecord(
            partition_id=0, topic_id=topic_id, leader=-1, isr=[], last_known_elr=[2]
        )
    )
    cluster.state.sessions.forget(2)
    new_dir = b"n" * 16
    epoch = cluster.do(decide_register_broker, register(2, log_dirs=[new_dir])).broker_epoch
    cluster.do(decide_heartbeat, beat(2, epoch))
    assert cluster.partition("t").leader == -1, "its replica is in the lost directory"
    cluster.do(decide_assign_directories, assignment(2, epoch, topic_id, new_dir))
    assert cluster.partition("t").leader == -1, "its log is empty"
    if is_back:
        cluster.state.sessions.forget(2)
        returning = register(2, b"m", log_dirs=[directory(2), new_dir])
        epoch = cluster.do(decide_register_broker, returning).broker_epoch
        cluster.do(decide_heartbeat, beat(2, epoch))
        assert cluster.partition("t").leader == 2
        return
    cluster.do(decide_elect_leaders, unclean_election())
    assert cluster.partition("t").leader == replicas[-1], "the one that may have records"
    cluster.do(decide_assign_directories, assignment(2, epoch, topic_id, new_dir))
    assert cluster.partition("t").directory(2) == new_dir


def replace_disk(
    cluster: Cluster,
    topic_id: bytes,
    *,
    old_dirs: Sequence[bytes] = (),
    more_dirs: Sequence[bytes] = (),
) -> bytes:
    """Bring broker 1 back with a new directory in which its replica lies; return the directory.

    ``old_dirs``: the former directories that it still has.
    """
    new_dir = b"n" * 16
    cluster.state.sessions.forget(1)
    request = register(1, log_dirs=[*old_dirs, new_dir, *more_dirs])
    epoch = cluster.do(decide_register_broker, request).broker_epoch
    cluster.do(decide_heartbeat, beat(1, epoch))
    cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    return new_dir


def test_replaced_disk_does_not_lead_without_elr_where_others_have_records() -> None:
    """Elected as the only in-sync replica, it would remove all records from the others."""
    cluster = Cluster((1, 2, 3))
    topic_id = cluster.topic("t", [1, 2, 3])
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[1]))
    new_dir = replace_disk(cluster, topic_id)
    partition = cluster.partition("t")
    assert partition.leader == -1, "its log is empty"
    cluster.do(decide_heartbeat, beat(2, 200))
    cluster.do(decide_rebalance_leaders, None)
    epoch = cluster.state.image.brokers[1].epoch
    cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    assert cluster.partition("t").leader == -1
    cluster.do(decide_elect_leaders, unclean_election())
    partition = cluster.partition("t")
    assert (partition.leader, partition.recovering) == (2, True), "it has most of the records"
    cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    assert cluster.partition("t").directory(1) == new_dir


def test_only_replica_begins_anew_only_by_an_unclean_election() -> None:
    """Its directory may be back at the next start: until then, no record counts as lost."""
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1])
    new_dir = replace_disk(cluster, topic_id)
    partition = cluster.partition("t")
    assert (partition.leader, partition.directory(1)) == (-1, directory(1))
    cluster.do(decide_elect_leaders, unclean_election())
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.recovering) == (1, (1,), True)
    epoch = cluster.state.image.brokers[1].epoch
    cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    assert cluster.partition("t").directory(1) == new_dir


def test_only_replica_begins_anew_where_the_topic_allows_unclean_leaders() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1])
    cluster.write(unclean_config(TOPIC, "t", "true"))
    new_dir = replace_disk(cluster, topic_id)
    partition = cluster.partition("t")
    assert (partition.leader, partition.directory(1)) == (1, new_dir)


def test_replica_that_moves_between_online_directories_stays_in_sync() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1, 2])
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[1]))
    new_dir = replace_disk(cluster, topic_id, old_dirs=[directory(1)])
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.directory(1)) == (1, (1,), new_dir)


def election_code(reply: ElectLeadersResponse) -> int:
    """Return the error code of the election of one partition."""
    ((answer,),) = [topic.partition_result for topic in reply.replica_election_results]
    return answer.error_code


def test_topic_that_allows_unclean_leaders_later_begins_anew() -> None:
    """The broker has reported its directory already, and does not repeat that."""
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1])
    new_dir = replace_disk(cluster, topic_id)
    assert cluster.partition("t").leader == NO_LEADER
    cluster.write(unclean_config(TOPIC, "t", "true"))
    cluster.do(decide_elect_unclean, None)
    assert (cluster.partition("t").leader, cluster.partition("t").recovering) == (1, True)
    epoch = cluster.state.image.brokers[1].epoch
    cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    assert cluster.partition("t").directory(1) == new_dir


@pytest.mark.parametrize("is_unclean", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_replica_in_a_failed_directory_does_not_begin_anew(is_unclean: bool, is_new: bool) -> None:
    """It could not serve, and other replicas that return could not lead in its place.

    A new active controller knows of the failure only once it has heard from the broker.
    """
    cluster = Cluster((1, 2))
    cluster.topic("t", [1, 2])
    if is_unclean:
        cluster.write(unclean_config(TOPIC, "t", "true"))
    cluster.fence(2)
    failed = beat(1, 100, offline_log_dirs=[directory(1), b"o" * 16])
    cluster.write(
        r.BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=100, log_dirs=[directory(1), b"o" * 16, b"k" * 16]
        )
    )
    cluster.do(decide_heartbeat, failed)
    for _ in range(2):
        assert cluster.partition("t").leader == NO_LEADER
        cluster.do(decide_elect_unclean, None)
        assert election_code(cluster.do(decide_elect_leaders, unclean_election())) == (
            errors.EligibleLeadersNotAvailable.code
        )
        if is_new:
            cluster.state.sessions.clear()
            begin_sessions(cluster.state)
        else:
            cluster.do(decide_heartbeat, failed)
    cluster.do(decide_heartbeat, beat(2, 200))
    if not is_unclean:
        assert cluster.partition("t").leader == NO_LEADER
        assert election_code(cluster.do(decide_elect_leaders, unclean_election())) == errors.NONE
    assert cluster.partition("t").leader == 2


def test_directory_that_has_failed_before_its_broker_serves_is_not_missing() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("t", [1])
    cluster.write(unclean_config(TOPIC, "t", "true"))
    cluster.state.sessions.forget(1)
    request = register(1, log_dirs=[directory(1), b"k" * 16])
    epoch = cluster.do(decide_register_broker, request).broker_epoch
    cluster.do(decide_heartbeat, beat(1, epoch, offline_log_dirs=[directory(1)]))
    assert not cluster.state.image.brokers[1].fenced
    assert cluster.partition("t").leader == NO_LEADER


@pytest.mark.parametrize("replicas", [[1], [1, 2]])
@pytest.mark.parametrize("elr", [False, True])
def test_log_that_was_moved_while_its_broker_was_down_leads(replicas: list[int], elr: bool) -> None:
    """The broker reports its old directory as lost, because the log has records."""
    cluster = Cluster((1, 2))
    if elr:
        cluster.write(*feature_records({ELR: 1}))
    topic_id = cluster.topic("t", replicas)
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[1]))
    cluster.state.sessions.forget(1)
    new_dir = b"n" * 16
    epoch = cluster.do(decide_register_broker, register(1, log_dirs=[new_dir])).broker_epoch
    cluster.do(decide_heartbeat, beat(1, epoch))
    for log_dir, leader in ((DirectoryId.LOST, NO_LEADER), (new_dir, 1)):
        cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, log_dir))
        assert cluster.partition("t").leader == leader
        assert cluster.partition("t").directory(1) == log_dir


def test_place_in_a_missing_directory_is_kept_if_the_next_directory_fails() -> None:
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [1])
    new_dir = replace_disk(cluster, topic_id, more_dirs=[b"k" * 16])
    epoch = cluster.state.image.brokers[1].epoch
    cluster.do(decide_heartbeat, beat(1, epoch, offline_log_dirs=[new_dir]))
    cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    assert cluster.partition("t").directory(1) == directory(1)


def test_replica_whose_directory_is_missing_does_not_join_the_isr() -> None:
    """It could not lead, and once its directory is back, it would lack the latest records."""
    cluster = Cluster((1, 2))
    topic_id = cluster.topic("t", [2, 1])
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[2]))
    cluster.state.sessions.forget(1)
    new_dir = b"n" * 16
    epoch = cluster.do(decide_register_broker, register(1, log_dirs=[new_dir])).broker_epoch
    cluster.do(decide_heartbeat, beat(1, epoch))
    codes = []
    for _ in range(2):
        request = isr_request(cluster, topic_id, [2, 1], epochs={1: epoch})
        (topic,) = cluster.do(decide_alter_partition, request).topics
        codes += [partition.error_code for partition in topic.partitions]
        cluster.do(decide_assign_directories, assignment(1, epoch, topic_id, new_dir))
    assert codes == [errors.IneligibleReplica.code, errors.NONE]
    assert cluster.partition("t").isr == (2, 1)
