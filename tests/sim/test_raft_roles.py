"""The transitions between raft roles, under simulation."""

import pytest

from simulation.raft.sim import simulate
from tests.support.sim.raft_transitions import missing, recorded_changes

SEEDS = (31, 34, 38, 105, *range(1, 200))
"""The first four are enough; the others are for a simulation that draws otherwise."""


@pytest.mark.slow
def test_simulation_makes_every_legal_transition() -> None:
    """A transition that no run makes is not needed, or not tested."""
    with recorded_changes() as changes:
        for seed in SEEDS:
            simulate(seed, 3000, trace_length=10)
            if not missing(changes):
                return
    assert missing(changes) == []
