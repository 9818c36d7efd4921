"""Replication under simulation: brokers with real logs, a controller, producers and faults."""

import os

import pytest

from kwire.simulation.raft_mutations import Mutation
from kwire.simulation.replication.mutations import MUTATIONS
from kwire.simulation.replication.sim import (
    ReplicationSim,
    ReplicationSimFailure,
    simulate_replication,
)
from tests.support.sim.seeds import todays_seeds

STEPS = int(os.environ.get("KWIRE_SIM_STEPS", "30"))
MUTATION_SEEDS = 100
FIRST = todays_seeds(1).start


@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(8))
def test_acknowledged_records_survive_all_faults(seed: int) -> None:
    """Invariants 14, 21 to 26, 30, 32, 35, 36 and 41.

    All the time: 14, a leader's high watermark only grows; 21 and 22, every in-sync or eligible
    replica has what was acknowledged, so any of them may lead; 23, logs are equal below the high
    watermarks; 24, an epoch has one leader; 30, what a leader acknowledges is on all members of the
    ISR that the controller may have committed; 32, in the half of the runs that have eligible
    leader replicas the last in-sync replica may lose its tail. When the faults are mended: 25 and
    26, diverged logs become equal; 35, followers that caught up join; 36, reassignments complete.
    Connections are cut in both directions or, 41, in one.
    """
    sim = simulate_replication(seed, STEPS)
    assert any(sim.checks.acknowledged.values())


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_catches(mutation: Mutation) -> None:
    """A simulation that cannot fail shows nothing."""
    with mutation.active():
        for seed in range(FIRST, FIRST + MUTATION_SEEDS):
            try:
                simulate_replication(seed, 20)
            except ReplicationSimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}")


def test_same_seed_has_the_same_course() -> None:
    """Invariant 110: a failure can be had again from its seed."""

    def course(seed: int) -> tuple[list[str], int]:
        sim: ReplicationSim = simulate_replication(seed, 5)
        return list(sim.trace), sim.events

    assert course(FIRST) == course(FIRST)
