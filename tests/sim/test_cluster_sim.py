"""The whole cluster under simulation: raft, controllers, brokers and clients in one world."""

import os

import pytest

from simulation.cluster.mutations import MUTATIONS
from simulation.cluster.sim import ClusterSim, simulate_cluster
from simulation.raft.mutations import Mutation
from simulation.raft.sim import SimFailure
from tests.support.sim.long_runs import parameters
from tests.support.sim.seeds import todays_seeds

ROUNDS = int(os.environ.get("KWIRE_SIM_ROUNDS", "2"))
FIRST = todays_seeds(1).start
MUTATION_SEEDS = 40
MUTATION_ROUNDS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(8))
def test_invariants_hold(seed: int) -> None:
    """Invariants 43, 48 and 49 after every step; 44 and 110 after every round of faults.

    43: images hold committed records alone; 48: what clients got acknowledged is in the
    committed log once; 49: every image is a prefix of the log, and no topic comes back; 44 and 110:
    with a minority dead all clients get answers within a bound.
    """
    sim = simulate_cluster(seed, ROUNDS)
    assert min(client.acknowledged for client in sim.clients) > 0


def test_same_seed_same_trace() -> None:
    """Invariant 110: a failure can be had again from its seed."""

    def trace(seed: int) -> list[str]:
        sim = ClusterSim.of(seed)
        sim.run(1)
        return sim.lines

    assert trace(FIRST) == trace(FIRST)
    assert trace(FIRST) != trace(FIRST + 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", parameters(MUTATIONS, ["commits-outlive-leadership"]))
def test_the_simulation_catches(mutation: Mutation) -> None:
    """A simulation that cannot fail shows nothing; it finds each mistake from any seed."""
    with mutation.active():
        for seed in range(FIRST, FIRST + MUTATION_SEEDS):
            try:
                simulate_cluster(seed, MUTATION_ROUNDS)
            except SimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}, from seed {FIRST} on")
