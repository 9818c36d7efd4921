"""The task that fetches, from one leader, all partitions that this broker follows there.

Rules:

* One fetch is in flight at a time. A partition is included while this broker follows that leader in
  the leader epoch of the metadata. A response is ignored for a partition whose role or position has
  changed, also if nothing reported the change, as when retention has emptied the log; the next
  request then names the new position.
* A fetch starts at the end of the log itself, so the records that the leader considers copied are
  in the page cache, and synced if the topic requires it. A cut of the log is always synced first.
* A partition that fails is left out for a while; a partition that is being synced or truncated is
  left out until that is done. So neither delays the others.
* A throttled replica that is out of sync is left out while its broker fetches too fast (KIP-73).
* Adding a partition ends a fetch that waits at the leader, because the partition may hold up
  acknowledgements. It does not if the session has so many partitions that a new session would cost
  more. Two consecutive fetches are never ended: over a slow link, a stream of role changes would
  otherwise starve all copies.
"""

import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from kwire import errors
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.drive import Slices, give_way, run_by_size
from kwire.errors import FencedLeaderEpoch, KafkaError
from kwire.log.fetched_batches import UnexpectedOffset
from kwire.log.manager import LogManager
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.fetcher.delays import Delays
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.fetcher.kept_starts import KeptStarts
from kwire.replica.fetcher.log_reconciliation import LogReconciliation
from kwire.replica.fetcher.session import FetcherSession, Key
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderBroker, LeaderUnreachable
from kwire.replica.throttles import RateLimit
from kwire.waits import Signal

logger = logging.getLogger(__name__)

ENDED_MAX: Final = 256
"""A waiting fetch is ended only up to this many partitions, because the next fetch names them all.
"""
REGISTRATION_S: Final = 0.1
"""The pause before checking again whether this broker is registered."""
RETRY_S: Final = 0.02
"""The first pause after a failure; it doubles up to ``replica.fetch.backoff.ms``."""
_SESSION_ERRORS: Final = {
    errors.FetchSessionIdNotFound.code,
    errors.InvalidFetchSessionEpoch.code,
    errors.FetchSessionTopicIdError.code,
}
Answer = FetchResponse.FetchableTopicResponse.PartitionData


T = TypeVar("T")
LogWork = Callable[[FollowedPartition], Awaitable[None]]
"""Work on a log that takes a while; raises KafkaError, UnexpectedOffset or LeaderUnreachable."""


@attrs.define(eq=False, repr=False)
class LeaderFetcher:
    """The fetches from one leader."""

    config: FetcherConfig
    leader: LeaderBroker
    logs: LogManager
    broker_epoch: Callable[[], int]
    now: Callable[[], float]
    now_ms: Callable[[], int]
    on_copied: Callable[[Partition], None]
    """Called when a follower's log or high watermark has moved."""
    throttle: RateLimit = attrs.field(factory=RateLimit)
    """The limit on the bytes fetched for throttled replicas, from all leaders together."""
    _followed: dict[Key, FollowedPartition] = attrs.field(factory=dict)
    _changed: dict[Key, None] = attrs.field(factory=dict)
    """Partitions whose position may have changed since the last request."""
    _delays: Delays = attrs.field(factory=Delays)
    _paused: dict[Key, None] = attrs.field(factory=dict)
    """Partitions that are left out until their log is written, synced or truncated."""
    _session: FetcherSession = attrs.field(init=False)
    _reconciliation: LogReconciliation = attrs.field(init=False)
    _kept_starts: KeptStarts = attrs.field(init=False)
    _nursery: trio.Nursery | None = None
    _has_work: Signal = attrs.field(factory=Signal)
    _in_flight: trio.CancelScope | None = None
    _may_end_wait: bool = True
    """False after a fetch was ended, until the leader has answered another fetch."""
    _failure_count: int = 0

    def __attrs_post_init__(self) -> None:
        self._session = FetcherSession(self.config.partition_max_bytes)
        self._reconciliation = LogReconciliation(self.config.node, self.leader, self.logs)
        self._kept_starts = KeptStarts(
            self.logs, lambda followed: self.on_written(followed.partition)
        )

    def __len__(self) -> int:
        return len(self._followed)

    # -- partitions

    def add(self, partition: Partition) -> None:
        """Start to fetch a partition in its current leader epoch."""
        key = partition.topic_id, partition.partition
        self._followed[key] = FollowedPartition(
            partition, partition.leader_id, partition.leader_epoch
        )
        self._wake(key)
        if len(self._followed) <= ENDED_MAX and self._may_end_wait:
            self._may_end_wait = self._in_flight is None
            self._end_wait()

    def remove(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        key = partition.topic_id, partition.partition
        if self._followed.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._delays.discard(key)
            self._paused.pop(key, None)
            self._session.remove(key)
            if not self._followed:
                self._end_wait()

    def on_written(self, partition: Partition) -> None:
        """Resume fetching a partition after a slow disk has written its batches."""
        key = partition.topic_id, partition.partition
        if key in self._followed:
            self._wake(key)

    def _wake(self, key: Key) -> None:
        self._changed[key] = None
        self._has_work.notify()

    def _end_wait(self) -> None:
        """Cancel the fetch in flight, so that the next one can be sent."""
        if self._in_flight is not None:
            self._in_flight.cancel()

    # -- fetching

    async def run(self) -> None:
        """Fetch until cancelled; sleep while there are no partitions."""
        async with trio.open_nursery() as self._nursery:
            while True:
                try:
                    await self._run_once()
                except Exception:
                    # One bad response must not stop the broker or the other fetchers.
                    logger.exception("fetcher failed")
                    self._session.reset()
                    await trio.sleep(self.config.backoff_s + RETRY_S)

    async def _run_once(self) -> None:
        if self.broker_epoch() < 0:  # Without it, the leader could not recognize a restart.
            await trio.sleep(REGISTRATION_S)
            return
        await self._run(self._update_positions())
        if self._nursery is not None and await self._kept_starts.keep(self._nursery):
            await self._run(self._update_positions())
        if not self._session.positions:
            await self._sleep()
            return
        response = await self._fetch()
        if response is None:
            self._session.reset()
            await trio.sleep(self._pause_s(self._failure_count))
            self._failure_count += 1
        else:
            self._failure_count = 0
            await self._take(response)

    def _pause_s(self, failure_count: int) -> float:
        return min(RETRY_S * (1 << min(failure_count, 16)), max(self.config.backoff_s, RETRY_S))

    async def _sleep(self) -> None:
        """Sleep until a partition is added or ready, or a delay ends."""
        if self._changed:  # While the positions of many partitions were updated.
            await give_way()
            return
        with trio.move_on_after(max(0.0, self._delays.next_end - self.now())):
            await self._has_work.wait()

    def _max_wait_ms(self) -> int:
        """Return how long a fetch may wait at the leader: less while partitions are left out."""
        wait_ms = self.config.max_wait_ms
        if self._paused:
            wait_ms = min(wait_ms, int(RETRY_S * 1000))
        if self._delays:
            wait_ms = min(wait_ms, max(1, int((self._delays.next_end - self.now()) * 1000)))
        return wait_ms

    async def _run(self, steps: Generator[None, None, T]) -> T:
        """Run steps for partitions, in slices if there are many.

        If there are few, no partition can be added before the request is sent.
        """
        return await run_by_size(steps, len(self._followed), ENDED_MAX)

    def _update_positions(self) -> Generator[None, None, None]:
        """Give the session the changed positions, pausing after each partition."""
        self._changed.update(dict.fromkeys(self._delays.pop_ended(self.now())))
        for key in {**self._paused, **self._changed}:
            self._changed.pop(key, None)
            followed = self._followed.get(key)
            if followed is not None and key not in self._delays:
                self._update_position(key, followed)
            yield

    def _update_position(self, key: Key, followed: FollowedPartition) -> None:
        self._paused.pop(key, None)
        if not followed.is_current:
            self._session.remove(key)
            return
        if self._must_hold_back(followed):
            self._session.remove(key)
            self._delays.add(key, self.now() + self.throttle.pause_s(self.now()))
            return
        if followed.must_keep_start:
            self._kept_starts.add(followed)
        position = followed.position()
        if position is not None:
            self._session.set(key, position)
            return
        self._session.remove(key)
        self._paused[key] = None
        if followed.must_sync:
            self._start(key, followed, self._reconciliation.sync)

    def _must_hold_back(self, followed: FollowedPartition) -> bool:
        """Return whether a throttled replica that is out of sync has to wait."""
        return (
            not followed.is_caught_up
            and followed.is_throttled(self.config.node)
            and self.throttle.is_exceeded(self.now())
        )

    async def _fetch(self) -> FetchResponse | None:
        """Return the leader's response, or None to retry after a pause."""
        config, part = self.config, await self._run(self._session.next_request())
        replica = FetchRequest.ReplicaState
        request = FetchRequest(
            replica_state=replica(replica_id=config.node, replica_epoch=self.broker_epoch()),
            max_wait_ms=self._max_wait_ms(),
            min_bytes=config.min_bytes,
            max_bytes=config.max_bytes,
            session_id=part.session_id,
            session_epoch=part.session_epoch,
            topics=part.topics,
            forgotten_topics_data=part.removed,
        )
        response = None
        with trio.CancelScope() as self._in_flight:
            try:
                response = await self.leader.fetch(request)
            except LeaderUnreachable as error:
                logger.debug("leader out of reach reason=%s", error)
                return None
            finally:
                self._in_flight = None
        # The fetch was ended, because its response would have delayed the next request.
        if response is None:
            self.leader.drop()
            self._session.reset()
            await trio.sleep(RETRY_S)  # More partitions may be added soon.
            return FetchResponse()
        if response.error_code in _SESSION_ERRORS:
            self._session.reset()
            return FetchResponse()
        if response.error_code:
            logger.warning("fetch refused code=%d", response.error_code)
            return None
        self._session.on_response(response.session_id)
        self._may_end_wait = True
        return response

    async def _take(self, response: FetchResponse) -> None:
        """Apply a response to its partitions, in slices."""
        slices = Slices(self.now)
        for topic in response.responses:
            for answer in topic.partitions:
                key = topic.topic_id, answer.partition_index
                if (followed := self._followed.get(key)) is not None:
                    self._changed[key] = None
                    if self._is_answer_to(key, followed):
                        self._take_one(key, followed, answer)
                await slices.pause()

    def _is_answer_to(self, key: Key, followed: FollowedPartition) -> bool:
        """Return whether the log still has the role and the end that the request contained."""
        sent, now = self._session.positions.get(key), followed.position()
        if sent is None or now is None:
            return False
        is_same = sent._replace(log_start=now.log_start) == now
        return followed.is_current and is_same

    def _take_one(self, key: Key, followed: FollowedPartition, answer: Answer) -> None:
        if answer.error_code == errors.OffsetOutOfRange.code:
            self._start(key, followed, self._reconciliation.resume_within_range)
        elif answer.error_code:
            text = f"refused with code {answer.error_code}"
            followed.report_failure(text, self.now(), is_passing=True)
            self._delay(key)
        elif answer.diverging_epoch.end_offset >= 0:
            self._start(
                key, followed, partial(self._reconciliation.truncate, answer.diverging_epoch)
            )
        elif followed.begins_inside(answer.records or b"", answer.log_start_offset):
            work = partial(self._reconciliation.begin_inside_batch, answer, self.now_ms())
            self._start(key, followed, work)
        else:
            try:
                self._append(followed, answer)
            except (KafkaError, UnexpectedOffset) as error:
                self._on_failed(key, followed, error)
            except Exception:  # The other partitions are copied all the same.
                logger.exception("copy failed partition=%s", followed.partition.log.partition)
                self._delay(key)
            else:
                followed.failure_count = 0

    def _append(self, followed: FollowedPartition, answer: Answer) -> None:
        records = answer.records or b""
        if len(records) and followed.is_throttled(self.config.node):
            self.throttle.record(len(records), self.now())
        followed.append(records, answer.high_watermark, answer.log_start_offset, self.now_ms())
        self.on_copied(followed.partition)

    def _start(self, key: Key, followed: FollowedPartition, work: LogWork) -> None:
        """Run ``work`` on a log in its own task; the partition is left out meanwhile."""
        if not followed.is_busy and self._nursery is not None:
            followed.is_busy = True
            self._changed[key] = None
            self._nursery.start_soon(self._reconcile, key, followed, work)

    async def _reconcile(self, key: Key, followed: FollowedPartition, work: LogWork) -> None:
        try:
            await work(followed)
        except (KafkaError, UnexpectedOffset, LeaderUnreachable) as error:
            self._on_failed(key, followed, error)
        except Exception:
            logger.exception("reconciliation failed partition=%s", followed.partition.log.partition)
            self._delay(key)
        else:
            followed.failure_count = 0
        finally:
            followed.is_busy = False
            self.on_copied(followed.partition)
            self._wake(key)

    def _on_failed(self, key: Key, followed: FollowedPartition, error: Exception) -> None:
        followed.report_failure(error, self.now(), is_passing=isinstance(error, FencedLeaderEpoch))
        self._delay(key)

    def _delay(self, key: Key) -> None:
        """Leave a partition out for a pause that doubles with each failure, up to the back-off."""
        followed = self._followed.get(key)
        if followed is not None:
            self._delays.add(key, self.now() + self._pause_s(followed.failure_count))
            followed.failure_count += 1
            self._session.remove(key)
