"""Replication under simulation: brokers with real logs, a controller, producers and faults."""

import os

import pytest

from kwire.simulation.replication.sim import ReplicationSim, simulate_replication
from tests.support.sim.seeds import todays_seeds

STEPS = int(os.environ.get("KWIRE_SIM_STEPS", "30"))
FIRST = todays_seeds(1).start


@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(8))
def test_acknowledged_records_survive_all_faults(seed: int) -> None:
    """Invariants 21, 23 and 30 all the time, 25, 26 and 35 when the faults are mended.

    21: every member of the ISR has what was acknowledged; 23: logs are equal below the high
    watermarks; 30: what a leader acknowledges is on all members of the ISR that the controller may
    have committed; 25 and 26: diverged logs become equal; 35: followers that caught up join.
    """
    sim = simulate_replication(seed, STEPS)
    assert all(sim.acknowledged.values())


def test_same_seed_has_the_same_course() -> None:
    """Invariant 110: a failure can be had again from its seed."""

    def course(seed: int) -> tuple[list[str], int]:
        sim: ReplicationSim = simulate_replication(seed, 5)
        return list(sim.trace), sim.events

    assert course(FIRST) == course(FIRST)
