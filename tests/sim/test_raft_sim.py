"""The quorum under simulation: a few seeds here, as many as one likes with ``scripts/sim.py``."""

import os

import pytest

from simulation.raft.mutations import MUTATIONS, Mutation
from simulation.raft.sim import RaftSim, SimFailure, simulate
from tests.support.long_runs import parameters
from tests.support.sim.seeds import todays_seeds

EVENTS = int(os.environ.get("KWIRE_SIM_EVENTS", "3000"))
FIRST = todays_seeds(1).start
MUTATION_SEEDS = 100
"""Each of some 4,000 events: the bound within which a mistake has to be found."""
RARE = (
    "append-damaged",
    "deliver-rotten-batches",
    "never-resign",
    "pre-vote-always",
    "vote-for-shorter-log",
    "serve-rotten-batches",
    "serve-rotten-snapshots",
    "count-strangers",
    "voters-survive-truncation",
    "ignore-directory-id",
    "install-before-sync",
    "skip-pre-vote",
    "trust-page-cache",
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(12))
def test_invariants_hold(seed: int) -> None:
    """Invariants 42 to 46 after every step; 110 after every round of faults.

    42: one leader an epoch, one vote an epoch, both known after a restart; 43: what is committed is
    held by a majority and is equal everywhere; 44: a majority elects, also with the minority dead;
    45: a voter with an empty disk costs nothing; 46: one voter at a time.
    """
    assert simulate(seed, EVENTS).scheduler.events >= EVENTS


def test_same_seed_same_trace() -> None:
    """Invariant 110: a failure can be had again from its seed."""

    def trace(seed: int) -> str:
        sim = RaftSim.of(seed, trace_length=100_000)
        sim.run(1000)
        return sim.describe()

    assert trace(FIRST) == trace(FIRST)
    assert trace(FIRST) != trace(FIRST + 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", parameters(MUTATIONS, RARE))
def test_the_simulation_catches(mutation: Mutation) -> None:
    """A simulation that cannot fail shows nothing; it finds each mistake from any seed."""
    with mutation.active():
        for seed in range(FIRST, FIRST + MUTATION_SEEDS):
            try:
                simulate(seed, 4000, trace_length=10)
            except SimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}, from seed {FIRST} on")
