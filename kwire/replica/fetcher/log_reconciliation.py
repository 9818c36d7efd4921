"""Reconciliation of a follower's log with its leader's: truncation, or a new log start.

This module also performs the sync that a topic may require. All this takes a while, so the fetcher
runs it in a task. Rules: if the role changes meanwhile, the work ends without effect; a function
that fails raises KafkaError, UnexpectedOffset or LeaderUnreachable, and is retried later.
:mod:`truncation` chooses the offset at which the log is cut.
"""

import logging

import attrs

from kwire import errors
from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.errors import KafkaStorageError, OffsetOutOfRange
from kwire.log.manager import LogManager
from kwire.records.header import parse
from kwire.replica.fetcher import truncation
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.partition import EARLIEST_LOCAL, LATEST
from kwire.replica.ports import LeaderBroker, LeaderUnreachable

logger = logging.getLogger(__name__)

Answer = FetchResponse.FetchableTopicResponse.PartitionData


@attrs.frozen(eq=False, repr=False)
class LogReconciliation:
    """Reconciles the logs that are fetched from one leader."""

    node: int
    leader: LeaderBroker
    logs: LogManager

    async def sync(self, followed: FollowedPartition) -> None:
        """Sync a cut, and the records that the topic requires to be durable."""
        log = followed.partition.log
        await self.logs.flush(log, indexes=log.flush_state.cut_unsynced)
        if followed.must_sync:
            raise KafkaStorageError("not synced")

    async def truncate(self, diverging: Answer.EpochEndOffset, followed: FollowedPartition) -> None:
        """Truncate the log to the last offset up to which it may still match the leader's."""
        log, epoch = followed.partition.log, diverging.epoch
        target = truncation.target(log.epochs, log.end_offset, epoch, diverging.end_offset)
        logger.info(
            "truncating partition=%s from=%d to=%d leader_epoch=%d",
            log.partition,
            log.end_offset,
            target,
            epoch,
        )
        if target < log.high_watermark:
            logger.warning(
                "truncating below the high watermark partition=%s high_watermark=%d to=%d",
                log.partition,
                log.high_watermark,
                target,
            )
        await self._truncate_to(followed, target)

    async def resume_within_range(self, followed: FollowedPartition) -> None:
        """Recover after the leader rejected this log's end as outside its own log.

        The leader's log is shorter, after an unclean election, or begins after this log's end.
        """
        log = followed.partition.log
        latest = await self._offset_of(followed, LATEST)
        if latest < log.end_offset:
            logger.warning(
                "truncating to the leader's end partition=%s from=%d to=%d",
                log.partition,
                log.end_offset,
                latest,
            )
            await self._truncate_to(followed, latest)
            return
        earliest = await self._offset_of(followed, EARLIEST_LOCAL)
        if earliest > log.end_offset:
            logger.warning(
                "restarting at the leader's log start partition=%s from=%d to=%d",
                log.partition,
                log.end_offset,
                earliest,
            )
            await self._restart_at(followed, earliest)
            return
        raise OffsetOutOfRange(f"{log.end_offset} is in the leader's {earliest} to {latest}")

    async def begin_inside_batch(
        self, answer: Answer, now_ms: int, followed: FollowedPartition
    ) -> None:
        """Start the log with a batch whose first records the leader has deleted."""
        log = followed.partition.log
        start = log.end_offset
        if not await self._restart_at(followed, parse(answer.records).base_offset):
            return
        await self.sync(followed)
        if followed.is_current:
            followed.append(answer.records, answer.high_watermark, answer.log_start_offset, now_ms)
            log.advance_log_start(start)

    async def _truncate_to(self, followed: FollowedPartition, offset: int) -> None:
        log = followed.partition.log
        try:
            await self.logs.truncate(log, offset, lambda: followed.is_current)
        finally:
            followed.kept_start = -1
        if followed.is_current and log.end_offset > offset:
            raise KafkaStorageError("not truncated")

    async def _restart_at(self, followed: FollowedPartition, offset: int) -> bool:
        """Empty the log so that it continues at ``offset``; return False if the role changed."""
        log = followed.partition.log
        try:
            is_done = await self.logs.restart_at(log, offset, lambda: followed.is_current)
        finally:
            followed.kept_start = -1
        if followed.is_current and not is_done:
            raise KafkaStorageError("not truncated")
        return is_done and followed.is_current  # The role may have changed meanwhile.

    async def _offset_of(self, followed: FollowedPartition, timestamp: int) -> int:
        """Return the leader's first or last offset."""
        shape = ListOffsetsRequest.ListOffsetsTopic
        partition = followed.partition
        request = ListOffsetsRequest(
            replica_id=self.node,
            topics=[
                shape(
                    name=partition.topic,
                    partitions=[
                        shape.ListOffsetsPartition(
                            partition_index=partition.partition,
                            current_leader_epoch=followed.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        response = await self.leader.list_offsets(request)
        answers = [answer for topic in response.topics for answer in topic.partitions]
        for answer in answers:
            errors.raise_for_code(answer.error_code)
        if len(answers) != 1 or answers[0].offset < 0:
            raise LeaderUnreachable(f"no offset of {partition.log.partition}")
        return answers[0].offset
