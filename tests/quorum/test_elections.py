"""Elections and resignations of the quorum's leader (invariants 42, 44)."""

from kwire.raftmeta.raft.roles import Leader
from tests.quorum.conftest import Make
from tests.support.quorum.cluster import Cluster

LONG_S = 100.0
"""A fetch timeout longer than what a scenario may take: nothing then happens because of it."""


def test_first_election(cluster: Cluster) -> None:
    """After the first start a majority elects one leader; it commits, and all nodes follow it."""
    cluster.commit(3)

    def nodes_agree() -> bool:
        leaders = {(cluster.state(n).epoch, cluster.state(n).leader_id) for n in cluster.nodes}
        return len(leaders) == 1 and leaders == {(cluster.state(1).epoch, cluster.find_leader())}

    cluster.until(nodes_agree, "all to know who leads")
    cluster.finish()


def test_leader_killed(cluster: Cluster) -> None:
    """The others elect a leader that has every acknowledged record."""
    cluster.commit(3)
    first = cluster.leader()
    cluster.kill(first)
    second = cluster.leader(but=first)
    assert cluster.has_all(second)
    cluster.commit()
    cluster.finish()


def test_leaders_killed_one_after_the_other(cluster: Cluster) -> None:
    """Each comes back with its log; no acknowledged record is ever missing."""
    for _ in range(3):
        cluster.commit(2)
        leader = cluster.leader()
        cluster.kill(leader)
        cluster.leader(but=leader)
        cluster.start(leader)
    cluster.finish()


def test_leader_stopped_in_order(make: Make) -> None:
    """EndQuorumEpoch lets the others elect without waiting for their fetch timeout."""
    cluster = make(fetch_timeout_s=LONG_S)
    cluster.commit()
    first = cluster.leader()
    cluster.stop(first)
    second = cluster.leader(but=first)
    assert cluster.state(second).config.fetch_timeout_s == LONG_S
    assert cluster.watch.sent[first, "EndQuorumEpoch"] > 0
    cluster.finish()


def test_a_leader_without_a_majority_resigns(cluster: Cluster) -> None:
    """Check quorum: the old leader acknowledges nothing, and the majority elects another."""
    leader, name = cluster.append_uncommitted()
    epoch = cluster.state(leader).epoch
    cluster.until(
        lambda: not isinstance(cluster.state(leader).role, Leader), "the cut-off leader to resign"
    )
    assert name not in cluster.committed_names(leader)
    assert cluster.state(cluster.leader(but=leader)).epoch > epoch
    cluster.commit()
    cluster.finish()


def test_voter_cut_off_from_its_leader_alone_disturbs_no_other(make: Make) -> None:
    """Pre-vote: its requests are refused, however often it sends them; leader and epoch stay.

    On a machine so busy that the others lose the leader too, the scenario begins again.
    """
    cluster = make()
    while True:
        cluster.commit()
        leader = cluster.leader()
        epoch = cluster.state(leader).epoch
        lonely = next(n for n in cluster.nodes if n != leader)
        third = next(n for n in cluster.nodes if n not in (leader, lonely))
        request_count = cluster.watch.sent[lonely, "PreVote"]
        candidacy_count = cluster.watch.stood[lonely]
        others = cluster.watch.sent[third, "PreVote"]
        cluster.isolate(lonely, leader)
        cluster.until(
            lambda n=lonely, before=request_count: cluster.watch.sent[n, "PreVote"] >= before + 6,
            "the lonely one to ask",
        )
        cluster.heal()
        cluster.commit()
        cluster.catch_up(lonely)
        if cluster.watch.sent[third, "PreVote"] == others:
            break
    assert cluster.watch.stood[lonely] == candidacy_count
    assert (cluster.leader(), cluster.state(leader).epoch) == (leader, epoch)
    cluster.finish()


def test_follower_that_only_receives_disturbs_no_other(cluster: Cluster) -> None:
    """Cut in one direction: its requests are lost, so it gets no responses until that heals."""
    cluster.commit()
    leader = cluster.leader()
    deaf = next(n for n in cluster.nodes if n != leader)
    before = cluster.watch.sent[deaf, "Fetch"]
    cluster.cut(deaf, leader)
    cluster.until(
        lambda: (
            cluster.watch.sent[deaf, "Fetch"] + cluster.watch.sent[deaf, "PreVote"] > before + 4
        ),
        "it to try",
    )
    cluster.commit(2)
    cluster.heal()
    cluster.catch_up(deaf)
    cluster.finish()


def test_leader_that_receives_nothing_is_replaced(cluster: Cluster) -> None:
    """Cut in one direction: it still sends, but no Fetch reaches it, so it resigns."""
    cluster.commit()
    leader = cluster.leader()
    for other in cluster.nodes:
        if other != leader:
            cluster.cut(other, leader)
    cluster.leader(but=leader)
    cluster.commit()
    cluster.finish()


def test_paused_leader_follows_its_successor(cluster: Cluster) -> None:
    """It acknowledges nothing of its old epoch when it comes back."""
    cluster.commit()
    first = cluster.leader()
    epoch = cluster.state(first).epoch
    cluster.pause(first)
    second = cluster.leader(but=first)
    cluster.commit(2)
    cluster.resume(first)
    cluster.catch_up(first)
    assert cluster.state(first).epoch >= cluster.state(second).epoch > epoch
    cluster.finish()


def test_without_a_majority_nothing_is_acknowledged(cluster: Cluster) -> None:
    """One of three appends alone; its records count only if a later leader has them."""
    cluster.commit()
    leader = cluster.leader()
    for other in cluster.nodes:
        if other != leader:
            cluster.kill(other)
    ticket = cluster.append(leader, cluster.next_name())
    cluster.until(lambda: ticket.is_settled, "the leader to give up")
    assert ticket.outcome is None
    cluster.finish()


def test_two_of_five_may_be_lost(make: Make) -> None:
    """Three are a majority; when the other two are back, all nodes have all records."""
    cluster = make((1, 2, 3, 4, 5))
    cluster.commit()
    for _ in range(2):
        cluster.kill(cluster.leader())
        cluster.commit()
    assert len(cluster.running) == 3
    cluster.finish()
