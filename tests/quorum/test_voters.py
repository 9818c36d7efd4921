"""Changes of the voter set, KIP-853 (invariants 45, 46)."""

import attrs

from kwire.raftmeta.raft.voters import ReplicaKey
from tests.quorum.conftest import Make
from tests.support.quorum.cluster import Cluster, delete_log_start, directory_of, endpoints_of


def commit_voters(cluster: Cluster, *ids: int) -> None:
    """Wait until every running node knows these voters."""
    for node in cluster.running:
        cluster.until(
            lambda n=node: cluster.state(n).voters.ids == ids, f"node {node} to know {ids}"
        )


def test_an_observer_becomes_a_voter(make: Make) -> None:
    """It is added while it follows; from then on it is needed for a majority."""
    cluster = make((1, 2), others=(3,), is_dynamic=True)
    cluster.commit()
    cluster.catch_up(3)
    cluster.add(3)
    commit_voters(cluster, 1, 2, 3)
    removed = next(n for n in (1, 2) if n != cluster.leader())
    cluster.kill(removed)
    cluster.commit()
    cluster.finish()


def test_voter_that_moved_updates_its_address(make: Make) -> None:
    """UpdateRaftVoter: all others learn its new address from the log."""
    cluster = make(is_dynamic=True)
    cluster.commit()
    moved = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.stop(moved)
    node = cluster.nodes[moved]
    node.config = attrs.evolve(node.config, endpoints=endpoints_of(moved, 9999))
    cluster.start(moved)
    for other in cluster.nodes:
        cluster.until(
            lambda n=other: 9999 in [node.port for node in cluster.state(n).voters.nodes()],
            f"node {other} to know the new address",
        )
    cluster.finish()


def test_a_voter_is_removed(make: Make) -> None:
    """It becomes an observer; the majority is one of the remaining voters."""
    cluster = make(is_dynamic=True)
    cluster.commit()
    lost = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.remove(ReplicaKey(lost, directory_of(lost)))
    rest = tuple(n for n in (1, 2, 3) if n != lost)
    commit_voters(cluster, *rest)
    cluster.kill(lost)
    cluster.commit()
    cluster.finish()
    assert not cluster.is_leader(lost)


def test_the_leader_is_removed(make: Make) -> None:
    """It leads until its removal is committed, then resigns, and another voter leads."""
    cluster = make(is_dynamic=True)
    cluster.commit()
    leader = cluster.leader()
    cluster.remove(ReplicaKey(leader, directory_of(leader)))
    cluster.leader(but=leader)
    cluster.commit()
    commit_voters(cluster, *(n for n in (1, 2, 3) if n != leader))
    cluster.finish()
    assert cluster.leader() != leader


def test_a_voter_without_its_disk_does_not_vote_as_itself(make: Make) -> None:
    """A voter with a short log and one that lost its disk are two of three, but elect no leader."""
    cluster = make(is_dynamic=True)
    cluster.commit()
    leader = cluster.leader()
    behind, keeper = (n for n in cluster.nodes if n != leader)
    cluster.isolate(behind)
    committed = cluster.commit(3)
    leader = cluster.leader()
    keeper = next(n for n in (1, 2, 3) if n not in (leader, behind))
    cluster.kill(leader)
    cluster.kill(keeper)
    cluster.wipe(keeper)
    cluster.start(keeper)
    cluster.heal()
    goal = cluster.watch.sent[behind, "PreVote"] + 8
    cluster.until(lambda: cluster.watch.sent[behind, "PreVote"] >= goal, "it to ask often")
    assert cluster.find_leader() is None
    assert not set(committed) & set(cluster.committed_names(behind))
    cluster.start(leader)
    cluster.commit()
    cluster.catch_up()
    cluster.finish()


def test_a_voter_that_lost_its_disk_is_replaced(make: Make) -> None:
    """It is removed with its old directory id, and added with its new one."""
    cluster = make(is_dynamic=True)
    cluster.commit(2)
    lost = next(n for n in cluster.nodes if n != cluster.leader())
    old = cluster.nodes[lost].config.key
    cluster.kill(lost)
    cluster.wipe(lost)
    cluster.start(lost)
    cluster.remove(old)
    cluster.catch_up(lost)
    cluster.add(lost)
    commit_voters(cluster, 1, 2, 3)
    assert cluster.state(cluster.leader()).voters.has(cluster.nodes[lost].config.key)
    cluster.finish()


def test_kraft_version_is_raised(make: Make) -> None:
    """The configured voters move into the log, with the directory ids they reported."""
    cluster = make(others=(4,))
    cluster.commit()
    while True:
        ticket = cluster.upgrade(cluster.leader())
        cluster.until(lambda t=ticket: t.is_settled, "an answer")
        if ticket.outcome:
            break
        before = sum(cluster.watch.sent.values())
        cluster.until(lambda b=before: sum(cluster.watch.sent.values()) > b, "a request to be sent")
    for node in cluster.nodes:
        cluster.until(
            lambda n=node: cluster.state(n).history.kraft_version == 1, f"version 1 on {node}"
        )
    voters = cluster.state(4).voters
    assert {v.key for v in voters} == {ReplicaKey(n, directory_of(n)) for n in (1, 2, 3)}
    cluster.catch_up(4)
    cluster.add(4)
    commit_voters(cluster, 1, 2, 3, 4)
    cluster.finish()


def test_two_voters_become_one_and_two_again(make: Make) -> None:
    """The remaining voter commits alone; the other comes back as a voter and is needed."""
    cluster = make((1, 2), is_dynamic=True)
    cluster.commit()
    lost = next(n for n in cluster.nodes if n != cluster.leader())
    key = ReplicaKey(lost, directory_of(lost))
    cluster.remove(key)
    commit_voters(cluster, *(n for n in (1, 2) if n != lost))
    cluster.kill(lost)
    cluster.commit(2)
    cluster.start(lost)
    cluster.catch_up(lost)
    cluster.add(lost)
    commit_voters(cluster, 1, 2)
    cluster.finish()


def test_of_two_voters_the_leader_is_removed(make: Make) -> None:
    """The other one is then the only voter, and leads."""
    cluster = make((1, 2), is_dynamic=True)
    cluster.commit()
    leader = cluster.leader()
    cluster.remove(ReplicaKey(leader, directory_of(leader)))
    cluster.leader(but=leader)
    cluster.kill(leader)
    cluster.commit()
    cluster.finish()


def test_snapshot_has_the_voters(make: Make) -> None:
    """A node that loads a snapshot knows its voters, though their records are deleted."""
    cluster = make((1, 2), others=(3, 4), is_dynamic=True)
    cluster.kill(4)
    cluster.wipe(4)
    cluster.commit()
    cluster.catch_up(3)
    cluster.add(3)
    commit_voters(cluster, 1, 2, 3)
    delete_log_start(cluster)
    cluster.start(4)
    cluster.catch_up(4)
    assert cluster.state(4).log.start_offset > 0
    assert {voter.key for voter in cluster.state(4).voters} == {
        ReplicaKey(n, directory_of(n)) for n in (1, 2, 3)
    }
    for node in (1, 2, 3):
        cluster.kill(node)
        cluster.start(node)
        assert cluster.state(node).voters.ids == (1, 2, 3)
    cluster.finish()


def test_the_leader_dies_while_a_voter_is_added(make: Make) -> None:
    """All nodes have the change or none has it; when it is repeated, all have it."""
    cluster = make(others=(4,), is_dynamic=True)
    cluster.commit()
    cluster.catch_up(4)
    leader = cluster.leader()
    for other in cluster.nodes:
        if other not in (leader, 4):
            cluster.isolate(leader, other)
    cluster.ask(leader, cluster.add_request(4))
    cluster.until(
        lambda: 4 in cluster.state(leader).voters.ids or not cluster.is_leader(leader),
        "the leader to write it",
    )
    cluster.kill(leader)
    cluster.heal()
    cluster.leader(but=leader)
    cluster.start(leader)
    cluster.commit()
    cluster.catch_up()
    sets = {cluster.state(n).voters.ids for n in cluster.nodes}
    cluster.until(
        lambda: len({cluster.state(n).voters.ids for n in cluster.nodes}) == 1, f"one of {sets}"
    )
    if 4 not in cluster.state(1).voters.ids:
        cluster.add(4)
    commit_voters(cluster, 1, 2, 3, 4)
    cluster.finish()
