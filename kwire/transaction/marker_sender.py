"""Sends the markers of decided transactions to the leaders of their partitions.

Rules: each broker has at most one request in flight; markers that are queued meanwhile go into the
next one. A marker is retried until its partition has it or no longer exists, or until this node is
no longer the coordinator; the delay before a retry doubles up to a second. A transaction is
reported once none of its markers is missing. Sending a marker twice is harmless: by then the
producer has no open transaction in the partition.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, Protocol

import attrs
import trio

from kwire.drive import run_in_slices, run_steps
from kwire.errors import (
    NONE,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionCoordinatorFenced,
    UnknownServerError,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
)
from kwire.replica.transaction_ports import TransactionMarker
from kwire.transaction.model import Transaction
from kwire.types import NO_LEADER, TopicPartition

logger = logging.getLogger(__name__)

_MARKERS_AT_ONCE: Final = 500
_PARTITIONS_AT_ONCE: Final = 5_000
"""The most partitions of all markers in one request: about 2 ms to encode it and to read the
response."""
_QUEUED_AT_ONCE: Final = 64
"""The largest number of partitions that are queued without a pause."""
_RETRY_SECONDS: Final = 0.05
_RETRY_MAX_SECONDS: Final = 1.0
_WRITTEN: Final = frozenset({NONE, UnsupportedForMessageFormat.code})
"""Codes after which a marker is not resent."""
_FENCED: Final = frozenset(
    {InvalidProducerEpoch.code, ProducerFenced.code, TransactionCoordinatorFenced.code}
)
"""Codes with which a partition reports that a newer coordinator has decided."""


class Brokers(Protocol):
    """The brokers that lead the partitions of transactions."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return the partition's leader or NO_LEADER; None if the partition does not exist."""

    async def write_markers(
        self, broker: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return each marker's error codes; raises KafkaError if the broker does not respond."""


@attrs.define(eq=False, repr=False)
class TransactionEnd:
    """A decided transaction, and the partitions that still lack its marker."""

    index: int
    """The partition of `__transaction_state`."""
    coordinator_epoch: int
    transaction: Transaction
    missing: set[TopicPartition]
    attempts: int = 0

    def marker(self, partitions: Sequence[TopicPartition]) -> TransactionMarker:
        transaction = self.transaction
        return TransactionMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            commit=transaction.is_commit,
            coordinator_epoch=self.coordinator_epoch,
            partitions=partitions,
            transaction_version=transaction.client_version,
        )


_Part = tuple[TransactionEnd, list[TopicPartition]]


@attrs.define(kw_only=True, eq=False, repr=False)
class MarkerSender:
    """The markers that one node still has to send."""

    brokers: Brokers
    is_current: Callable[[TransactionEnd], bool]
    """Returns whether this node is still the coordinator that decided the end."""
    on_written: Callable[[Sequence[TransactionEnd]], Awaitable[None]]
    """Completes transactions that have all their markers."""
    _queues: dict[int, list[_Part]] = attrs.field(factory=dict, init=False)
    """The waiting parts by broker; an entry exists while a task sends to that broker."""
    _outdated: set[int] = attrs.field(factory=set, init=False)
    """The brokers that could not read the last request."""
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send markers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def send(self, ends: Iterable[TransactionEnd]) -> None:
        """Send the markers of these transactions to all their partitions."""
        nursery = self._nursery
        if nursery is None:
            return
        parts = [(end, sorted(end.missing)) for end in ends]
        steps = self._queueing(parts, nursery)
        if sum(len(partitions) for _, partitions in parts) <= _QUEUED_AT_ONCE:
            run_steps(steps)  # Without a task, which would cost as much as the marker itself.
        else:
            nursery.start_soon(run_in_slices, steps)

    def _queueing(
        self, parts: Iterable[_Part], nursery: trio.Nursery
    ) -> Generator[None, None, None]:
        """Queue markers for the leaders in small steps.

        A transaction that needs no more markers, because its topics were deleted, is complete.
        """
        written, leaderless = [], []
        for end, partitions in parts:
            by_leader: dict[int, list[TopicPartition]] = {}
            for partition in partitions:
                self._add(by_leader, end, partition)
                yield
            for broker, led in by_leader.items():
                if broker == NO_LEADER:
                    leaderless.append((end, led))
                    continue
                queue = self._queues.get(broker)
                if queue is None:
                    queue = self._queues[broker] = []
                    nursery.start_soon(self._drain, broker)
                queue.append((end, led))
            if not end.missing:
                written.append(end)
        if written:
            nursery.start_soon(self.on_written, written)
        if leaderless:
            nursery.start_soon(self._retry, leaderless)

    def _add(
        self,
        by_leader: dict[int, list[TopicPartition]],
        end: TransactionEnd,
        partition: TopicPartition,
    ) -> None:
        """Add a partition to its leader's list; a partition that does not exist needs no marker."""
        leader = self.brokers.leader_of(partition)
        if leader is None:
            logger.info("marker dropped partition=%s: it does not exist", partition)
            end.missing.discard(partition)
        else:
            by_leader.setdefault(leader, []).append(partition)

    async def _drain(self, broker: int) -> None:
        """Send to one broker until its queue is empty."""
        queue = self._queues[broker]
        try:
            while queue:
                parts = _take_parts(queue)
                await self._send(broker, [part for part in parts if self.is_current(part[0])])
        finally:
            del self._queues[broker]

    async def _send(self, broker: int, parts: list[_Part]) -> None:
        markers = [end.marker(partitions) for end, partitions in parts]
        results: Sequence[Mapping[TopicPartition, int]]
        try:
            results = await self.brokers.write_markers(broker, markers) if parts else []
            if parts:
                self._outdated.discard(broker)
        except KafkaError as error:
            if isinstance(error, UnsupportedVersion) and broker not in self._outdated:
                self._outdated.add(broker)
                logger.error(
                    "markers not written broker=%d error=%s; "
                    "transactions stay open in its partitions until it is upgraded",
                    broker,
                    error,
                )
            logger.debug("markers not written broker=%d error=%r", broker, error)
            results = [dict.fromkeys(partitions, error.code) for _, partitions in parts]
        except Exception:  # A fault must not end the node.
            logger.exception("markers not written broker=%d", broker)
            results = [{} for _ in parts]
        unwritten: list[_Part] = []
        written: list[TransactionEnd] = []
        for (end, partitions), codes in zip(parts, results, strict=True):
            remaining = self._take_results(end, partitions, codes)
            if remaining:
                unwritten.append((end, remaining))
            elif not end.missing:
                written.append(end)
        assert self._nursery is not None
        if unwritten:
            self._nursery.start_soon(self._retry, unwritten)
        if written:
            self._nursery.start_soon(self.on_written, written)

    def _take_results(
        self,
        end: TransactionEnd,
        partitions: Sequence[TopicPartition],
        codes: Mapping[TopicPartition, int],
    ) -> list[TopicPartition]:
        """Record the written markers; return the partitions whose markers must be resent."""
        remaining = []
        for partition in partitions:
            code = codes.get(partition, UnknownServerError.code)
            if code in _WRITTEN:
                end.missing.discard(partition)
            elif code in _FENCED:
                logger.warning(
                    "marker rejected partition=%s transactional_id=%s code=%d: "
                    "another coordinator has decided since",
                    partition,
                    end.transaction.transactional_id,
                    code,
                )
            else:
                remaining.append(partition)
        return remaining

    async def _retry(self, parts: list[_Part]) -> None:
        """Resend after a delay that doubles with each attempt."""
        attempt = max(end.attempts for end, _ in parts)
        for end, _ in parts:
            end.attempts += 1
        await trio.sleep(min(_RETRY_SECONDS * 2 ** min(attempt, 10), _RETRY_MAX_SECONDS))
        if self._nursery is not None:
            current = [part for part in parts if self.is_current(part[0])]
            await run_in_slices(self._queueing(current, self._nursery))


def _take_parts(queue: list[_Part]) -> list[_Part]:
    """Remove the parts of the next request from a queue, and split the last one if necessary."""
    parts: list[_Part] = []
    room = _PARTITIONS_AT_ONCE
    for end, partitions in queue[:_MARKERS_AT_ONCE]:
        parts.append((end, partitions[:room]))
        room -= len(partitions)
        if room <= 0:
            break
    remaining = queue[len(parts) :]
    if room < 0:
        end, partitions = queue[len(parts) - 1]
        remaining.insert(0, (end, partitions[room:]))
    queue[:] = remaining
    return parts
