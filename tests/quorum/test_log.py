"""Replication of the log, and the fate of records that only some nodes have (invariant 43)."""

from tests.quorum.conftest import Make
from tests.support.quorum.cluster import Cluster


def test_a_follower_that_was_away_catches_up(cluster: Cluster) -> None:
    """It fetches all records that it missed."""
    cluster.commit()
    away = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.kill(away)
    cluster.commit(30)
    cluster.start(away)
    cluster.catch_up(away)
    cluster.finish()


def test_uncommitted_records_of_an_isolated_leader_are_truncated(cluster: Cluster) -> None:
    """The old leader truncates the records that the next leader does not have."""
    cluster.commit(2)
    old, name = cluster.append_uncommitted()
    cluster.leader(but=old)
    cluster.commit(2)
    assert name in cluster.log_names(old)
    cluster.heal()
    cluster.catch_up(old)
    cluster.until(lambda: name not in cluster.log_names(old), "the old leader to truncate")
    cluster.finish()


def test_an_observer_follows_and_truncates(make: Make) -> None:
    """It stores uncommitted records like any follower, and truncates them if the leader changes."""
    cluster = make(others=(4,))
    cluster.commit(2)
    cluster.catch_up(4)
    old, name = cluster.append_uncommitted(hears=(4,))
    assert name in cluster.log_names(4)
    assert name not in cluster.committed_names(4)
    cluster.leader(but=old)
    cluster.isolate(old, 4)
    cluster.commit(2)
    cluster.catch_up(4)
    assert name not in cluster.log_names(4)
    cluster.finish()


def test_a_crash_of_all_loses_nothing_acknowledged(cluster: Cluster) -> None:
    """Records that a majority has synced are there when all nodes run again."""
    cluster.commit(5)
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        cluster.start(node)
    cluster.leader()
    cluster.catch_up()
    cluster.finish()


def test_a_damaged_batch_from_the_leader_is_refused_and_fetched_again(cluster: Cluster) -> None:
    """A bit that changes on the way costs another Fetch and nothing else."""
    cluster.commit()
    while True:
        leader = cluster.leader()
        follower = next(n for n in cluster.nodes if n != leader)
        cluster.damage(leader, follower, "value")
        cluster.commit()
        cluster.catch_up(follower)
        if cluster.is_damaged():
            break
    assert follower in cluster.running
    cluster.finish()
