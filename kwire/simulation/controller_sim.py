"""A simulation of the controller with faulty brokers and administrators, from one seed.

Rounds of chaos (:mod:`kwire.simulation.controller_steps`) are followed by calm, in which every
broker comes back, every partition gets its leader and every reassignment reaches its target.
:mod:`kwire.simulation.controller_checks` checks every record.
"""

from itertools import accumulate
from random import Random

import attrs

from kwire.raftmeta.controller.partitions import UNCLEAN
from kwire.simulation import controller_steps as steps
from kwire.simulation.controller_checks import demand
from kwire.simulation.controller_world import World
from kwire.simulation.raft_sim import SimFailure

ROUND_STEPS = 150
_WEIGHTS = list(accumulate(weight for weight, _ in steps.STEPS))
_STEPS = [step for _, step in steps.STEPS]


@attrs.define(eq=False)
class ControllerSim:
    """One simulated cluster, without network and data: the controller and its brokers."""

    seed: int
    world: World
    elr_later: bool
    taken: int = 0
    """Steps so far."""

    @classmethod
    def of(cls, seed: int) -> "ControllerSim":
        random = Random(seed)
        world = World.of(random, random.choice((1, 2, 3, 4, 5)))
        elr = random.choice((0, 0, 1, 1, 2))
        steps.bootstrap(world, eligible=elr == 1)
        return cls(seed, world, elr == 2)

    def run(self, count: int) -> None:
        """Run rounds of chaos and calm until ``count`` steps have been taken."""
        while self.taken < count:
            for _ in range(min(ROUND_STEPS, count - self.taken)):
                self.taken += 1
                self._step()
            self.calm()
            if self.elr_later:
                steps.elr(self.world, self.world.brokers[1])

    def _step(self) -> None:
        world = self.world
        (step,) = world.random.choices(_STEPS, cum_weights=_WEIGHTS)
        if world.random.random() < 0.01:
            world.fail_over()
        step(world, world.random.choice(list(world.brokers.values())))
        world.checks.end_step()
        if world.random.random() < 0.8:
            world.sweep()
        world.checks.on_data(world.is_alive)
        if world.random.random() < 0.1:
            world.checks.snapshot()

    def calm(self) -> None:
        """Stop all faults; after eight rounds of heartbeats the cluster must be healthy."""
        world = self.world
        world.note("calm")
        world.is_calm = True
        for body in world.brokers.values():
            body.silent = False
            if body.offline or body.stopping:
                steps.crash(world, body)
            steps.start(world, body)
        for _ in range(8):
            world.now += 3
            for body in world.brokers.values():
                steps.heartbeat(world, body)
            steps.fence(world)
            world.sweep(whole=True)
            world.checks.nothing_left_to_sweep()
            self._catch_up()
            world.checks.on_data(world.is_alive)
        self._wake_the_leaderless()
        for _ in range(3):
            self._catch_up()
        steps.balance(world, world.brokers[1])
        self._check_calm()
        world.is_calm = False

    def _catch_up(self) -> None:
        """Let every leader report all replicas as in sync."""
        world = self.world
        for place in world.partitions_where(lambda p: p.leader >= 0):
            held = world.state.image.topics[place[0]].partitions[place[1]]
            if held.leader >= 0 and (set(held.isr) != set(held.replicas) or held.recovering):
                steps.tell_isr(world, place, list(held.replicas))

    def _wake_the_leaderless(self) -> None:
        """Request an unclean election, as an operator would, for partitions without a leader.

        Their ISR and ELR must be empty.
        """
        world = self.world
        for topic_id, number in steps.leaderless(world):
            held = world.state.image.topics[topic_id].partitions[number]
            demand(not held.isr and not held.elr, "nobody leads, though somebody may:", held)
            topic = world.state.image.topics[topic_id]
            steps.request_election(world, topic, [number], UNCLEAN)

    def _check_calm(self) -> None:
        world = self.world
        world.checks.end_step()
        demand(all(map(world.is_alive, world.brokers)), "a broker does not serve in calm")
        for topic in world.state.image.topics.values():
            for number, held in topic.partitions.items():
                name = f"{topic.name}-{number}"
                demand(held.leader == held.replicas[0], name, "not led as preferred", held)
                demand(set(held.isr) == set(held.replicas), name, "not all in sync", held)
                demand(not held.is_reassigning, name, "moves for ever", held)
        demand(not world.checks.aims, "a reassignment was forgotten", world.checks.aims)
        world.checks.snapshot()

    def describe(self) -> str:
        """Return the text for a failure: the seed, the last events, and the brokers."""
        bodies = "\n".join(map(str, self.world.brokers.values()))
        known = "\n".join(map(str, self.world.state.image.brokers.values()))
        again = f"scripts/sim.py --controller --seed {self.seed} --events {max(self.taken, 1)}"
        return f"seed={self.seed} again with: {again}\n{self.world.story()}\n{bodies}\n{known}"


def simulate(seed: int, count: int) -> ControllerSim:
    """Run one seed; raise :class:`SimFailure` with the trace if an invariant does not hold."""
    sim = ControllerSim.of(seed)
    try:
        sim.run(count)
    except Exception as error:
        raise SimFailure(f"{type(error).__name__}: {error}\n{sim.describe()}") from error
    return sim
