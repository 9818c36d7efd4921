"""A partition that this broker follows: its fetch position and its fetched records."""

import logging
from typing import Final

import attrs

from kwire.records.header import HEADER_SIZE, Buffer, parse
from kwire.replica.fetcher.session import Position
from kwire.replica.partition import NO_EPOCH, Partition
from kwire.replica.throttles import is_throttled

logger = logging.getLogger(__name__)

REPORT_S: Final = 60.0
PASSING_FAILURES: Final = 4


@attrs.define(eq=False, repr=False)
class FollowedPartition:
    """A partition that the fetcher copies, with its number of consecutive failures."""

    partition: Partition
    leader_id: int
    leader_epoch: int
    failure_count: int = 0
    kept_start: int = -1
    """The last log start that was stored, -1 if a cut has stored another one since."""
    reported_at: float = float("-inf")
    """The time when a failure was last reported."""
    is_busy: bool = False
    """True while the log is being synced or truncated."""
    is_caught_up: bool = False
    """True if the log reached the leader's high watermark with the last response."""

    @property
    def is_current(self) -> bool:
        """True while this broker still follows the leader and epoch with which fetching began."""
        partition = self.partition
        role = (partition.leader, partition.leader_id, partition.leader_epoch)
        return role == (None, self.leader_id, self.leader_epoch)

    def is_throttled(self, broker: int) -> bool:
        """Return whether the topic's settings throttle the copying of this replica."""
        replicas = self.partition.config.follower_throttled_replicas
        return is_throttled(replicas, self.partition.partition, broker)

    def report_failure(self, reason: object, now: float, *, is_passing: bool = False) -> None:
        """Report a failure; consecutive failures are reported once every :data:`REPORT_S`.

        ``is_passing``: the cause is usually temporary, so the first failures are not reported.
        """
        threshold = PASSING_FAILURES if is_passing else 0
        is_due = self.failure_count == threshold or now - self.reported_at >= REPORT_S
        level = logging.DEBUG
        if self.failure_count >= threshold and is_due:
            level = logging.WARNING if is_passing else logging.ERROR
            self.reported_at = now
        text = "replication failed partition=%s error=%r failures=%d"
        logger.log(level, text, self.partition.log.partition, reason, self.failure_count + 1)

    @property
    def must_sync(self) -> bool:
        """True while the log has to be synced before the next fetch.

        Either ``flush.messages`` requires it, or the log was cut and a power loss could bring back
        the removed batches after newly appended ones. The epochs could still be in ascending order,
        so that neither recovery nor the leader would notice. A leader's own batches need no such
        sync, because no removed batch has an epoch as high as theirs.
        """
        log = self.partition.log
        return log.must_flush or log.flush_state.cut_unsynced

    def position(self) -> Position | None:
        """Return the fetch position; None while the log is busy or not as durable as required.

        Records may be waiting for a slow disk, and a cut or records for a sync (:attr:`must_sync`).
        """
        log = self.partition.log
        end = log.end_offset
        if self.is_busy or self.must_sync or log.writer.written_offset < end:
            return None
        epoch = log.epochs.latest if end > log.log_start else None
        epoch = NO_EPOCH if epoch is None else epoch
        return Position(end, self.leader_epoch, epoch, self.durable_start())

    def durable_start(self) -> int:
        """Return a lower bound for the log start after a restart, -1 if nothing is certain.

        The name of the first segment is such a bound once the removal of earlier segments is
        synced.
        """
        log = self.partition.log
        named = -1 if log.flush_state.removal_unsynced else log.segments[0].base_offset
        return min(log.log_start, max(named, self.kept_start))

    @property
    def must_keep_start(self) -> bool:
        """True while a restart could find an earlier log start; it must be stored first."""
        return self.durable_start() < self.partition.log.log_start

    def begins_inside(self, records: Buffer, log_start: int) -> bool:
        """Return whether the log ends inside the first batch, and has no record that must stay.

        The leader's log, which starts at ``log_start``, then begins inside that batch, after a
        deletion of records. A log with records ends there if it was cut at the leader's log start,
        because it diverges before it; the leader has deleted everything up to there.
        """
        log = self.partition.log
        is_empty = log.end_offset in (log.local_start, log_start)
        if len(records) < HEADER_SIZE or not is_empty:
            return False
        first = parse(records)
        return first.base_offset < log.end_offset <= first.last_offset

    def append(self, records: Buffer, high_watermark: int, log_start: int, now_ms: int) -> None:
        """Append fetched records, and adopt the leader's high watermark and log start.

        A response without a diverging epoch confirms that the leader has the same records. The new
        records were fetched in :attr:`leader_epoch`. Raises KafkaError or UnexpectedOffset, as
        :meth:`PartitionLog.append_follower` does, after appending the batches before the rejected
        one. The high watermark never moves back, and never passes the end of the written records.
        """
        log = self.partition.log
        end_offset = log.end_offset
        self.partition.is_confirmed = True
        try:
            if len(records):
                log.append_follower(records, now_ms, self.leader_epoch)
        finally:
            if log.end_offset > end_offset:
                self.partition.uncommitted.on_copied(log.end_offset, len(records))
        self.is_caught_up = high_watermark <= log.end_offset
        committed = min(high_watermark, log.writer.written_offset)
        if log.advance_high_watermark(committed) is not None and not log.changes.is_marked:
            log.changes.mark()
        if log_start > log.log_start:
            log.advance_log_start(min(log_start, log.high_watermark))
