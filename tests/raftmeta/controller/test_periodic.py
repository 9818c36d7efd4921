"""Periodic tasks of the controller."""

from typing import Any

import pytest
import trio
import trio.testing

from kwire.configs.resource_types import BROKER
from kwire.raftmeta.controller.broker_sessions import BrokerSessions
from kwire.raftmeta.controller.brokers import decide_heartbeat
from kwire.raftmeta.controller.configs import SET, decide_incremental_alter
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from simulation.raft.quorums import TestClock
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.one_leader import OneLeader, active_controller
from tests.support.raftmeta.requests import alter, beat

PATIENT = {"broker_session_timeout_ms": "3600000"}
"""Session timeout longer than the tests: no broker sends heartbeats here."""


async def leaders_after(cluster: Cluster, *seconds: float) -> list[int]:
    """Return the leader of ``t`` after each pause, from when the controller becomes active."""
    controller = active_controller(OneLeader(at_once=True), cluster)
    leaders = []
    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        for pause in seconds:
            await trio.sleep(pause)
            partition: Any = controller.state.image.partition("t", 0)
            leaders.append(partition.leader)
        nursery.cancel_scope.cancel()
    return leaders


async def test_preferred_leaders_are_elected_periodically(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """auto.leader.rebalance.enable, every leader.imbalance.check.interval.seconds."""
    for enabled, expected in (("true", [2, 1]), ("false", [2, 2])):
        cluster = Cluster(
            (1, 2),
            auto_leader_rebalance_enable=enabled,
            leader_imbalance_check_interval_seconds="100",
            **PATIENT,
        )
        cluster.topic("t", [2, 1])
        cluster.write(*reorder_replicas(cluster))
        assert await leaders_after(cluster, 99, 2) == expected


def reorder_replicas(cluster: Cluster) -> list[Any]:
    change = cluster.state.change(cluster.state.image.topic_ids["t"], 0)
    change.replicas = [1, 2]
    return [change.build()]


async def test_growth_of_the_quorum_is_noticed_without_a_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The only controller waits for it: then its broker's session and the no-ops begin."""
    quorum = OneLeader(at_once=True)
    quorum.is_alone = True
    cluster = Cluster((1,), metadata_max_idle_interval_ms="500", **PATIENT)
    controller = active_controller(quorum, cluster)
    ended: list[float] = []

    async def wait_replaceable() -> None:
        await controller.wait_replaceable()
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        nursery.start_soon(wait_replaceable)
        await trio.sleep(10)
        assert (ended, quorum.written) == ([], [])
        quorum.is_alone = False
        for on_changed in quorum.voters_listeners:
            on_changed()
        await trio.sleep(1)
        assert ended == [10]
        assert quorum.written
        nursery.cancel_scope.cancel()


async def test_unclean_election_allowed_at_run_time_elects_for_leaderless_partitions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Set at run time, it counts for what is leaderless already, within five minutes."""
    for allowed, expected in (("true", [-1, 2]), ("false", [-1, -1])):
        cluster = Cluster(
            (1, 2),
            leader_imbalance_check_interval_seconds="10",
            broker_early_fencing_enable="false",
            **PATIENT,
        )
        cluster.topic("t", [1, 2])
        for broker in (2, 1):
            cluster.fence(broker)
        cluster.unfence(2)
        setting = ("unclean.leader.election.enable", SET, allowed)
        cluster.do(decide_incremental_alter, alter(BROKER, "", setting))
        assert await leaders_after(cluster, 299, 2) == expected


async def test_controller_that_may_have_been_replaced_waits_before_it_decides_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own decisions without records fail meanwhile, and other tasks must go on."""
    quorum = OneLeader(at_once=True)
    asked_at: list[float] = []

    def may_be_replaced(now: float) -> bool:
        asked_at.append(trio.current_time())
        return len(asked_at) < 1000 and trio.current_time() < 2

    monkeypatch.setattr(quorum, "may_be_replaced", may_be_replaced)
    cluster = Cluster((1, 2), broker_early_fencing_enable="false", **PATIENT)
    cluster.topic("t", [1, 2])
    for broker in (2, 1):
        cluster.fence(broker)
    cluster.unfence(2)
    controller = active_controller(quorum, cluster)
    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert not controller.state.leader_update_queue
    assert 2 <= max(asked_at) < 3, "it goes on soon after"
    assert len(asked_at) < 100


async def test_records_do_not_make_the_controller_search_the_sessions(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session ends before the first one did when it was looked for; that one is still fenced."""
    searches: list[float] = []
    deadline: Any = vars(BrokerSessions)["deadline"]

    def count_searches(sessions: BrokerSessions) -> Any:
        searches.append(trio.current_time())
        return deadline.fget(sessions)

    monkeypatch.setattr(BrokerSessions, "deadline", property(count_searches))
    cluster = Cluster((1, 2), broker_session_timeout_ms="9000")
    controller = active_controller(OneLeader(at_once=True), cluster)
    async with trio.open_nursery() as nursery:
        await nursery.start(PeriodicTasks(controller, TestClock()).run)
        for _ in range(8):
            await trio.sleep(1)
            for _ in range(100):
                controller.append_no_op()
                await trio.lowlevel.checkpoint()
            await controller.call(decide_heartbeat, beat(1, 100))
        assert len(searches) < 5
        await trio.sleep(1.1)
        fenced = {broker.id for broker in controller.state.image.brokers.values() if broker.fenced}
        assert fenced == {2}
        nursery.cancel_scope.cancel()
