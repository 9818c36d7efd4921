"""Registration, heartbeats, fencing and controlled shutdown."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.configs.resource_types import TOPIC
from kwire.raftmeta.controller.broker_sessions import BrokerSessions
from kwire.raftmeta.controller.brokers import (
    begin_sessions,
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
    decide_unregister_broker,
    keep_session,
)
from kwire.raftmeta.controller.partitions import (
    decide_assign_directories,
    decide_elect_leaders,
)
from kwire.raftmeta.controller.producer_id_blocks import decide_allocate_producer_ids
from kwire.raftmeta.storage.levels import DIRECTORIES, ELR
from kwire.storage_format.format import feature_records
from kwire.types import DirectoryId
from tests.support.raftmeta.clusters import Cluster, directory, registration
from tests.support.raftmeta.requests import assignment, beat, register, unclean_election


def test_register_then_unfence() -> None:
    cluster = Cluster((1,))
    offset = cluster.state.next_offset
    epoch = cluster.do(decide_register_broker, register(2)).broker_epoch
    assert epoch == offset, "a broker's epoch is the offset of its registration"
    assert cluster.state.image.brokers[2].fenced
    behind = beat(2, epoch, current_metadata_offset=epoch - 1)
    reply = cluster.do(decide_heartbeat, behind)
    assert (reply.is_fenced, reply.is_caught_up, cluster.kinds()) == (True, False, [])
    reply = cluster.do(decide_heartbeat, beat(2, epoch, cordoned_log_dirs=[]))
    assert (reply.is_fenced, reply.is_caught_up) == (False, True)
    assert cluster.kinds() == ["BrokerRegistrationChange"] * 2
    cluster.do(decide_heartbeat, beat(2, epoch, cordoned_log_dirs=[]))
    assert cluster.kinds() == [], "nothing new, nothing written"


def test_fenced_broker_may_cordon_directories() -> None:
    cluster = Cluster((1,))
    epoch = cluster.do(decide_register_broker, register(2)).broker_epoch
    directories = [directory(2)]
    for fields in ({"want_fence": True}, {"current_metadata_offset": 0}):
        request = beat(2, epoch, cordoned_log_dirs=directories, **fields)
        assert cluster.do(decide_heartbeat, request).is_fenced
        assert cluster.kinds() == ["BrokerRegistrationChange"]
        assert cluster.state.image.brokers[2].cordoned_log_dirs == tuple(directories)
        directories = []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"cluster_id": "other"}, errors.InconsistentClusterId),
        ({"log_dirs": []}, errors.InvalidRegistration),
        ({"log_dirs": [bytes(16)]}, errors.InvalidRegistration),  # reserved
        ({"log_dirs": [b"x" * 16] * 2}, errors.InvalidRegistration),
        ({"log_dirs": [directory(1)]}, errors.InvalidRegistration),  # another broker's
        ({"features": []}, errors.UnsupportedVersion),  # metadata.version is finalized
        ({"is_migrating_zk_broker": True}, errors.BrokerIdNotRegistered),
        (
            {"broker": 1, "log_dirs": [b"y" * 16]},  # another live incarnation
            errors.DuplicateBrokerRegistration,
        ),
    ],
)
def test_invalid_registrations_are_refused(
    more: dict[str, Any], expected: type[errors.KafkaError]
) -> None:
    cluster = Cluster((1,))
    with pytest.raises(expected):
        cluster.do(decide_register_broker, register(**{"broker": 2, **more}))


def test_broker_without_directory_ids_registers_below_their_level() -> None:
    """Apache Kafka's brokers before 3.7 have none; the first level with directories is 3.7-IV2."""
    cluster = Cluster((1,))
    cluster.write(*feature_records({"metadata.version": DIRECTORIES - 1}))
    for broker, log_dirs in ((2, []), (3, []), (4, [directory(4)])):
        cluster.do(decide_register_broker, register(broker, log_dirs=log_dirs))
        assert broker in cluster.state.image.brokers
    cluster.write(*feature_records({"metadata.version": DIRECTORIES}))
    with pytest.raises(errors.InvalidRegistration):
        cluster.do(decide_register_broker, register(2, log_dirs=[]))


def test_the_next_incarnation_on_the_same_directories_need_not_wait() -> None:
    """It holds their lock, so the last incarnation is dead (Kafka refuses it for 9 s)."""
    cluster = Cluster((1,))
    cluster.do(decide_register_broker, register(1))
    assert cluster.state.image.brokers[1].fenced


def test_same_incarnation_keeps_its_epoch() -> None:
    cluster = Cluster((1,))
    incarnation = cluster.state.image.brokers[1].incarnation_id
    request = register(1)
    request.incarnation_id = incarnation
    assert cluster.do(decide_register_broker, request).broker_epoch == 100
    assert not cluster.state.image.brokers[1].fenced


def test_silent_brokers_are_fenced_one_by_one() -> None:
    cluster = Cluster()
    cluster.topic("t", [2, 3, 1])
    cluster.now += 5
    cluster.do(decide_heartbeat, beat(1, 100))
    cluster.now += 5
    assert cluster.do(decide_fence_stale, None) is True, "there is another one"
    assert cluster.do(decide_fence_stale, None) is False
    assert cluster.kinds() == ["PartitionChange", "BrokerRegistrationChange"]
    assert [broker.id for broker in cluster.state.image.live_brokers()] == [1]
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (1, (1,))
    assert cluster.do(decide_fence_stale, None) is False
    assert cluster.state.sessions.deadline == cluster.now - 5 + 9


def test_broker_that_returns_after_its_session_leaves_the_isr() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("t", [2, 1])
    cluster.now += 10
    cluster.do(decide_register_broker, register(2))
    assert cluster.kinds() == ["PartitionChange", "RegisterBroker"], "unclean: out of the ISR"
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (1, (1,))


@pytest.mark.parametrize("previous", [200, -1])
def test_new_incarnation_does_not_lead_before_it_is_unfenced(previous: int) -> None:
    """Its partitions get other leaders, however it stopped; the last in-sync replica stays so."""
    cluster = Cluster((1, 2))
    cluster.topic("t", [2, 1])
    cluster.topic("alone", [2])
    cluster.do(decide_register_broker, register(2, previous_broker_epoch=previous))
    assert cluster.kinds() == ["PartitionChange", "PartitionChange", "RegisterBroker"]
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (1, (1,))
    assert (cluster.partition("alone").leader, cluster.partition("alone").isr) == (-1, (2,))


@pytest.mark.parametrize(("previous", "elr"), [(200, (2,)), (-1, ())])
def test_broker_without_controlled_shutdown_is_not_eligible(
    previous: int, elr: tuple[int, ...]
) -> None:
    """KIP-966: a broker that was killed may have lost records: it may lead only uncleanly."""
    cluster = Cluster((1, 2))
    cluster.write(*feature_records({ELR: 1}))
    cluster.topic("t", [2])
    cluster.do(decide_register_broker, register(2, previous_broker_epoch=previous))
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (
        -1,
        (),
        elr,
        (2,),
    )
    cluster.do(decide_heartbeat, beat(2, cluster.state.image.brokers[2].epoch))
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (
        2,
        (2,),
        (),
        (),
    )
    assert partition.recovering == (previous == -1), "the last leader, uncleanly"


@pytest.mark.parametrize(("is_kept", "elr"), [(True, (2,)), (False, ())])
def test_broker_that_comes_back_without_a_directory_is_not_eligible_for_its_replicas(
    is_kept: bool, elr: tuple[int, ...]
) -> None:
    """KIP-966: the replica begins again in another directory, without the committed records."""
    cluster = Cluster((1, 2))
    cluster.write(*feature_records({ELR: 1}))
    topic_id = cluster.topic("t", [1, 2])
    out_of_isr = r.PartitionChangeRecord(
        partition_id=0, topic_id=topic_id, isr=[1], eligible_leader_replicas=[2]
    )
    minimum = r.ConfigRecord(
        resource_type=TOPIC, resource_name="t", name="min.insync.replicas", value="2"
    )
    cluster.write(minimum, out_of_isr)
    cluster.state.sessions.forget(2)
    healthy_dir = b"k" * 16
    log_dirs = [directory(2), healthy_dir] if is_kept else [healthy_dir]
    stopped_cleanly = register(2, log_dirs=log_dirs, previous_broker_epoch=200)
    epoch = cluster.do(decide_register_broker, stopped_cleanly).broker_epoch
    assert cluster.partition("t").elr == elr
    cluster.do(decide_heartbeat, beat(2, epoch))
    cluster.do(decide_assign_directories, assignment(2, epoch, topic_id, log_dirs[0]))
    cluster.fence(1)
    assert cluster.partition("t").leader == (2 if is_kept else -1), "1 has all records"


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize(("is_empty", "leader"), [(False, 2), (True, -1)])
def test_replica_whose_directory_was_lost_leads_again_only_with_its_log(
    is_empty: bool, leader: int, elr: bool
) -> None:
    """The last in-sync replica may have been in any directory, also in one that was replaced."""
    cluster = Cluster((1, 2))
    if elr:
        cluster.write(*feature_records({ELR: 1}))
    topic_id = cluster.topic("t", [2, 1])
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[2]))
    cluster.do(decide_assign_directories, assignment(2, 200, topic_id, DirectoryId.LOST))
    assert cluster.partition("t").leader == -1
    if is_empty:
        unassigned = DirectoryId.UNASSIGNED
        cluster.do(decide_assign_directories, assignment(2, 200, topic_id, unassigned))
    cluster.do(decide_assign_directories, assignment(2, 200, topic_id, directory(2)))
    assert cluster.partition("t").leader == leader
    if is_empty:
        cluster.do(decide_elect_leaders, unclean_election())
        partition = cluster.partition("t")
        assert (partition.leader, partition.recovering) == (1, True), "it has most of the records"


@pytest.mark.parametrize("elr", [False, True])
def test_follower_on_a_replaced_disk_leaves_isr_and_elr(elr: bool) -> None:
    cluster = Cluster((1, 2))
    if elr:
        cluster.write(*feature_records({ELR: 1}))
    topic_id = cluster.topic("t", [2, 1])
    other_dir = b"o" * 16
    cluster.write(
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=100, log_dirs=[other_dir])
    )
    cluster.do(decide_assign_directories, assignment(1, 100, topic_id, other_dir))
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), ())


def test_unregistered_broker_is_not_eligible_when_it_registers_again() -> None:
    cluster = Cluster((1, 2))
    cluster.write(*feature_records({ELR: 1}))
    cluster.topic("t", [2])
    cluster.do(decide_unregister_broker, UnregisterBrokerRequest(broker_id=2))
    assert cluster.partition("t").elr == (2,)
    cluster.do(decide_register_broker, register(2))
    assert cluster.partition("t").elr == ()


def test_a_directory_fails_while_its_broker_comes_back() -> None:
    """Both in one heartbeat: the broker serves, and does not lead from what it lost."""
    cluster = Cluster((1, 2))
    cluster.topic("t", [2])
    failed_dir, healthy_dir = directory(2), b"k" * 16
    cluster.now += 10
    cluster.do(decide_register_broker, register(2, log_dirs=[failed_dir, healthy_dir]))
    epoch = cluster.state.image.brokers[2].epoch
    reply = cluster.do(decide_heartbeat, beat(2, epoch, offline_log_dirs=[failed_dir]))
    assert not reply.is_fenced
    assert cluster.state.image.brokers[2].log_dirs == (healthy_dir,)
    assert cluster.partition("t").leader == -1


def test_controlled_shutdown_waits_for_the_others() -> None:
    """Leaders move in the first answer; the broker stops when all others know the new ones."""
    cluster = Cluster()
    cluster.topic("t", [1, 2, 3])
    reply = cluster.do(decide_heartbeat, beat(1, 100, want_shut_down=True))
    assert not reply.should_shut_down
    assert cluster.kinds() == ["BrokerRegistrationChange", "PartitionChange"]
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2, 3))
    moved = cluster.state.next_offset - 1
    for broker, offset in ((2, moved), (3, moved - 1)):
        request = beat(broker, broker * 100, current_metadata_offset=offset)
        cluster.do(decide_heartbeat, request)
    reply = cluster.do(decide_heartbeat, beat(1, 100, want_shut_down=True))
    assert (reply.should_shut_down, cluster.kinds()) == (False, []), "3 does not know yet"
    cluster.do(decide_heartbeat, beat(3, 300, current_metadata_offset=moved))
    reply = cluster.do(decide_heartbeat, beat(1, 100, want_shut_down=True))
    assert reply.should_shut_down
    assert cluster.kinds() == ["BrokerRegistrationChange"]
    assert cluster.state.image.brokers[1].fenced


def test_controlled_shutdown_does_not_wait_for_the_controllers_own_broker() -> None:
    """It sends no heartbeats with its offset: it has applied a change before the answer."""
    cluster = Cluster((1, 2))
    keep_session(cluster.state, 1)
    cluster.topic("t", [2, 1])
    assert not cluster.do(decide_heartbeat, beat(2, 200, want_shut_down=True)).should_shut_down
    assert cluster.partition("t").leader == 1
    assert cluster.do(decide_heartbeat, beat(2, 200, want_shut_down=True)).should_shut_down


def test_second_incarnation_is_refused_while_a_broker_starts() -> None:
    """Otherwise both would replace each other for ever.

    It is accepted after the session timeout, or after a controlled shutdown.
    """
    for is_leaving in (False, True):
        cluster = Cluster((1,))
        epoch = cluster.do(decide_register_broker, register(2)).broker_epoch
        cluster.do(decide_heartbeat, beat(2, epoch, want_fence=True, want_shut_down=is_leaving))
        request = register(2, b"m", log_dirs=[b"other directory "])
        if not is_leaving:
            with pytest.raises(errors.DuplicateBrokerRegistration):
                cluster.do(decide_register_broker, request)
            cluster.now += 9
        assert cluster.do(decide_register_broker, request).broker_epoch > epoch


def test_new_controller_begins_sessions_of_unfenced_brokers_only() -> None:
    cluster = Cluster((1, 2))
    cluster.write(registration(3, fenced=True))
    cluster.state.sessions.clear()
    begin_sessions(cluster.state)
    valid = {broker for broker in (1, 2, 3) if cluster.state.sessions.is_valid(broker, cluster.now)}
    assert valid == {1, 2}


def test_heartbeat_with_unknown_id_or_epoch_is_refused() -> None:
    cluster = Cluster((1,))
    for request in (beat(1, 99), beat(9, 1)):
        with pytest.raises(errors.StaleBrokerEpoch):
            cluster.do(decide_heartbeat, request)


def test_replicas_in_a_failed_directory_leave_the_isr() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("t", [1, 2])
    cluster.do(decide_heartbeat, beat(1, 100, offline_log_dirs=[directory(1)]))
    assert cluster.kinds() == ["PartitionChange", "BrokerRegistrationChange"]
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2,))


def test_unregistered_broker_leaves_the_image_and_the_isr() -> None:
    cluster = Cluster((1, 2))
    cluster.topic("t", [1, 2])
    cluster.do(decide_unregister_broker, UnregisterBrokerRequest(broker_id=1))
    assert sorted(cluster.state.image.brokers) == [2]
    assert cluster.partition("t").isr == (2,)
    with pytest.raises(errors.BrokerIdNotRegistered):
        cluster.do(decide_unregister_broker, UnregisterBrokerRequest(broker_id=1))


def test_broker_that_asks_whether_it_was_fenced_is_answered_with_a_record() -> None:
    """Invariant 34: a controller that was replaced during a pause cannot commit it."""
    cluster = Cluster((1, 2))
    reply = cluster.do(decide_heartbeat, beat(2, 200, current_metadata_offset=-1))
    assert (reply.is_fenced, cluster.kinds()) == (False, ["NoOp"])
    cluster.fence(2)
    reply = cluster.do(decide_heartbeat, beat(2, 200, current_metadata_offset=-1))
    assert (reply.is_fenced, cluster.kinds()) == (True, [])


def test_producer_id_blocks_never_overlap() -> None:
    """Invariant 47, for producer ids."""
    cluster = Cluster((1, 2))
    starts = []
    for broker in (1, 2, 1):
        request = AllocateProducerIdsRequest(broker_id=broker, broker_epoch=broker * 100)
        reply = cluster.do(decide_allocate_producer_ids, request)
        starts.append((reply.producer_id_start, reply.producer_id_len))
    assert starts == [(0, 1000), (1000, 1000), (2000, 1000)]


def test_sessions() -> None:
    sessions = BrokerSessions(timeout_s=9)
    assert sessions.deadline == float("inf")
    sessions.touch(1, 100.0, fenced=False, metadata_offset=5)
    sessions.touch(2, 101.0, fenced=False, metadata_offset=3)
    sessions.touch(3, 0.0, fenced=True, metadata_offset=0)
    assert sessions.deadline == 109
    assert sessions.lowest_active_offset() == 3, "a fenced broker is not waited for"
    assert [sessions.stale(now) for now in (108.9, 109.0, 110.0)] == [[], [1], [1, 2]]
    assert (sessions.is_valid(1, 108.9), sessions.is_valid(1, 109)) == (True, False)
    sessions.forget(1)
    assert sessions.get(1) is None
