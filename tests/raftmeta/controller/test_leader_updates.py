"""Brokers with many partitions: what one decision changes is bounded, and nothing is left over."""

from collections.abc import Iterator
from math import ceil
from typing import Any

import pytest

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.configs.resource_types import BROKER
from kwire.raftmeta.controller.brokers import (
    begin_sessions,
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
    decide_unregister_broker,
)
from kwire.raftmeta.controller.leader_update_queue import FIRST_PARTITIONS, SLICE_PARTITIONS
from kwire.raftmeta.controller.leader_updates import decide_leader_updates, resume_leader_updates
from kwire.raftmeta.controller.partition_index import BUILD_PARTITIONS, PartitionIndex
from kwire.raftmeta.controller.partitions import decide_rebalance_leaders
from kwire.raftmeta.controller.state import whole as at_once
from tests.support.raftmeta.clusters import MANY, Cluster, cluster_of, directory
from tests.support.raftmeta.requests import beat, register
from tests.support.raftmeta.work import calls_in

RECORDS_MAX = 1_002
"""Records of one decision: those of a slice, and those on the broker itself."""


def whole(cluster: Cluster, decide: Any, request: Any) -> list[int]:
    """Decide until the request is decided as a whole; return the record count of each decision."""
    sizes = []
    while True:
        decision = at_once(decide(cluster.state, request))
        cluster.write(*decision.records)
        decision.take_effect()
        cluster.records = list(decision.records)
        sizes.append(len(decision.records))
        if not decision.again:
            return sizes


def update_leaders(cluster: Cluster) -> list[int]:
    """Decide on all queued slices; return the record count of each decision."""
    sizes = []
    while cluster.state.leader_update_queue:
        cluster.do(decide_leader_updates, None)
        sizes.append(len(cluster.records))
    return sizes


def led_by(cluster: Cluster) -> set[int]:
    topic = cluster.state.image.topic("large")
    assert topic is not None
    return {partition.leader for partition in topic.partitions.values()}


def in_sync(cluster: Cluster) -> set[tuple[int, ...]]:
    topic = cluster.state.image.topic("large")
    assert topic is not None
    return {partition.isr for partition in topic.partitions.values()}


def fence(cluster: Cluster, broker: int) -> None:
    """Let a broker's session end."""
    cluster.now += 10
    for other in (1, 2, 3):
        if other != broker:
            cluster.do(decide_heartbeat, beat(other, other * 100))
    cluster.do(decide_fence_stale, None)


def test_fencing_a_broker_of_many_partitions_is_decided_in_slices() -> None:
    """Invariant 44: a decision takes much less time than followers wait before an election."""
    cluster = cluster_of()
    fence(cluster, 2)
    assert cluster.state.image.brokers[2].fenced, "with the first slice"
    sizes = [len(cluster.records), *update_leaders(cluster)]
    assert max(sizes) <= RECORDS_MAX
    assert sum(sizes) == MANY + 1
    assert (led_by(cluster), in_sync(cluster)) == ({1}, {(1,)})


def test_few_partitions_change_together_with_the_fencing() -> None:
    """One batch, as Kafka's: the changes of partitions, then the broker's."""
    cluster = cluster_of(3)
    fence(cluster, 2)
    assert cluster.kinds() == ["PartitionChange"] * 3 + ["BrokerRegistrationChange"]
    assert not cluster.state.leader_update_queue


def test_next_active_controller_goes_on_with_the_leader_updates() -> None:
    """Invariant 44: from the image alone, since the queue of the last controller is lost."""
    cluster = cluster_of()
    fence(cluster, 2)
    cluster.do(decide_leader_updates, None)
    assert led_by(cluster) == {1, 2}
    cluster.state.reset(cluster.state.image, cluster.state.next_offset)
    begin_sessions(cluster.state)
    resume_leader_updates(cluster.state)
    assert sum(update_leaders(cluster)) == MANY - FIRST_PARTITIONS - SLICE_PARTITIONS
    assert (led_by(cluster), in_sync(cluster)) == ({1}, {(1,)})


def test_unfenced_broker_stays_in_sync_in_partitions_of_later_slices() -> None:
    cluster = cluster_of()
    fence(cluster, 2)
    reply = cluster.do(decide_heartbeat, beat(2, 200))
    assert not reply.is_fenced
    assert sum(update_leaders(cluster)) == 0
    assert led_by(cluster) == {1, 2}


def test_unfenced_broker_becomes_leader_in_slices() -> None:
    cluster = cluster_of(replicas=(2,))
    fence(cluster, 2)
    update_leaders(cluster)
    assert led_by(cluster) == {-1}
    cluster.do(decide_heartbeat, beat(2, 200))
    sizes = [len(cluster.records), *update_leaders(cluster)]
    assert max(sizes) <= RECORDS_MAX
    assert led_by(cluster) == {2}


def test_controlled_shutdown_waits_for_the_last_slice() -> None:
    """The broker may stop only when the others know all new leaders, also those of later slices."""
    cluster = cluster_of()
    leave = beat(2, 200, want_shut_down=True)
    assert not cluster.do(decide_heartbeat, leave).should_shut_down
    first = cluster.state.next_offset - 1
    sizes = [len(cluster.records), *update_leaders(cluster)]
    assert max(sizes) <= RECORDS_MAX
    last = cluster.state.next_offset - 1
    for offset, may_stop in ((first, False), (last - 1, False), (last, True)):
        for other in (1, 3):
            cluster.do(decide_heartbeat, beat(other, other * 100, current_metadata_offset=offset))
        assert cluster.do(decide_heartbeat, leave).should_shut_down is may_stop


@pytest.mark.parametrize("elr", [False, True])
def test_registration_comes_after_the_last_slice(elr: bool) -> None:
    """The batch of the registration leaves the new incarnation in no ISR and no ELR."""
    cluster = cluster_of(elr=elr)
    sizes = whole(cluster, decide_register_broker, register(2))
    assert max(sizes) <= RECORDS_MAX
    assert len(sizes) == ceil(MANY / FIRST_PARTITIONS)
    assert cluster.kinds()[-1] == "RegisterBroker"
    assert (led_by(cluster), in_sync(cluster)) == ({1}, {(1,)})
    assert not any(p.elr for p in cluster.state.image.topic("large").partitions.values())


def test_registration_whose_broker_goes_away_between_slices_loses_its_leaderships() -> None:
    cluster = cluster_of()
    decision = at_once(decide_register_broker(cluster.state, register(2)))
    assert decision.again
    cluster.write(*decision.records)
    decision.take_effect()
    assert cluster.state.image.brokers[2].fenced
    update_leaders(cluster)
    assert (led_by(cluster), in_sync(cluster)) == ({1}, {(1,)})


def test_failed_directory_is_removed_with_the_last_slice() -> None:
    """Another controller gets the failure again as long as the directory is registered."""
    cluster = cluster_of()
    with_two = r.BrokerRegistrationChangeRecord(
        broker_id=2, broker_epoch=200, log_dirs=[directory(2), b"o" * 16]
    )
    cluster.write(with_two)
    failed = beat(2, 200, offline_log_dirs=[directory(2)])
    sizes = whole(cluster, decide_heartbeat, failed)
    assert max(sizes) <= RECORDS_MAX
    assert len(sizes) == ceil(MANY / FIRST_PARTITIONS)
    assert cluster.state.image.brokers[2].log_dirs == (b"o" * 16,)
    assert led_by(cluster) == {1}


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("reason", ["registration", "unregistration", "directory"])
def test_slices_do_not_check_the_partitions_of_earlier_slices_again(
    elr: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions without another replica stay the broker's, and are not in the way."""
    cluster = cluster_of(elr=elr, replicas=(2,))
    failed_dir, other_dir, topic_id = b"f" * 16, b"o" * 16, cluster.state.image.topic_ids["large"]
    cluster.write(
        r.BrokerRegistrationChangeRecord(
            broker_id=2, broker_epoch=200, log_dirs=[failed_dir, other_dir]
        )
    )
    for number in range(MANY // 2, MANY):
        cluster.write(
            r.PartitionChangeRecord(
                partition_id=number, topic_id=topic_id, directories=[failed_dir]
            )
        )
    decide: Any
    decide, request = {
        "registration": (decide_register_broker, register(2, log_dirs=[failed_dir, other_dir])),
        "unregistration": (decide_unregister_broker, UnregisterBrokerRequest(broker_id=2)),
        "directory": (decide_heartbeat, beat(2, 200, offline_log_dirs=[failed_dir])),
    }[reason]
    checked_count = 0
    with_member = PartitionIndex.with_member

    def count_checked(index: PartitionIndex, broker: int) -> Iterator[Any]:
        nonlocal checked_count
        for key in with_member(index, broker):
            checked_count += 1
            yield key

    monkeypatch.setattr(PartitionIndex, "with_member", count_checked)
    sizes = whole(cluster, decide, request)
    assert len(sizes) >= MANY // 2 / FIRST_PARTITIONS
    # Once in its slice, once by the last decision, once for the queue of the others' updates.
    assert checked_count <= 3 * MANY + len(sizes)


def test_controlled_shutdown_waits_for_leaders_that_move_beside_the_slices() -> None:
    """Invariant 108: a reassignment takes a partition from the stopping broker before its slice."""
    cluster = cluster_of()
    leave = beat(2, 200, want_shut_down=True)
    cluster.do(decide_heartbeat, leave)
    last = MANY - 1
    change = cluster.state.change(cluster.state.image.topic_ids["large"], last)
    change.isr = [1]
    record = change.build()
    update_leaders(cluster)
    assert cluster.partition("large", last).leader == 1
    cluster.write(record)
    moved = cluster.state.next_offset - 1
    cluster.do(decide_heartbeat, leave)
    for offset, may_stop in ((moved - 1, False), (moved, True)):
        for other in (1, 3):
            cluster.do(decide_heartbeat, beat(other, other * 100, current_metadata_offset=offset))
        assert cluster.do(decide_heartbeat, leave).should_shut_down is may_stop


def test_directory_that_fails_with_the_unfencing_leads_nothing() -> None:
    """No replica in it leads, not even by an unclean election without another candidate."""
    cluster = Cluster((1, 2))
    cluster.write(
        r.ConfigRecord(
            resource_type=BROKER,
            resource_name="",
            name="unclean.leader.election.enable",
            value="true",
        ),
        r.BrokerRegistrationChangeRecord(
            broker_id=2, broker_epoch=200, log_dirs=[directory(2), b"o" * 16]
        ),
    )
    topic_id = cluster.topic("large", [1, 2])
    alone = r.PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[1])
    cluster.fence(2, alone)
    cluster.fence(1)
    assert cluster.partition("large").leader == -1
    reply = cluster.do(decide_heartbeat, beat(2, 200, offline_log_dirs=[directory(2)]))
    assert not reply.is_fenced
    assert cluster.partition("large").leader == -1


def test_broker_of_many_partitions_is_unregistered_in_slices() -> None:
    cluster = cluster_of(12_000)
    sizes = whole(cluster, decide_unregister_broker, UnregisterBrokerRequest(broker_id=2))
    assert max(sizes) <= RECORDS_MAX
    assert 2 not in cluster.state.image.brokers
    assert (led_by(cluster), in_sync(cluster)) == ({1}, {(1,)})


@pytest.mark.parametrize("step", ["heartbeat", "shutdown", "fencing", "unfencing", "balance"])
def test_work_for_one_broker_does_not_grow_with_the_partitions_of_others(step: str) -> None:
    def work(count: int) -> int:
        cluster = cluster_of(count)
        state = cluster.state
        assert len(state.index.with_member(3)) == 0
        if step == "unfencing":
            fence(cluster, 3)
            return calls_in(lambda: decide_heartbeat(state, beat(3, 300)))
        if step == "fencing":
            cluster.now += 10
            for other in (1, 2):
                cluster.do(decide_heartbeat, beat(other, other * 100))
            return calls_in(lambda: decide_fence_stale(state, None))
        if step == "balance":
            return calls_in(lambda: at_once(decide_rebalance_leaders(state, None)))
        leave = beat(3, 300, want_shut_down=step == "shutdown")
        return calls_in(lambda: decide_heartbeat(state, leave))

    assert work(3_000) == work(3)


def test_applying_a_change_of_one_partition_does_not_grow_with_the_others() -> None:
    def work(count: int) -> int:
        cluster = cluster_of(count)
        topic = cluster.state.image.topic("large")
        assert topic is not None
        assert cluster.state.index.led_by(2)
        change = r.PartitionChangeRecord(partition_id=1, topic_id=topic.id, leader=1)
        return calls_in(lambda: cluster.write(change))

    assert work(3_000) - work(3) < 50, "only the depth of the maps"


def test_index_is_built_in_steps() -> None:
    cluster = cluster_of(3 * BUILD_PARTITIONS)
    cluster.state.reset(cluster.state.image, cluster.state.next_offset)
    steps = 1
    while not cluster.state.build_index():
        steps += 1
    assert steps >= 3
    assert cluster.state.index == PartitionIndex.of(cluster.state.image)
