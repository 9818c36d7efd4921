"""A leader whose disk rots, in a simulated quorum in which a follower needs what rotted."""

import pytest

from kwire.raftmeta.storage import damage, snapshot_pieces
from simulation.raft.drills import rotten_leader
from simulation.raft.sim import RaftSim
from simulation.scheduler import Violation

SEEDS = (1, 3, 17, 18)
"""Without the leader's look at what it serves, each leaves a follower behind for ever."""


def run_drill(seed: int) -> bool:
    """Start a quorum and let its leader's disk rot; return whether it was one for that."""
    sim = RaftSim.of(seed)
    for node in sim.nodes.values():
        node.start()
    sim.calm()
    return rotten_leader(sim)


@pytest.mark.parametrize("seed", SEEDS)
def test_another_voter_leads_when_the_leaders_disk_rots(seed: int) -> None:
    """Invariant 44: the follower that needs the rotten batch gets it from the next leader."""
    assert run_drill(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_leader_that_serves_what_rotted_is_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 44: the follower does not get further, and the drill reports it."""
    monkeypatch.setattr(damage, "check_log", lambda *_: None)
    monkeypatch.setattr(snapshot_pieces, "_check", lambda *_, **__: None)
    with pytest.raises(Violation, match="has not learnt of"):
        run_drill(seed)
