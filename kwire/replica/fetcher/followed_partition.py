"""A partition that this broker follows: where its log ends, and what was fetched for it."""

import logging
from typing import Final

from kwire import attrs
from kwire.records.header import HEADER_SIZE, Buffer, parse
from kwire.replica.fetcher.session import Position
from kwire.replica.partition import NO_EPOCH, Partition
from kwire.replica.throttles import is_throttled

logger = logging.getLogger(__name__)

REPORT_S: Final = 60.0
PASSING_FAILURES: Final = 4


@attrs.define(eq=False)
class FollowedPartition:
    """A partition that the fetcher copies, and its failures in a row."""

    partition: Partition
    leader_id: int
    leader_epoch: int
    failure_count: int = 0
    kept_start: int = -1
    """The log start that was stored last."""
    reported_at: float = float("-inf")
    """The time of the last report of a failure."""
    is_busy: bool = False
    """Whether its log is being synced or truncated."""
    is_caught_up: bool = False
    """Whether its log reached the leader's high watermark with the last answer."""

    @property
    def is_current(self) -> bool:
        """Whether this broker still follows in the epoch in which fetching began."""
        partition = self.partition
        role = (partition.leader, partition.leader_id, partition.leader_epoch)
        return role == (None, self.leader_id, self.leader_epoch)

    def is_throttled(self, broker: int) -> bool:
        """Whether the topic's settings limit the rate at which this replica is copied."""
        replicas = self.partition.config.follower_throttled_replicas
        return is_throttled(replicas, self.partition.partition, broker)

    def report_failure(self, reason: object, now: float, *, is_passing: bool = False) -> None:
        """Report a failure; those that follow in a row are reported once every :data:`REPORT_S`.

        ``is_passing``: the reason usually ends by itself, so the first failures are not reported.
        """
        threshold = PASSING_FAILURES if is_passing else 0
        is_due = self.failure_count == threshold or now - self.reported_at >= REPORT_S
        level = logging.DEBUG
        if self.failure_count >= threshold and is_due:
            level = logging.WARNING if is_passing else logging.ERROR
            self.reported_at = now
        text = "replication failed partition=%s error=%r failures=%d"
        logger.log(level, text, self.partition.log.partition, reason, self.failure_count + 1)

    def position(self) -> Position | None:
        """Return where to fetch from; None while records are not as durable as they have to be.

        They may wait for a slow disk, or for the sync that ``flush.messages`` requires.
        """
        log = self.partition.log
        end = log.end_offset
        if self.is_busy or log.must_flush or log.writer.written_offset < end:
            return None
        epoch = log.epochs.latest if end > log.start_offset else None
        epoch = NO_EPOCH if epoch is None else epoch
        return Position(end, self.leader_epoch, epoch, self.durable_start())

    def durable_start(self) -> int:
        """Return the log start that a restart would find at least; -1 if none is sure.

        The name of the first segment says it too, once the removal of those before it is synced.
        """
        log = self.partition.log
        named = -1 if log.flush_state.removal_unsynced else log.segments[0].base_offset
        return min(log.start_offset, max(named, self.kept_start))

    @property
    def must_keep_start(self) -> bool:
        """Whether the log start has moved since it was stored."""
        return self.durable_start() < self.partition.log.start_offset

    def begins_inside(self, records: Buffer) -> bool:
        """Whether the first batch begins before an empty log's end and reaches past it.

        The leader's log begins inside of that batch, after a deletion of records.
        """
        log = self.partition.log
        if len(records) < HEADER_SIZE or log.end_offset != log.start_offset:
            return False
        first = parse(records)
        return first.base_offset < log.end_offset <= first.last_offset

    def append(self, records: Buffer, high_watermark: int, log_start: int, now_ms: int) -> None:
        """Append fetched records, and take over the leader's high watermark and log start.

        An answer without a diverging epoch confirms the log: the leader has the same records. The
        new records were fetched in :attr:`leader_epoch`. Raises KafkaError or UnexpectedOffset, as
        :meth:`PartitionLog.append_follower` does, after what precedes the refused batch is
        appended. The high watermark stays below the end of what is written, and never moves back.
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
        if committed > log.high_watermark:
            log.high_watermark = committed
            if not log.changes.is_marked:
                log.changes.mark()
        if log_start > log.start_offset:
            log.advance_start(min(log_start, log.high_watermark))
