"""The simulation of ISR changes that overtake the metadata: the same seeds every day.

`tests/mutations/isr.py` lists mistakes in the product that these seeds detect.
`scripts/sim.py --isr --rotate` runs other seeds.
"""

from simulation.isr.broker import stopping_after_each_item
from simulation.isr.sim import IsrSim, simulate

STEPS = 1_200
SEEDS = range(1, 41)


def test_every_possible_leader_keeps_all_promises() -> None:
    """Invariants 22, 29, 30 and 39."""
    checks = [simulate(seed, STEPS).cluster.checks for seed in SEEDS]
    assert sum(each.acknowledged_count for each in checks) > 5 * len(SEEDS)
    assert sum(each.deletions for each in checks) > len(SEEDS)


def test_same_seed_same_story() -> None:
    def story(seed: int) -> str:
        with stopping_after_each_item():
            sim = IsrSim.of(seed)
            sim.run(300)
            return sim.describe()

    assert story(7) == story(7)
    assert story(7) != story(8)
