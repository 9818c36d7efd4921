"""The share partitions that one broker leads.

A share partition is loaded from the persister when a member first fetches from it, and dropped when
this broker stops leading the partition, when the topic is deleted, or when a write is fenced. One
task ends all locks that are due; it sleeps until the earliest lock is due.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, TypeVar

import attrs
import trio

from kwire.clock import Clock
from kwire.configs.group import reset_age_ms
from kwire.drive import give_way, run_in_slices, run_steps
from kwire.errors import (
    KafkaError,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kwire.lazy_heap import LazyHeap
from kwire.metrics import SHARE_ACKNOWLEDGED
from kwire.replica.partition import EARLIEST, LATEST, FetchIsolation, Partition
from kwire.replica.replicas import ReplicaService
from kwire.share.in_flight import TYPE_NAMES, Acknowledgement, InFlight
from kwire.share.keys import SharePartition
from kwire.share.led_share import LedShare, error_of
from kwire.share.loads import Load
from kwire.share.persister import UNINITIALIZED, Persister
from kwire.share.runs import Change
from kwire.share.sessions import Ref, ShareSession, ShareSessions
from kwire.share.settings import ShareSettings
from kwire.waits import Signal

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

AT_ONCE: Final = 64
"""The most acknowledgements that are applied without pauses."""
STORED_AT_ONCE: Final = 4
"""The most share partitions whose releases are stored without pauses."""
EXPIRY_GRAIN_S: Final = 0.05
"""The longest delay of a lock's end, so that locks that end at about the same time end together."""


@attrs.define(eq=False, repr=False)
class ShareService:
    """The share partitions and share sessions of one broker."""

    replicas: ReplicaService
    persister: Persister
    settings: Callable[[str], ShareSettings]
    """Returns a group's settings."""
    clock: Clock
    start_task: Callable[[Callable[[], Awaitable[object]]], None]
    """Starts a task that may outlive the request."""
    sessions: ShareSessions = attrs.field(factory=ShareSessions)
    _led: dict[SharePartition, LedShare] = attrs.field(factory=dict)
    _by_group: dict[str, dict[SharePartition, None]] = attrs.field(factory=dict)
    _by_partition: dict[Ref, dict[SharePartition, None]] = attrs.field(factory=dict)
    _loads: dict[SharePartition, Load] = attrs.field(factory=dict)
    """The loads in progress."""
    _deadlines: LazyHeap[SharePartition] = attrs.field(factory=LazyHeap)
    _changed: Signal = attrs.field(factory=Signal)
    """Notified when the earliest deadline may have moved."""

    def __iter__(self) -> Iterator[LedShare]:
        return iter(self._led.values())

    async def sleep(self, seconds: float) -> None:
        """Wait before responding to a client that would repeat its request at once."""
        await trio.sleep(seconds)

    # Loading.

    def find(self, key: SharePartition) -> LedShare | None:
        """Return a share partition if it is loaded."""
        return self._led.get(key)

    def load(self, key: SharePartition, partition: Partition) -> Load:
        """Return the load of a share partition, which begins now unless it is in progress."""
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = Load()
            self.start_task(partial(self._run_load, load, key, partition))
        return load

    async def _run_load(self, load: Load, key: SharePartition, partition: Partition) -> None:
        led: LedShare | None = None
        error: KafkaError | None = NotLeaderOrFollower()
        try:
            loaded = await self._load(key, partition)
            if (
                partition.leader is not None
                and partition.leader_epoch == loaded.leader_epoch
                and self._loads.get(key) is load
            ):
                led, error = loaded, None
                self._led[key] = led
                self._by_partition.setdefault(key[1:], {})[key] = None
                self._by_group.setdefault(key.group_id, {})[key] = None
        except KafkaError as failure:
            error = failure
        except Exception:  # A fault must not end the node.
            logger.exception("share partition not loaded of=%s", key)
            error = UnknownServerError()
        finally:
            if self._loads.get(key) is load:
                del self._loads[key]
            load.end(led, error)

    async def _load(self, key: SharePartition, partition: Partition) -> LedShare:
        self.replicas.check_lease()
        leader_epoch = partition.check_leader().leader_epoch
        stored = await self.persister.read(*key, leader_epoch)
        error = error_of(stored.error_code)
        if error is not None:
            raise error
        start = stored.start_offset
        if start == UNINITIALIZED:
            start = await self._first_start(partition, self.settings(key.group_id).reset)
        in_flight = InFlight.resume(stored, leader_epoch, start)
        return LedShare(
            key,
            partition,
            leader_epoch,
            in_flight,
            self.persister,
            self.start_task,
            self.on_deadline,
            self.drop,
        )

    async def _first_start(self, partition: Partition, reset: str) -> int:
        """Return the offset at which a group begins in a partition."""
        timestamp = EARLIEST if reset == "earliest" else LATEST
        age_ms = reset_age_ms(reset)
        if age_ms is not None:
            timestamp = max(0, self.clock.now_ms() - age_ms)
        locate = partial(self.replicas.locate, partition, isolation=FetchIsolation.HIGH_WATERMARK)
        position = await locate(timestamp)
        if position.offset < 0:  # No record is recent enough.
            position = await locate(LATEST)
        return position.offset

    def drop(self, led: LedShare) -> None:
        """Stop serving a share partition; the next fetch reloads it."""
        if self._led.get(led.key) is led:
            del self._led[led.key]
            _discard(self._by_partition, led.key[1:], led.key)
            _discard(self._by_group, led.key.group_id, led.key)
            self._deadlines.discard(led.key)
        led.end()

    def on_role_changed(self, partition: Partition) -> None:
        """Drop the share partitions of a partition whose leadership has ended or changed."""
        for key in list(self._by_partition.get((partition.topic_id, partition.partition), ())):
            led = self._led[key]
            is_leading = led.partition is partition and partition.leader is not None
            if not is_leading or partition.leader_epoch != led.leader_epoch:
                self.drop(led)

    # Acknowledging.

    async def acknowledge(
        self, key: SharePartition, member: str, acknowledgements: Sequence[Acknowledgement]
    ) -> None:
        """Acknowledge records for a member, and store the change; raises KafkaError."""
        self.replicas.check_lease()
        led = self._led.get(key)
        if led is None:
            raise UnknownTopicOrPartition
        led.check()
        settings = self.settings(key.group_id)
        steps = led.in_flight.acknowledging(
            member,
            acknowledgements,
            settings.max_deliveries,
            self.clock.now() + settings.lock_s,
            may_renew=settings.may_renew,
        )
        count = sum(len(each.types) for each in acknowledgements)
        try:
            change = run_steps(steps) if count <= AT_ONCE else await run_in_slices(steps)
        finally:
            self.on_deadline(led)
        await led.store(change)
        self._count(acknowledgements)

    def _count(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        counts: Counter[int] = Counter()
        for first, last, types in acknowledgements:
            counts += Counter(types) if len(types) > 1 else Counter({types[0]: last - first + 1})
        for kind, count in counts.items():
            if kind in TYPE_NAMES:
                name = TYPE_NAMES[kind]
                self.replicas.metrics.cell(SHARE_ACKNOWLEDGED, name).value += count

    async def end_session(self, session: ShareSession) -> None:
        """End a member's session unless it has begun a newer one, and release its records.

        All of them are reserved at once: the member may begin its next session while they are being
        stored, and keeps what it acquires then. With the last session of a group, its share
        partitions are dropped, because the group may be deleted or its offsets reset before a
        member returns.
        """
        if not self.sessions.has(session):
            return
        key = session.key
        releases: list[tuple[LedShare, Change]] = []
        for ref in self.sessions.end(key):
            led = self._led.get(SharePartition(key.group_id, *ref))
            if led is not None and not led.is_over:
                max_deliveries = self.settings(key.group_id).max_deliveries
                change = led.in_flight.begin_release(key.member_id, max_deliveries)
                if change.moves:
                    releases.append((led, change))
        await _store_releases(releases)
        if not self.sessions.has_group(key.group_id):
            for of in list(self._by_group.get(key.group_id, ())):
                self.drop(self._led[of])
            for of in [of for of in self._loads if of.group_id == key.group_id]:
                del self._loads[of]  # The state may be older than a reset.

    def on_disconnected(self, session: ShareSession) -> None:
        """End a session whose connection was lost."""
        self.start_task(partial(self.end_session, session))

    # The end of locks.

    def on_deadline(self, led: LedShare) -> None:
        """Schedule the end of the next lock of a share partition."""
        if led.is_over:
            return
        deadline, current = led.in_flight.deadline, self._deadlines.key(led.key)
        if deadline == inf:
            self._deadlines.discard(led.key)
        elif deadline != current:
            self._deadlines.push(led.key, deadline)
            if deadline < current:
                self._changed.notify()

    async def run(self) -> None:
        """End the locks that are due until cancelled."""
        while True:
            wait_s = self._deadlines.first_key + EXPIRY_GRAIN_S - self.clock.now()
            if wait_s > 0:
                with trio.move_on_after(wait_s):
                    await self._changed.wait()
                continue
            for key in self._deadlines.pop_up_to(self.clock.now()):
                led = self._led.get(key)
                if led is not None:
                    self._end_locks_of(led)
                await give_way()

    def _end_locks_of(self, led: LedShare) -> None:
        max_deliveries = self.settings(led.key.group_id).max_deliveries
        batches = led.in_flight.expire(self.clock.now(), max_deliveries)
        self.on_deadline(led)
        if batches:
            led.store_batches(batches)
            led.wake()


async def _store_releases(releases: Sequence[tuple[LedShare, Change]]) -> None:
    """Store releases together, so that none waits for a share coordinator that is out of reach."""
    async with trio.open_nursery() as nursery:
        for number, (led, change) in enumerate(releases, start=1):
            nursery.start_soon(_store_if_possible, led, change)
            if not number % STORED_AT_ONCE:
                with trio.CancelScope(shield=True):  # What is reserved has to be stored.
                    await give_way()


async def _store_if_possible(led: LedShare, change: Change) -> None:
    """Store a release; if that fails, the locks end in time."""
    with suppress(KafkaError):
        await led.store(change)


def _discard(index: dict[K, dict[SharePartition, None]], by: K, key: SharePartition) -> None:
    """Remove a share partition from an index."""
    del index[by][key]
    if not index[by]:
        del index[by]
