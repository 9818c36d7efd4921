"""A simulation of ISR changes that overtake the metadata, from one seed.

A leader hears of the same change of its ISR twice, by the controller's answer to its proposal and
by the metadata, and in any order: metadata are published late, several commits at once, and applied
item by item. Meanwhile min.insync.replicas changes, replicas are moved, brokers and controllers
end. :mod:`simulation.isr.checks` checks after each step.
"""

from collections import deque
from itertools import accumulate
from random import Random
from typing import Final

import attrs

from simulation.isr import steps
from simulation.isr.broker import stopping_after_each_item
from simulation.isr.cluster import Cluster
from simulation.raft.sim import SimFailure

_STEPS: Final = [step for _, step in steps.STEPS]
_STEP_S: Final = (0.05, 0.05, 0.5)
"""The longest times that pass between two steps."""
_BIASES: Final = (0.3, 1.0, 1.0, 3.0)
"""The factors by which a seed has a step more or less often: rare combinations need both."""


@attrs.define(eq=False)
class IsrSim:
    """One simulated cluster, from one seed."""

    seed: int
    cluster: Cluster
    weights: list[float]
    """The cumulative weights of the steps."""
    taken_count: int = 0

    @classmethod
    def of(cls, seed: int, *, trace_length: int = 300) -> "IsrSim":
        random = Random(seed)
        weights = list(accumulate(weight * random.choice(_BIASES) for weight, _ in steps.STEPS))
        cluster = Cluster.of(random)
        cluster.world.lines = deque(maxlen=trace_length)
        return cls(seed, cluster, weights)

    def run(self, count: int) -> None:
        """Take this many steps."""
        cluster = self.cluster
        world, machines = cluster.world, list(cluster.machines.values())
        for _ in range(count):
            self.taken_count += 1
            world.now += world.random.random() * world.random.choice(_STEP_S)
            (step,) = world.random.choices(_STEPS, cum_weights=self.weights)
            step(cluster, world.random.choice(machines))
            cluster.end_step()

    def describe(self) -> str:
        """Return the text for a failure: the seed, the last events, and the brokers."""
        processes = "\n".join(map(str, self.cluster.world.brokers.values()))
        again = f"scripts/sim.py --isr --seed {self.seed} --events {max(self.taken_count, 1)}"
        return f"seed={self.seed} again with: {again}\n{self.cluster.world.story()}\n{processes}"


def simulate(seed: int, count: int, *, trace_length: int = 300) -> IsrSim:
    """Run one seed; raise :class:`SimFailure` with the trace if a check fails."""
    with stopping_after_each_item():
        sim = IsrSim.of(seed, trace_length=trace_length)
        try:
            sim.run(count)
        except Exception as error:
            raise SimFailure(f"{type(error).__name__}: {error}\n{sim.describe()}") from error
    return sim
