"""Brokers whose process has ended, fenced before their sessions end."""

import math

import pytest

from kwire.raftmeta.controller.brokers import (
    begin_sessions,
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
)
from kwire.raftmeta.controller.early_fencing import decide_fence_ended
from kwire.raftmeta.controller.partitions import decide_elect_unclean
from kwire.raftmeta.controller.process_probe import EndedProcess, ProcessProbe
from kwire.raftmeta.storage.levels import ELR
from kwire.storage_format.format import feature_records
from tests.support.raftmeta.clusters import Cluster, directory
from tests.support.raftmeta.requests import beat, register

HERE = ("10.0.0.2", 9092)


def connected_probe() -> ProcessProbe:
    probe = ProcessProbe(2, 200, due=0.0)
    probe.on_accepted(HERE, 1.0)
    return probe


def end_process(cluster: Cluster, broker: int, epoch: int | None = None) -> bool:
    """Report that a broker's process ended; return whether the broker is fenced."""
    cluster.now += 0.1
    proof = EndedProcess(broker, broker * 100 if epoch is None else epoch, cluster.now - 0.05)
    is_fenced: bool = cluster.do(decide_fence_ended, proof)
    return is_fenced


# The proof.


def test_two_refusals_after_the_end_of_a_connection_prove_the_end_of_the_process() -> None:
    probe = connected_probe()
    assert probe.due == math.inf, "nothing is to be done while the connection is open"
    probe.on_ended(10.0)
    assert probe.due == 10.0
    probe.on_refused(10.0)
    assert probe.proof is None
    assert probe.due == 10.05
    probe.on_refused(10.05)
    assert probe.proof == EndedProcess(2, 200, refused_at=10.0)


def test_refusals_at_an_address_that_never_accepted_prove_nothing() -> None:
    probe = ProcessProbe(2, 200, due=0.0)
    for _ in range(9):
        probe.on_refused(probe.due)
    assert probe.proof is None
    assert probe.due < 30, "the broker may listen later"


@pytest.mark.parametrize("other", ["accepted", "failed"])
def test_other_answers_between_two_refusals_are_no_proof(other: str) -> None:
    probe = connected_probe()
    probe.on_ended(10.0)
    probe.on_refused(10.0)
    if other == "accepted":
        probe.on_accepted(HERE, 10.05)
        probe.on_ended(20.0)
    else:
        probe.on_failed(10.05)
        assert probe.address is None, "the name is looked up again"
        probe.on_accepted(HERE, 10.2)
        probe.on_ended(20.0)
    probe.on_refused(20.0)
    assert probe.proof is None


def test_refusals_at_the_same_moment_count_once() -> None:
    probe = connected_probe()
    probe.on_ended(10.0)
    probe.on_refused(10.0)
    probe.on_refused(10.01)
    assert probe.proof is None


def test_listener_that_accepts_and_closes_is_not_tried_without_pauses() -> None:
    probe, now, attempt_count = connected_probe(), 1.0, 0
    while now < 61.0:
        probe.on_ended(now)
        now = max(probe.due, now + 0.001)
        probe.on_accepted(HERE, now)
        attempt_count += 1
    assert attempt_count < 30
    assert probe.proof is None


# The decision.


def test_broker_whose_process_ended_is_fenced_at_once() -> None:
    cluster = Cluster()
    cluster.topic("t", [2, 1, 3])
    assert end_process(cluster, 2)
    assert cluster.state.image.brokers[2].fenced
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr) == (1, (1, 3))
    assert end_process(cluster, 2)
    assert cluster.kinds() == [], "it is fenced once"


def test_heartbeat_after_the_first_refusal_disproves_it() -> None:
    cluster = Cluster()
    cluster.now += 1
    proof = EndedProcess(2, 200, cluster.now - 0.05)
    cluster.do(decide_heartbeat, beat(2, 200))
    assert not cluster.do(decide_fence_ended, proof)
    assert not cluster.state.image.brokers[2].fenced


def test_new_active_controller_may_fence_by_a_proof_from_before_its_election() -> None:
    """Its sessions begin with its leadership, which is no heartbeat of the broker."""
    cluster = Cluster()
    proof = EndedProcess(2, 200, cluster.now)
    cluster.now += 1
    cluster.state.reset(cluster.state.image, cluster.state.next_offset)
    begin_sessions(cluster.state)
    assert cluster.do(decide_fence_ended, proof)


def test_end_of_an_earlier_process_fences_no_later_one() -> None:
    cluster = Cluster()
    end_process(cluster, 2, epoch=100)
    assert not cluster.state.image.brokers[2].fenced


def test_setting_turns_early_fencing_off() -> None:
    cluster = Cluster(broker_early_fencing_enable="false")
    assert not end_process(cluster, 2)
    assert not cluster.state.image.brokers[2].fenced


@pytest.mark.parametrize(("count", "fenced_count"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_at_most_half_of_the_brokers_are_fenced_early(count: int, fenced_count: int) -> None:
    brokers = tuple(range(1, count + 1))
    cluster = Cluster(brokers)
    assert [end_process(cluster, broker) for broker in brokers].count(True) == fenced_count
    cluster.now += 8.5
    for broker in brokers[-1:]:
        cluster.do(decide_heartbeat, beat(broker, broker * 100))
    cluster.now += 1
    while cluster.do(decide_fence_stale, None):
        pass
    serving = [b.id for b in cluster.state.image.brokers.values() if not b.fenced]
    assert serving == [*brokers[-1:]], "the sessions of the others decide"


def fail_over(cluster: Cluster) -> None:
    """Let another controller become active; it knows no heartbeats."""
    cluster.now += 0.5
    cluster.state.reset(cluster.state.image, cluster.state.next_offset)
    begin_sessions(cluster.state)


@pytest.mark.parametrize(("count", "fenced_count"), [(3, 1), (4, 2), (5, 2), (6, 3)])
def test_at_most_half_of_the_brokers_are_fenced_early_over_controllers(
    count: int, fenced_count: int
) -> None:
    """A new active controller counts those that the former one fenced."""
    brokers = tuple(range(1, count + 1))
    cluster = Cluster(brokers)
    fenced = []
    for broker in brokers:
        fenced.append(end_process(cluster, broker))
        fail_over(cluster)
    assert fenced.count(True) == fenced_count
    cluster.now += 9
    while cluster.do(decide_fence_stale, None):
        pass
    assert cluster.state.sessions.deadline == math.inf


def test_broker_that_a_former_controller_fenced_early_counts_until_its_heartbeat() -> None:
    cluster = Cluster((1, 2, 3))
    assert end_process(cluster, 1)
    fail_over(cluster)
    assert not end_process(cluster, 2)
    assert not cluster.do(decide_heartbeat, beat(1, 100)).is_fenced
    assert end_process(cluster, 2)


def test_broker_that_left_in_order_is_not_counted_by_a_new_controller() -> None:
    cluster = Cluster((1, 2, 3))
    cluster.topic("t", [1, 2, 3])
    leaving = beat(1, 100)
    leaving.want_shut_down = True
    for _ in range(3):
        for broker in (2, 3):
            cluster.do(decide_heartbeat, beat(broker, broker * 100))
        cluster.do(decide_heartbeat, leaving)
    assert cluster.state.image.brokers[1].fenced
    fail_over(cluster)
    assert end_process(cluster, 2)


def test_new_machine_takes_the_id_of_a_fenced_broker_after_a_failover() -> None:
    """A session that only counts refuses no registration."""
    cluster = Cluster((1, 2, 3))
    assert end_process(cluster, 1)
    fail_over(cluster)
    assert not cluster.state.sessions.is_valid(1, cluster.now)


@pytest.mark.parametrize("elr", [0, 1])
def test_unclean_leader_waits_also_under_a_new_controller(elr: int) -> None:
    """The former one may have fenced the broker early."""
    cluster = Cluster(unclean_leader_election_enable="true")
    cluster.write(*feature_records({ELR: elr}))
    cluster.topic("t", [2, 1])
    change = cluster.state.change(cluster.state.image.topic_ids["t"], 0)
    change.isr = [2]
    cluster.write(change.build())
    end_process(cluster, 2)
    fail_over(cluster)
    cluster.do(decide_elect_unclean, None)
    assert cluster.partition("t").leader == -1
    for _ in range(3):
        cluster.now += 3
        for broker in (1, 3):
            cluster.do(decide_heartbeat, beat(broker, broker * 100))
    cluster.do(decide_fence_stale, None)
    assert cluster.partition("t").leader == 1


def test_broker_that_was_fenced_wrongly_serves_again_with_its_next_heartbeat() -> None:
    cluster = Cluster()
    cluster.topic("t", [2])
    end_process(cluster, 2)
    assert cluster.partition("t").leader == -1
    assert not cluster.do(decide_heartbeat, beat(2, 200)).is_fenced
    assert cluster.partition("t").leader == 2
    cluster.now += 9
    cluster.do(decide_heartbeat, beat(1, 100))
    cluster.do(decide_heartbeat, beat(2, 200))
    cluster.do(decide_heartbeat, beat(3, 300))
    cluster.do(decide_fence_stale, None)
    assert cluster.kinds() == []


@pytest.mark.parametrize("elr", [0, 1])
def test_unclean_leader_waits_for_the_end_of_the_session(elr: int) -> None:
    """A broker that was fenced wrongly must not lose what only it has."""
    cluster = Cluster(unclean_leader_election_enable="true")
    cluster.write(*feature_records({ELR: elr}))
    cluster.topic("t", [2, 1])
    partition = cluster.partition("t")
    change = cluster.state.change(cluster.state.image.topic_ids["t"], 0)
    change.isr = [2]
    cluster.write(change.build())
    end_process(cluster, 2)
    cluster.do(decide_elect_unclean, None)
    assert cluster.partition("t").leader == -1
    for _ in range(3):
        cluster.now += 3
        cluster.do(decide_heartbeat, beat(1, 100))
        cluster.do(decide_heartbeat, beat(3, 300))
    assert cluster.state.sessions.deadline <= cluster.now
    cluster.do(decide_fence_stale, None)
    partition = cluster.partition("t")
    assert (partition.leader, partition.recovering) == (1, True)
    assert cluster.state.sessions.deadline > cluster.now


def test_unclean_leader_does_not_wait_for_a_broker_that_registered_again() -> None:
    """It may end again, or take long to catch up; the next periodic election is minutes away."""
    cluster = Cluster(unclean_leader_election_enable="true")
    cluster.topic("t", [2, 1])
    change = cluster.state.change(cluster.state.image.topic_ids["t"], 0)
    change.isr = [2]
    cluster.write(change.build())
    end_process(cluster, 2)
    ends_at = cluster.now + 9
    cluster.now += 3
    cluster.do(decide_register_broker, register(2, log_dirs=[directory(2)]))
    assert cluster.partition("t").leader == -1
    cluster.now = ends_at
    for broker in (1, 3):
        cluster.do(decide_heartbeat, beat(broker, broker * 100))
    assert cluster.state.sessions.deadline <= cluster.now
    cluster.do(decide_fence_stale, None)
    assert (cluster.partition("t").leader, cluster.partition("t").recovering) == (1, True)
