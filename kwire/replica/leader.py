"""A partition's leader: the in-sync replica set and the high watermark.

Pure state: no clock, no disk, no network. The caller passes ``now`` and acts on the results of
methods. Rules:

* The log holds the high watermark in every role; while this broker leads, only
  :class:`PartitionLeader` moves it. It is the smallest log end offset of the *maximal* ISR: the
  committed ISR and any proposed ISR that is not answered yet (invariant 30). It never moves back,
  never passes the log end offset of an in-sync replica, and does not move while the committed ISR
  is smaller than the effective minimum, min(min.insync.replicas, replicas) (invariant 29).
* A replica that leaves the ISR by the controller's answer counts until the metadata have the
  change. An answer may overtake metadata that this broker still lacks: by a new
  min.insync.replicas, the replica is eligible, and nothing may be committed without it.
* A follower that keeps up but is not in the ISR yet also holds back the high watermark, if it may
  join; otherwise it could never join while producers are busy.
* A broker that is fenced, is shutting down, or has restarted since its last fetch may not join
  (KIP-841, KIP-903).
* One proposal is in flight at a time. A leader without followers never proposes a change.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

import attrs

from kwire.log.partition_log import PartitionLog


class HighWatermarkChange(NamedTuple):
    """A move of the high watermark; waits up to ``to_offset`` are complete."""

    from_offset: int
    to_offset: int


class Proposal(NamedTuple):
    """An ISR to propose to the controller, with its members' broker epochs from their fetches."""

    isr: frozenset[int]
    partition_epoch: int
    broker_epochs: Mapping[int, int]


def _all_eligible(node: int, broker_epoch: int) -> bool:
    return True


@attrs.define(eq=False, repr=False)
class FollowerProgress:
    """The leader's state of one follower, derived only from the follower's fetches."""

    log_end: int = -1
    """The follower's log end offset, -1 before its first fetch in this epoch."""
    log_start: int = -1
    caught_up_at: float = 0.0
    broker_epoch: int = -1
    last_fetch_at: float = 0.0
    leader_end_at_last_fetch: int = -1
    high_watermark: int = -1
    """The high watermark last sent to the follower."""


@lru_cache(maxsize=1024)
def brokers(ids: tuple[int, ...]) -> frozenset[int]:
    """Return a set of broker ids, which all partitions share: each set takes 216 bytes."""
    return frozenset(ids)


@attrs.define(eq=False, repr=False)
class PartitionLeader:
    """The leader's state of a partition, for one leader epoch."""

    node: int
    leader_epoch: int
    first_epoch: int
    """The epoch since which this broker has led without interruption or truncation."""
    partition_epoch: int
    log_end: int
    """The end offset of the records stored as durably as the topic requires."""
    epoch_start: int
    """The log end offset when this epoch began; in-sync followers have reached it (KIP-101)."""
    log: PartitionLog
    """The owner of the high watermark."""
    isr: frozenset[int]
    followers: dict[int, FollowerProgress]
    min_isr: int = 1
    lag_max: float = 30.0
    """Seconds without catching up after which a follower is out of sync.

    This is ``replica.lag.time.max.ms``.
    """
    lag_max_messages: int | None = None
    """The most records by which an in-sync follower may be behind; None for no limit.

    This is ``replica.lag.max.messages``, which Kafka had before 0.9.
    """
    pending_isr: frozenset[int] | None = None
    departing: frozenset[int] = frozenset()
    """Former members of the ISR that count until the metadata have this partition epoch."""
    is_eligible: Callable[[int, int], bool] = _all_eligible
    """Returns whether a broker, with the broker epoch of its last fetch, may be in an ISR."""
    elr: frozenset[int] = frozenset()
    """The eligible leader replicas: outside the ISR, but electable after its members."""

    @classmethod
    def take_over(
        cls,
        *,
        node: int,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Collection[int],
        isr: Collection[int],
        log: PartitionLog,
        log_end: int,
        min_isr: int,
        now: float,
        lag_max: float = 30.0,
        lag_max_messages: int | None = None,
        is_eligible: Callable[[int, int], bool] = _all_eligible,
        former: "PartitionLeader | None" = None,
    ) -> "PartitionLeader":
        """Begin a leader epoch; the followers in the ISR count as caught up now.

        ``former`` is the state of the previous epoch if this broker also led that epoch.
        """
        log.limit_high_watermark(log_end)
        return cls(
            node=node,
            leader_epoch=leader_epoch,
            first_epoch=leader_epoch if former is None else former.first_epoch,
            partition_epoch=partition_epoch,
            log_end=log_end,
            epoch_start=log_end,
            log=log,
            isr=brokers(tuple(isr)),
            followers={
                other: FollowerProgress(caught_up_at=now if other in isr else float("-inf"))
                for other in replicas
                if other != node
            },
            min_isr=min_isr,
            lag_max=lag_max,
            lag_max_messages=lag_max_messages,
            is_eligible=is_eligible,
        )

    @property
    def leads_on(self) -> bool:
        """True if this broker also led the previous epoch."""
        return self.first_epoch < self.leader_epoch

    @property
    def maximal_isr(self) -> frozenset[int]:
        isr = self.isr if self.pending_isr is None else self.isr | self.pending_isr
        return isr | self.departing if self.departing else isr

    @property
    def effective_min_isr(self) -> int:
        return min(self.min_isr, len(self.followers) + 1)

    @property
    def under_min_isr(self) -> bool:
        """True while acks=all must be rejected (invariant 28)."""
        return len(self.isr) < self.effective_min_isr

    def advance(self, now: float) -> HighWatermarkChange | None:
        """Move the high watermark as far as the in-sync replicas allow."""
        target = self.log_end
        if self.followers:
            if self.under_min_isr:
                return None
            members = self.maximal_isr
            for node, follower in self.followers.items():
                if follower.log_end < target and (
                    node in members or self._is_joining(node, follower, now)
                ):
                    target = follower.log_end
        before = self.log.advance_high_watermark(target)
        return None if before is None else HighWatermarkChange(before, target)

    def _is_joining(self, node: int, follower: FollowerProgress, now: float) -> bool:
        return (
            follower.log_end >= self.epoch_start
            and follower.log_end >= self.log.high_watermark
            and not self._is_far_behind(follower)
            and now - follower.caught_up_at <= self.lag_max
            and self.is_eligible(node, follower.broker_epoch)
        )

    def _is_far_behind(self, follower: FollowerProgress) -> bool:
        return (
            self.lag_max_messages is not None
            and self.log_end - follower.log_end > self.lag_max_messages
        )

    def on_appended(self, log_end: int, now: float) -> HighWatermarkChange | None:
        """Advance the leader's own log end offset to the end of the stored records."""
        self.log_end = log_end
        if self.followers:
            return self.advance(now)
        before = self.log.advance_high_watermark(log_end)
        return None if before is None else HighWatermarkChange(before, log_end)

    def on_fetched(
        self,
        node: int,
        *,
        offset: int,
        log_start: int,
        now: float,
        broker_epoch: int = -1,
    ) -> HighWatermarkChange | None:
        """Record a follower's fetch from ``offset``: the follower has everything before it."""
        follower = self.followers[node]
        if offset >= self.log_end:
            follower.caught_up_at = max(follower.caught_up_at, now)
        elif 0 <= follower.leader_end_at_last_fetch <= offset:
            follower.caught_up_at = max(follower.caught_up_at, follower.last_fetch_at)
        follower.log_end = offset
        follower.log_start = log_start
        follower.broker_epoch = broker_epoch
        follower.last_fetch_at = now
        follower.leader_end_at_last_fetch = self.log_end
        return self.advance(now)

    def on_idle_fetches(self, node: int, last_fetch_at: float) -> None:
        """Record that a follower at the log end kept fetching until ``last_fetch_at``."""
        follower = self.followers.get(node)
        if follower is not None:
            follower.caught_up_at = max(follower.caught_up_at, last_fetch_at)
            follower.last_fetch_at = max(follower.last_fetch_at, last_fetch_at)

    def may_join(self, node: int) -> bool:
        """Return whether an eligible follower has reached the high watermark and the epoch's start.

        It must also have deleted the records that the leader deleted; otherwise it would restore
        them as the leader.
        """
        follower = self.followers.get(node)
        return (
            follower is not None
            and node not in self.isr
            and (self.pending_isr is None or node not in self.pending_isr)
            and follower.log_end >= self.log.high_watermark
            and follower.log_end >= self.epoch_start
            and follower.log_start >= self.log.log_start
            and not self._is_far_behind(follower)
            and self.is_eligible(node, follower.broker_epoch)
        )

    def laggards(self, now: float) -> frozenset[int]:
        """Return in-sync followers that have been behind for too long or by too many records."""
        return frozenset(
            node
            for node in self.isr
            if node != self.node
            and (follower := self.followers[node]).log_end < self.log_end
            and (now - follower.caught_up_at > self.lag_max or self._is_far_behind(follower))
        )

    def propose(self, joins: Collection[int] = (), leaves: Collection[int] = ()) -> Proposal | None:
        """Begin and return an ISR proposal; None if one is in flight or nothing changes."""
        isr = (self.isr | frozenset(joins)) - frozenset(leaves)
        if self.pending_isr is not None or isr == self.isr:
            return None
        self.pending_isr = isr
        epochs = {n: self.followers[n].broker_epoch for n in isr if n != self.node}
        return Proposal(isr, self.partition_epoch, epochs)

    def on_isr_committed(
        self, isr: Collection[int], partition_epoch: int, now: float
    ) -> HighWatermarkChange | None:
        """Adopt the ISR of newer metadata, which ends a proposal in flight.

        Metadata of this partition epoch or an older one ends no proposal: a proposal made in this
        epoch may already be committed.
        """
        if partition_epoch < self.partition_epoch:
            return None
        self.departing = frozenset()
        if partition_epoch > self.partition_epoch:
            self._adopt(isr, partition_epoch)
        return self.advance(now)

    def on_isr_answered(
        self, isr: Collection[int], partition_epoch: int, now: float
    ) -> HighWatermarkChange | None:
        """Adopt the ISR of the controller's answer to the proposal in flight."""
        self.departing |= self.isr.difference(isr)
        self._adopt(isr, partition_epoch)
        return self.advance(now)

    def _adopt(self, isr: Collection[int], partition_epoch: int) -> None:
        self.isr = brokers(tuple(isr))
        self.partition_epoch = partition_epoch
        self.pending_isr = None

    def on_isr_refused(self, now: float) -> HighWatermarkChange | None:
        """Drop a rejected proposal; the committed ISR stays."""
        self.pending_isr = None
        return self.advance(now)

    def on_replicas_changed(self, replicas: Collection[int]) -> None:
        """Add and remove followers after a reassignment."""
        self.followers = {
            node: self.followers.get(node) or FollowerProgress(caught_up_at=float("-inf"))
            for node in replicas
            if node != self.node
        }

    def low_watermark(self, log_start: int) -> int:
        """Return the smallest log start of all replicas that run or may be elected.

        This is the progress of a deletion. A broker that is down holds up the deletion only while
        it is in the ISR or the ELR: as the leader, it would restore the deleted records.
        """
        electable = self.maximal_isr | self.elr
        starts = [
            follower.log_start
            for node, follower in self.followers.items()
            if node in electable or self.is_eligible(node, follower.broker_epoch)
        ]
        return min([log_start, *starts])
