"""State of a node after a restart, and the damage with which it starts (invariant 42)."""

import pytest

from tests.quorum.conftest import Make, with_files
from tests.support.quorum.cluster import Cluster

LONG_S = 100.0
"""A fetch timeout that does not run out: no node becomes a candidate during the test."""


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_a_restart_keeps_vote_and_epoch(make: Make, is_dynamic: bool) -> None:
    """A voter that was down has the same epoch, and the candidate of its vote."""
    cluster = make(is_dynamic=is_dynamic, fetch_timeout_s=LONG_S)
    cluster.commit()
    leader = cluster.leader()
    voter = next(n for n in cluster.nodes if n != leader)
    cluster.catch_up(voter)
    for node in cluster.nodes:
        cluster.isolate(node)
    before = cluster.state(voter).election
    cluster.kill(voter)
    cluster.start(voter)
    after = cluster.state(voter).election
    assert (after.epoch, after.leader_id) == (before.epoch, before.leader_id)
    if before.voted is not None:
        assert after.voted is not None
        vote = after.voted if is_dynamic else before.voted  # version 0 of the file has no directory
        assert (after.voted.id, vote) == (before.voted.id, before.voted)
    cluster.finish()


@with_files
def test_a_torn_batch_at_the_end_of_the_log_is_cut(cluster: Cluster) -> None:
    """The batch was never acknowledged; the batches before it stay."""
    cluster.commit(3)
    cluster.catch_up()
    torn = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.kill(torn)
    storage = cluster.nodes[torn].storage
    whole = storage.cache.batches[-1][2]
    storage.tear(whole[: len(whole) // 2])
    cluster.start(torn)
    cluster.catch_up(torn)
    cluster.finish()


@with_files
@pytest.mark.parametrize("damaged", [b"", b"{", b'{"leaderId":1}'], ids=["empty", "cut", "short"])
def test_a_node_with_a_damaged_quorum_state_does_not_start(
    cluster: Cluster, damaged: bytes
) -> None:
    """It has lost the candidate of its vote; the others go on without it."""
    cluster.commit()
    node = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.kill(node)
    storage = cluster.nodes[node].storage
    sound = storage.disk.read(f"{storage.directory}/quorum-state")
    storage.overwrite("quorum-state", damaged)
    with pytest.raises((ValueError, BaseExceptionGroup)):
        cluster.start(node)
    cluster.commit()
    storage.overwrite("quorum-state", sound)
    cluster.finish()
