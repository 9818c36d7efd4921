"""The promises to clients, and the check that every possible leader keeps them.

Every member of the ISR and of the ELR can be elected without a loss, so each of them must have

* all records that were acknowledged with acks=all (invariants 22 and 39), and
* none of the records whose deletion was answered.

Two kinds of members are left out. A machine that lost its power may lack records until its broker
registers again, when the controller removes it. While a partition recovers from an unclean
election, which gave up records, the promises are those that the new leader keeps.
"""

from collections.abc import Mapping

import attrs

from kwire.raftmeta.metadata.image import PartitionImage
from kwire.types import NO_LEADER
from simulation.controller.checks import demand
from simulation.isr.broker import Machine, Settled


@attrs.define(eq=False)
class IsrChecks:
    """The promises to clients."""

    acknowledged: dict[int, bytes] = attrs.field(factory=dict)
    """The values of the acknowledged records, by offset."""
    deleted_to: int = 0
    """All records before this offset were deleted, and clients know it."""
    acknowledged_count: int = 0
    deletions: int = 0
    unclean_elections: int = 0
    _leader_epoch: int = -1

    def on_settled(self, settled: Settled) -> None:
        """Add what a broker has just promised."""
        for value, result in settled.acknowledged:
            before = self.acknowledged.setdefault(result.base_offset, value)
            demand(before == value, "two values at", result.base_offset, before, value)
            self.acknowledged_count += 1
        for deletion in settled.deleted:
            self.deleted_to = max(self.deleted_to, deletion.offset)
            self.deletions += 1

    def check(self, partition: PartitionImage, machines: Mapping[int, Machine]) -> None:
        """Check the logs of all members against the newest committed metadata."""
        if partition.recovering:
            if partition.leader_epoch != self._leader_epoch and partition.leader != NO_LEADER:
                self._on_unclean(machines[partition.leader])
        else:
            for member in sorted({*partition.isr, *partition.elr}):
                machine = machines[member]
                if not machine.has_lost_power:
                    self._check_member(partition, machine)
        self._leader_epoch = partition.leader_epoch

    def _check_member(self, partition: PartitionImage, machine: Machine) -> None:
        content = machine.content
        start = content.log_start if machine.has_log else 0
        demand(
            start >= self.deleted_to,
            f"{machine.id} starts at {start}, deleted up to {self.deleted_to}:",
            partition,
        )
        missing = self._missing(machine)
        demand(not missing, f"{machine.id} lacks acknowledged records {missing}:", partition)

    def _missing(self, machine: Machine) -> list[int]:
        """Return the offsets of the acknowledged records that a machine's log lacks."""
        if not machine.has_log:
            return list(self.acknowledged)
        content, start = machine.content.content, machine.content.log_start
        return [
            offset
            for offset, value in self.acknowledged.items()
            if offset >= start and (offset not in content or content[offset][1] != value)
        ]

    def _on_unclean(self, leader: Machine) -> None:
        """Give up the promises that an uncleanly elected leader does not keep."""
        for offset in self._missing(leader):
            del self.acknowledged[offset]
        self.deleted_to = 0
        self.unclean_elections += 1
