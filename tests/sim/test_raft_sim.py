"""The quorum under simulation: a few seeds here, as many as one likes with ``scripts/sim.py``."""

import os

import pytest

from kwire.testing.raft_mutations import MUTATIONS, Mutation
from kwire.testing.raft_sim import RaftSim, SimFailure, simulate
from kwire.testing.seeds import todays_seeds

EVENTS = int(os.environ.get("KWIRE_SIM_EVENTS", "3000"))
SEEDS = todays_seeds(12)
MUTATION_SEEDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold(seed: int) -> None:
    assert simulate(seed, EVENTS).scheduler.events >= EVENTS


def test_same_seed_same_trace() -> None:
    def trace(seed: int) -> str:
        sim = RaftSim.of(seed, trace_length=100_000)
        sim.run(1000)
        return sim.describe()

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_the_simulation_catches(mutation: Mutation) -> None:
    """A simulation that cannot fail shows nothing."""
    with mutation.active():
        for seed in range(mutation.first_seed, mutation.first_seed + MUTATION_SEEDS):
            try:
                simulate(seed, 4000, trace_length=10)
            except SimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}")
