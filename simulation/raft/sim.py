"""A simulation of a whole quorum under faults of all kinds, from one seed.

Rounds of chaos (:mod:`simulation.raft.faults`) are each followed by calm, in which the quorum
must elect, commit and agree, and by drills (:mod:`simulation.raft.drills`).
:mod:`simulation.raft.checks` checks every step.
"""

import attrs

from simulation.raft import drills as raft_drills
from simulation.raft.faults import FaultyQuorum
from simulation.raft.node import SimNode

DRILL_SHARE = 0.9
"""The probability that a drill follows a period of calm."""
FIRST_SHARE = 0.7
"""The probability that a run starts with a drill."""


@attrs.define(eq=False)
class RaftSim(FaultyQuorum):
    """One simulated quorum, run through rounds of chaos, calm and drills."""

    def run(self, events: int) -> None:
        """Run rounds of chaos and calm until ``events`` events have happened."""
        for node in self.nodes.values():
            if node.incarnation == 0:
                node.start()
        if self.random.random() < FIRST_SHARE:
            self.calm()
            self.random.choice(raft_drills.FIRST)(self)
        while self.scheduler.events < events:
            self.chaos(2 + 20 * self.random.random() ** 2)
            self.calm()
            if self.random.random() < DRILL_SHARE:
                drills = self.random.sample(raft_drills.DRILLS, len(raft_drills.DRILLS))
                if self.random.random() < 0.8:
                    drills = [self.random.choice(raft_drills.SELDOM), *drills]
                any(drill(self) for drill in drills)

    def describe(self) -> str:
        """Return the text for a failure: the seed and one line per event."""
        states = "\n".join(self._state_of(node) for node in self.nodes.values())
        return f"seed={self.seed} events={self.scheduler.events}\n{self.trace.text()}\n{states}"

    @staticmethod
    def _state_of(node: SimNode) -> str:
        if node.raft is None:
            return f"n{node.id} down"
        state = node.raft.state
        sets = [(offset, voters.ids) for offset, voters in state.history.sets[-3:]]
        role = f"{type(state.role).__name__}{attrs.asdict(state.role, recurse=False)}"
        return (
            f"n{node.id} {role} epoch={state.election} log={state.log.start_offset}"
            f"..{state.log.end_offset} hw={state.high_watermark} voters={sets}"
        )


class SimFailure(AssertionError):
    """A run that violated an invariant; the message has the invariant, the seed and the trace."""


def simulate(seed: int, events: int, *, trace_length: int = 400) -> RaftSim:
    """Run one seed; raise :class:`SimFailure` with the trace if an invariant does not hold."""
    sim = RaftSim.of(seed, trace_length=trace_length)
    try:
        sim.run(events)
    except Exception as error:
        kind = type(error).__name__
        raise SimFailure(f"{kind}: {error}\n{sim.describe()}\n{kind}: {error}") from error
    return sim
