"""Mistakes in ISR changes that the simulation of overtaken metadata detects."""

from tests.mutations.table import Mutation

SIMULATION = "tests/sim/test_isr_sim.py::test_every_possible_leader_keeps_all_promises"

MUTATIONS = (
    Mutation(
        name="members-that-leave-by-an-answer-no-longer-count",
        invariants=(22, 39),
        path="kwire/replica/leader.py",
        old="self.departing |= self.isr.difference(isr)",
        new="pass",
        test=SIMULATION,
    ),
    Mutation(
        name="proposal-in-flight-does-not-count",
        invariants=(22, 30),
        path="kwire/replica/leader.py",
        old="isr = self.isr if self.pending_isr is None else self.isr | self.pending_isr",
        new="isr = self.isr",
        test=SIMULATION,
    ),
    Mutation(
        name="isr-grows-before-the-follower-has-what-is-committed",
        invariants=(22, 35),
        path="kwire/replica/leader.py",
        old="            and follower.log_end >= self.log.high_watermark\n"
        "            and follower.log_end >= self.epoch_start\n"
        "            and follower.log_start",
        new="            and follower.log_start",
        test=SIMULATION,
    ),
    Mutation(
        name="minimum-is-lowered-before-the-roles-change",
        invariants=(22, 29),
        path="kwire/replica/partition.py",
        old="self.leader.min_isr = max(self.leader.min_isr, config.min_insync_replicas)",
        new="self.leader.min_isr = config.min_insync_replicas",
        test=SIMULATION,
    ),
    Mutation(
        name="deletion-waits-for-no-eligible-replica",
        invariants=(39,),
        path="kwire/replica/leader.py",
        old="electable = self.maximal_isr | self.elr",
        new="electable = self.maximal_isr",
        test=SIMULATION,
    ),
)
