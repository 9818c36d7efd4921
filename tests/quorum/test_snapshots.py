"""Snapshots: the log before them is deleted, and nodes that would need it fetch them."""

from tests.quorum.conftest import Make
from tests.support.quorum.cluster import Cluster, delete_log_start


def test_an_empty_node_fetches_a_snapshot_in_pieces(make: Make) -> None:
    """A node that needs deleted records fetches the snapshot, and then the log after it."""
    cluster = make(others=(4,))
    cluster.kill(4)
    cluster.wipe(4)
    delete_log_start(cluster)
    cluster.commit(3)
    before = cluster.watch.sent[4, "FetchSnapshot"]
    cluster.start(4)
    cluster.catch_up(4)
    assert cluster.watch.sent[4, "FetchSnapshot"] > before + 2
    assert cluster.state(4).log.start_offset > 0
    cluster.finish()


def test_a_voter_far_behind_fetches_a_snapshot_and_can_lead(cluster: Cluster) -> None:
    """After a snapshot it is a voter like the others."""
    cluster.commit()
    behind = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.kill(behind)
    delete_log_start(cluster)
    cluster.start(behind)
    cluster.catch_up(behind)
    other = next(n for n in cluster.nodes if n not in (behind, cluster.leader()))
    cluster.kill(other)
    cluster.commit(2)
    cluster.finish()


def test_the_leader_dies_while_a_snapshot_is_fetched(make: Make) -> None:
    """Chunks of one leader's snapshot are discarded; the next leader's is fetched as a whole."""
    cluster = make(others=(4,), snapshot_max_bytes=20)
    cluster.kill(4)
    cluster.wipe(4)
    delete_log_start(cluster)
    before = cluster.watch.sent[4, "FetchSnapshot"]
    cluster.start(4)
    cluster.until(lambda: cluster.watch.sent[4, "FetchSnapshot"] > before + 2, "the first pieces")
    leader = cluster.leader()
    cluster.kill(leader)
    cluster.leader(but=leader)
    cluster.catch_up(4)
    cluster.finish()


def test_a_node_starts_from_its_own_snapshot(cluster: Cluster) -> None:
    """After a restart the snapshot and the log after it hold the same as the whole log did."""
    delete_log_start(cluster)
    cluster.commit(2)
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        cluster.start(node)
    cluster.commit()
    cluster.finish()


def test_a_snapshot_that_was_damaged_on_its_way_is_fetched_again(make: Make) -> None:
    """It is checked before it replaces the log."""
    cluster = make(others=(4,))
    cluster.kill(4)
    delete_log_start(cluster)
    while True:
        cluster.wipe(4)
        cluster.damage(cluster.leader(), 4, "value")
        cluster.start(4)
        cluster.catch_up(4)
        if cluster.is_damaged():
            break
        cluster.kill(4)
    cluster.finish()
