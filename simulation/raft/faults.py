"""The faults of a simulated quorum: rounds of chaos, and the calm that follows each.

Chaos: crashes, lost disks, pauses, one-way network cuts, bad networks, damaged messages, slow,
failing, full and rotten disks, skewed clocks, snapshots, and actions of the operators
(:mod:`simulation.raft.operators`). In calm the quorum must elect, commit and agree.
"""

from collections.abc import Collection
from typing import Final

import attrs

from simulation.raft.node import SimNode
from simulation.raft.operators import Operators
from simulation.raft.world import RaftWorld
from simulation.scheduler import Violation

ELECTION_SECONDS: Final = 15.0
"""The time in which the quorum must elect a leader after faults have ended."""


@attrs.define(eq=False)
class FaultyQuorum(RaftWorld):
    """A simulated quorum whose faults can be started and ended."""

    operators: Operators = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.operators = Operators(self)

    # Chaos ----------------------------------------------------------------------------------
    def chaos(self, seconds: float, dead: Collection[int] = ()) -> None:
        """Cause faults of all kinds for some time; with ``dead`` nodes, operators do nothing."""
        until = self.scheduler.now + seconds
        pace = 0.02 + 0.6 * self.random.random() ** 2
        self.network.loss = self.random.choice([0.0, 0.0, 0.01, 0.1, 0.3])
        self.network.duplication = self.random.choice([0.0, 0.05, 0.2])
        self.network.slow_share = self.random.choice([0.0, 0.02, 0.1])
        self.network.corruption = self.random.choice([0.0, 0.0, 0.05])
        self.network.rejects = self.random.random() < 0.3
        for node in self.nodes.values():
            node.sync_max = self.random.choice([0.001, 0.005, 0.05, 0.5])
            if node.raft is None:
                node.clock_rate = self.random.choice([1.0, 1.0, 0.9, 1.1])
        alive = [node for node in self.nodes.values() if node.id not in dead]
        while self.scheduler.now < until:
            self.wait(pace * self.random.random())
            self._disturb(self.random.choice(alive))
            if not dead:
                self._operate(self.random.choice(alive))
            for _ in range(self.random.randrange(4)):
                self.propose()

    def _disturb(self, node: SimNode) -> None:
        dice = self.random.random()
        if dice < 0.12:
            self._crash_or_start(node)
        elif dice < 0.2:
            node.resume() if node.is_paused else node.pause()
        elif dice < 0.32:
            both = self.random.random() < 0.4
            inwards = self.random.random() < 0.5
            self.network.isolate(
                node.id, list(self.nodes), inwards=both or inwards, outwards=both or not inwards
            )
        elif dice < 0.42:
            self.network.cut.clear()
        elif dice < 0.6:
            self.take_snapshot(node)
        elif dice < 0.64 and node.raft is not None:
            node.storage.fail(self.random)
        elif dice < 0.7 and node.raft is not None:
            node.storage.die_after(self.random.randrange(8))

    def _operate(self, node: SimNode) -> None:
        """Run each of the operators' actions with a small probability."""
        dice = self.random.random()
        if dice < 0.03:
            self.operators.stop(node)
        elif dice < 0.05:
            self.operators.resign()
        elif dice > 0.9:
            self.operators.rot(node)
        elif not self.is_dynamic:
            if dice < 0.1:
                self.operators.upgrade()
        elif dice < 0.2:
            self.operators.change_voters()
        elif dice < 0.22:
            self.operators.lose_disk(node)
        elif dice < 0.24:
            self.operators.move()

    def _crash_or_start(self, node: SimNode) -> None:
        if node.raft is None:
            node.start()
            return
        node.note_down("crash")
        node.crash()
        if self.random.random() < 0.7:  # Most come back soon.
            self.start_later(node)

    # Calm -----------------------------------------------------------------------------------
    def calm(self, dead: Collection[int] = ()) -> None:
        """Stop all faults, but leave ``dead`` down; the quorum must elect, commit and agree.

        Rotten disks that no node has noticed are replaced only after that.
        """
        self._agree(dead)
        if self.operators.end_rot():
            self._agree(dead)

    def _agree(self, dead: Collection[int]) -> None:
        self.network.calm()
        alive = [node for node in self.nodes.values() if node.id not in dead]
        for node in alive:
            node.sync_max = 0.005
            if node.storage.repair():
                node.die()
            if node.raft is None:
                node.start()
            elif node.is_paused:
                node.resume()
        self.wait(ELECTION_SECONDS)
        end = self.propose()
        self.wait(3)
        leaders = self.leaders()
        if end is None or len(leaders) != 1:
            raise Violation(f"no single leader after calm: {[n.id for n in leaders]}")
        for node in alive:
            if node.raft is None or (node.raft.state.high_watermark or 0) < end:
                raise Violation(f"n{node.id} has not learnt of {end} in calm")
