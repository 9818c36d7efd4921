"""A simulation of the controller with faulty brokers and administrators, from one seed.

Rounds of chaos (:mod:`simulation.controller.steps`) are followed by calm, in which every
broker comes back, every partition gets its leader and every reassignment reaches its target.
:mod:`simulation.controller.checks` checks every record.
"""

from itertools import accumulate
from random import Random

import attrs

from kwire.raftmeta.controller.partitions import UNCLEAN
from simulation.controller import steps
from simulation.controller.checks import demand
from simulation.controller.world import World
from simulation.raft.sim import SimFailure

ROUND_STEPS = 150
_WEIGHTS = list(accumulate(weight for weight, _ in steps.STEPS))
_STEPS = [step for _, step in steps.STEPS]


@attrs.define(eq=False)
class ControllerSim:
    """One simulated cluster without network and data: the controller and its brokers."""

    seed: int
    world: World
    elr_later: bool
    taken: int = 0
    """The number of steps taken so far."""

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
            world.update_leaders()
        world.checks.on_data(world.is_alive)
        if world.random.random() < 0.1:
            world.checks.check_snapshot()

    def calm(self) -> None:
        """Stop all faults; after eight rounds of heartbeats the cluster must be healthy."""
        world = self.world
        world.note("calm")
        world.is_calm = True
        for process in world.brokers.values():
            process.silent = False
            if world.random.random() < 0.5:
                steps.restore_directory(world, process)
            process.missing.clear()  # The others are lost for good.
            if process.offline or process.stopping:
                steps.crash(world, process)
            steps.start(world, process)
        for _ in range(8):
            world.now += 3
            for process in world.brokers.values():
                steps.heartbeat(world, process)
                steps.assign_lost(world, process)
            steps.fence(world)
            world.update_leaders(whole=True)
            world.checks.check_leaders_are_active()
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
            partition = world.partition(place)
            is_in_sync = set(partition.isr) == set(partition.replicas)
            if partition.leader >= 0 and (partition.recovering or not is_in_sync):
                steps.report_isr(world, place, list(partition.replicas))

    def _wake_the_leaderless(self) -> None:
        """Request an unclean election, as an operator would, for partitions without a leader.

        These partitions must have no in-sync or eligible replica whose directory is left.
        """
        world = self.world
        for topic_id, number in steps.leaderless(world):
            partition = world.partition((topic_id, number))
            candidates = [
                replica
                for replica in partition.isr or partition.elr
                if not world.brokers[replica].lacks(partition.directory(replica))
            ]
            demand(not candidates, "no leader, though a replica may lead:", partition)
            topic = world.state.image.topics[topic_id]
            steps.request_election(world, topic, [number], UNCLEAN)
        for process in world.brokers.values():
            steps.assign_lost(world, process)

    def _check_calm(self) -> None:
        world = self.world
        world.checks.end_step()
        demand(all(map(world.is_alive, world.brokers)), "a broker does not serve in calm")
        for topic in world.state.image.topics.values():
            for number, partition in topic.partitions.items():
                name = f"{topic.name}-{number}"
                is_preferred = partition.leader == partition.replicas[0]
                demand(is_preferred, name, "not led as preferred", partition)
                is_in_sync = set(partition.isr) == set(partition.replicas)
                demand(is_in_sync, name, "not all in sync", partition)
                demand(not partition.is_reassigning, name, "is still reassigned", partition)
                for replica in partition.replicas:
                    is_lost = world.brokers[replica].lacks(partition.directory(replica))
                    demand(not is_lost, name, "is in a missing directory", partition)
        demand(not world.checks.targets, "did not end:", world.checks.targets)
        world.checks.check_snapshot()

    def describe(self) -> str:
        """Return the text for a failure: the seed, the last events, and the brokers."""
        processes = "\n".join(map(str, self.world.brokers.values()))
        images = "\n".join(map(str, self.world.state.image.brokers.values()))
        again = f"scripts/sim.py --controller --seed {self.seed} --events {max(self.taken, 1)}"
        return f"seed={self.seed} again with: {again}\n{self.world.story()}\n{processes}\n{images}"


def simulate(seed: int, count: int) -> ControllerSim:
    """Run one seed; raise :class:`SimFailure` with the trace if an invariant does not hold."""
    sim = ControllerSim.of(seed)
    try:
        sim.run(count)
    except Exception as error:
        raise SimFailure(f"{type(error).__name__}: {error}\n{sim.describe()}") from error
    return sim
