"""The controller under simulation: a few seeds here, as many as one likes with the settings."""

import os

import pytest

from simulation.controller.mutations import MUTATIONS
from simulation.controller.sim import ControllerSim, simulate
from simulation.raft.mutations import Mutation
from simulation.raft.sim import SimFailure
from tests.support.sim.seeds import todays_seeds

STEPS = int(os.environ.get("KWIRE_SIM_EVENTS", "600"))
SEEDS = todays_seeds(12)
MUTATION_SEEDS = 40


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold(seed: int) -> None:
    """Invariants 47 and 48 among them: ids are given once, what is asked again is done once."""
    sim = simulate(seed, STEPS)
    assert sim.world.checks.elections or len(sim.world.brokers) == 1


def test_same_seed_same_story() -> None:
    def story(seed: int) -> str:
        sim = ControllerSim.of(seed)
        sim.run(200)
        return sim.describe()

    assert story(7) == story(7)
    assert story(7) != story(8)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_the_simulation_catches(mutation: Mutation) -> None:
    """A simulation that cannot fail shows nothing."""
    with mutation.active():
        for seed in range(SEEDS.start, SEEDS.start + MUTATION_SEEDS):
            try:
                simulate(seed, 400)
            except SimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}")
