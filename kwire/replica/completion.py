"""The completion of waits: of producers for a partition's log, of fetches for its records.

:class:`Completion` is called for each partition whose log, high watermark, role or replicas have
changed. It and the append (:meth:`ReplicaService.append`) report which bytes became readable;
:meth:`FetchWaits.on_readable` alone decides which fetches this wakes.
"""

from collections.abc import Callable
from typing import Final

import attrs

from kwire.replica.fetch_waits import FetchWaits
from kwire.replica.leader import HighWatermarkChange
from kwire.replica.partition import FetchIsolation, Partition

_COMMITTED: Final = (FetchIsolation.HIGH_WATERMARK,)
_STABLE: Final = (FetchIsolation.HIGH_WATERMARK, FetchIsolation.STABLE)


@attrs.define(eq=False, repr=False)
class Completion:
    """Completes the waits of producers and fetches when a partition has changed."""

    now: Callable[[], float]
    fetch_waits: FetchWaits

    def on_bounds_changed(self, partition: Partition) -> None:
        """End a partition's fetches, because its log start or written end moved in another way."""
        self.fetch_waits.on_changed(partition)

    def on_replicas_changed(self, partition: Partition) -> None:
        """Make the next fetch of each session visit a partition; wake no fetch."""
        self.fetch_waits.mark(partition)

    def on_stored(self, partition: Partition) -> None:
        """Complete the waits for newly written or synced records."""
        change = partition.on_stored(self.now())
        if partition.leader is not None:
            partition.writes.reach(partition.leader.log_end)
        if change is not None:
            self.on_committed(partition, change)

    def on_committed(self, partition: Partition, change: HighWatermarkChange) -> None:
        """Complete the waits for records below the new high watermark."""
        log = partition.log
        stable_before = log.producers.last_stable_offset(change.from_offset, log.log_start)
        size = partition.uncommitted.on_committed(change.to_offset)
        partition.commits.reach(change.to_offset)
        if partition.read_count or partition in self.fetch_waits:
            is_stable = partition.last_stable_offset > stable_before
            ends_transaction = is_stable and stable_before < change.from_offset
            readable = _STABLE if is_stable else _COMMITTED
            self.fetch_waits.on_readable(
                partition, readable, size, ends_transaction=ends_transaction
            )

    def on_low_watermark(self, partition: Partition) -> None:
        """Complete the deletions for which the logs of all replicas that count now start."""
        leader = partition.leader
        if leader is not None and partition.deletions:
            partition.deletions.reach(leader.low_watermark(partition.log.log_start))

    def on_copied(self, partition: Partition) -> None:
        """Complete the fetches of consumers that read from this follower."""
        before, after = partition.copied, partition.readable_ends
        if after.high_watermark == before.high_watermark:
            return
        partition.copied = after
        size = partition.uncommitted.on_committed(after.high_watermark)
        if not partition.read_count and partition not in self.fetch_waits:
            return
        may_end_transaction = before.stable < before.high_watermark
        ends_transaction = may_end_transaction and after.stable > before.stable
        self.fetch_waits.on_readable(partition, _STABLE, size, ends_transaction=ends_transaction)

    def on_role_changed(self, partition: Partition, *, leads_on: bool = False) -> None:
        """End the waits of a partition, so that their requests check its role again.

        ``leads_on``: this broker also led the previous epoch, so its offsets are still valid and
        only fetches must check.
        """
        if not leads_on:
            self.on_sync_failed(partition)
            partition.deletions.end_all()
        self.fetch_waits.on_changed(partition)

    def on_sync_failed(self, partition: Partition) -> None:
        """End the waits of producers: the sync for which they wait has failed."""
        partition.commits.end_all()
        partition.writes.end_all()
