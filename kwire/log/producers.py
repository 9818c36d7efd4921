"""The producer state of one partition: sequences, transactions, and the snapshot file.

Pure state, changed only by :meth:`ProducerStates.update` with batches in log order, so that a
replay of the log gives the same state. Rules: a producer's last five batches are recognised when
they are resent. A new epoch starts at sequence 0; an unknown producer may start at any sequence. A
transaction is open from its first batch to its marker. The last stable offset is the start of the
first transaction that is open, or whose marker is not yet below the high watermark. Producers
expire by the timestamps of their own records, never by the time when they were loaded.
"""

import struct
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple

import attrs

from kwire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from kwire.log.formats.txn_index import AbortedTxn
from kwire.records.control import ControlType, parse_end_txn, parse_key
from kwire.records.crc import crc32c
from kwire.records.header import CONTROL, TRANSACTIONAL, BatchHeader, Buffer
from kwire.records.iterate import BadRecords, records

KEPT_BATCHES: Final = 5
BEHIND_REFUSED: Final = KEPT_BATCHES - 1
"""The number of batches behind a rejected one that a producer with five in flight may have sent."""
SLICE_PRODUCERS: Final = 100
"""The number of producers that are checked for expiry between two pauses."""
SEQUENCE_MAX: Final = (1 << 31) - 1
EPOCH_MAX: Final = (1 << 15) - 1
"""The largest producer epoch; it cannot be bumped for a marker."""
SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_FROM: Final = 6


class Sent(NamedTuple):
    """One remembered batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX


class Duplicate(NamedTuple):
    """The offsets of a batch that is already in the log."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class Marker(NamedTuple):
    """The transaction marker of a control batch."""

    abort: bool
    coordinator_epoch: int


class EndedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    first_offset: int
    last_offset: int


class CorruptSnapshot(ValueError):
    """A snapshot file that is torn or damaged."""


@attrs.define(repr=False)
class Producer:
    """One producer's state."""

    producer_id: int
    epoch: int = -1
    coordinator_epoch: int = -1
    timestamp: int = -1
    open_from: int = -1
    """The first offset of its open transaction; -1 if there is none."""
    batches: list[Sent] = attrs.Factory(list)
    behind_refused: int = 0
    """The number of batches that may still arrive behind one that was rejected for lack of room."""
    generation: int = attrs.field(default=0, eq=False, repr=False)
    """The generation of the states in which this object was created; later generations get a
    copy."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def find(self, header: BatchHeader) -> Sent | None:
        """Return the remembered batch with exactly this epoch and these sequences."""
        if header.producer_epoch != self.epoch:
            return None
        last_sequence = header.last_sequence
        for batch in self.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        return None

    def add(self, header: BatchHeader, last_offset: int, timestamp: int) -> None:
        """Remember a batch with records."""
        self.timestamp, self.behind_refused = timestamp, 0
        batches, delta = self.batches, header.last_offset_delta
        if len(batches) == KEPT_BATCHES:
            del batches[0]
        batches.append(Sent(header.last_sequence, last_offset, delta, timestamp))


@attrs.define(eq=False, repr=False)
class ProducerStates:
    """All producers of one partition."""

    _producers: dict[int, Producer] = attrs.Factory(dict)
    open_starts: OrderedDict[int, int] = attrs.Factory(OrderedDict)
    """The first offset of each open transaction, mapped to its producer, in the order of their
    starts.

    It is an OrderedDict because the first key of a plain dict is slow to find once thousands of
    keys before it were removed.
    """
    unreplicated: list[EndedTransaction] = attrs.Factory(list)
    """Ended transactions that may hold back readers, by marker and by start; both only increase.

    If a transaction starts before another transaction but its marker comes later, it holds back
    readers for longer, so the other transaction is dropped.
    """
    _generation: int = 0
    """The number of frozen states, which share producers that have not changed since."""

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def all(self) -> Iterable[Producer]:
        return self._producers.values()

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Check that the leader may append a client's batch; return the offsets of a duplicate.

        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber or InvalidTxnState.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == producer.epoch and producer.batches:
            if sequence == (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX:
                self._check_transaction(producer, header)
                return None
            batch = producer.find(header)
            if batch is not None:
                base_offset = batch.last_offset - batch.offset_delta
                return Duplicate(base_offset, batch.last_offset, batch.timestamp)
        self._check_order(producer, epoch, sequence)
        self._check_transaction(producer, header)
        return None

    def find_next(self, header: BatchHeader) -> Producer | None:
        """Return the producer if a batch simply continues its sequence, or None.

        The batch has the producer's next sequence, and no frozen state shares the producer. The
        caller checks that a transactional batch continues an open transaction, and that other
        batches do not.
        """
        producer = self._producers.get(header.producer_id)
        if (
            producer is None
            or producer.epoch != header.producer_epoch
            or producer.generation != self._generation
        ):
            return None
        batches = producer.batches
        if batches and header.base_sequence == (batches[-1].last_sequence + 1) & SEQUENCE_MAX:
            return producer
        return None

    def note_refused(self, producer_id: int) -> None:
        """Record that a producer's batch was rejected for lack of room."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            producer.behind_refused = BEHIND_REFUSED

    def count_behind_refused(self, producer_id: int) -> bool:
        """Count an out-of-order batch; return whether it may have been sent behind a rejected one.

        That is so for as many batches as may have been in flight.
        """
        producer = self._producers.get(producer_id)
        if producer is None or not producer.behind_refused:
            return False
        producer.behind_refused -= 1
        return True

    def check_epoch(self, header: BatchHeader) -> None:
        """Raise InvalidProducerEpoch if a coordinator's batch has an older producer epoch."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {producer.epoch}, "
                f"not {header.producer_epoch}"
            )

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, is_strict: bool
    ) -> None:
        """Check that the leader may append a marker of a transaction coordinator.

        ``is_strict``: the coordinator bumped the epoch before the marker (``transaction.version``
        2), so a marker with the producer's own epoch is late: it could end the next transaction
        (KIP-1228). If no transaction is open, such a marker is accepted as a repetition. Raises
        InvalidProducerEpoch or TransactionCoordinatorFenced.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        is_late = is_strict and producer.open_from >= 0 and epoch != EPOCH_MAX
        if epoch < producer.epoch or (is_late and epoch == producer.epoch):
            raise InvalidProducerEpoch(
                f"producer {producer_id} has epoch {producer.epoch}, but its marker has {epoch}"
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"coordinator epoch {coordinator_epoch} is older than {producer.coordinator_epoch}"
            )

    def update(
        self,
        header: BatchHeader,
        base_offset: int,
        timestamp: int,
        marker: Marker | None = None,
    ) -> AbortedTxn | None:
        """Account for a batch stored at ``base_offset``; return the aborted transaction."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.generation != self._generation:
            producer = self._copy(header.producer_id, producer)
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        last_offset = base_offset + header.last_offset_delta
        if marker is not None:
            producer.timestamp, producer.behind_refused = timestamp, 0
            return self._end(producer, marker, last_offset)
        producer.add(header, last_offset, timestamp)
        if header.attributes & TRANSACTIONAL and producer.open_from < 0:
            producer.open_from = base_offset
            self.open_starts[base_offset] = header.producer_id
        return None

    def append(
        self, buf: Buffer, pos: int, header: BatchHeader, base_offset: int, timestamp: int
    ) -> AbortedTxn | None:
        """Account for a batch in ``buf``, stored at ``base_offset``; it may be a control batch."""
        if not header.attributes & CONTROL:
            return self.update(header, base_offset, timestamp)
        marker = marker_of(buf, pos, header)
        if marker is None:
            return None
        return self.update(header, base_offset, timestamp, marker)

    def replay(self, buf: Buffer, pos: int, header: BatchHeader) -> AbortedTxn | None:
        """Account for a batch that is already in this log, or was fetched from another."""
        return self.append(buf, pos, header, header.base_offset, header.max_timestamp)

    def last_stable_offset(self, high_watermark: int, log_start: int = 0) -> int:
        """Return the last stable offset: every transaction below it has ended.

        It is never below the log start, even if records of open transactions were deleted.
        """
        if not self.open_starts and not self.unreplicated:
            return high_watermark
        unstable = self.first_unstable(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, log_start)

    def first_unstable(self, high_watermark: int) -> int | None:
        """Return the start of the first transaction whose marker readers cannot see yet."""
        if not self.open_starts and not self.unreplicated:
            return None
        self.drop_replicated(high_watermark)
        first_open = self.first_open()
        if not self.unreplicated:
            return first_open
        first_ended = self.unreplicated[0].first_offset
        return first_ended if first_open is None else min(first_ended, first_open)

    def drop_replicated(self, high_watermark: int) -> None:
        """Drop ended transactions whose markers are below the high watermark."""
        unreplicated, count = self.unreplicated, 0
        while count < len(unreplicated) and unreplicated[count].last_offset < high_watermark:
            count += 1
        del unreplicated[:count]

    def first_open(self) -> int | None:
        """Return the first offset of the oldest open transaction."""
        return next(iter(self.open_starts), None)

    def expiring(self, now_ms: float, expiration_ms: int) -> Generator[None, None, int]:
        """Remove producers that are idle for ``expiration_ms``; return their number.

        Producers with an open transaction stay. The generator pauses regularly; producers may be
        added, changed and removed meanwhile, because each is judged by its state at its turn.
        """
        count = 0
        for number, producer_id in enumerate(list(self._producers), 1):
            producer = self._producers.get(producer_id)
            if (
                producer is not None
                and producer.open_from < 0
                and now_ms - producer.timestamp >= expiration_ms
            ):
                del self._producers[producer_id]
                count += 1
            if not number % SLICE_PRODUCERS:
                yield
        return count

    def clear(self) -> None:
        self._producers.clear()
        self.open_starts.clear()
        self.unreplicated.clear()

    def freeze(self) -> "FrozenProducers":
        """Return the current producers; later changes are made to copies of them."""
        self._generation += 1
        return FrozenProducers(list(self._producers.values()))

    def _copy(self, producer_id: int, producer: Producer | None) -> Producer:
        """Replace a producer that a frozen state may share by a copy; create one if it is None."""
        if producer is None:
            copy = Producer(producer_id)
        else:
            copy = attrs.evolve(producer, batches=producer.batches.copy())
        copy.generation = self._generation
        self._producers[producer_id] = copy
        return copy

    def _check_order(self, producer: Producer, epoch: int, sequence: int) -> None:
        name = f"producer {producer.producer_id}"
        if epoch < producer.epoch:
            raise InvalidProducerEpoch(f"{name} has epoch {producer.epoch}, not {epoch}")
        if epoch != producer.epoch:
            if sequence != 0 and producer.epoch != -1:
                raise OutOfOrderSequenceNumber(
                    f"{name} begins epoch {epoch} with sequence {sequence} instead of 0"
                )
            return
        last = producer.last_sequence
        if sequence != (last + 1) & SEQUENCE_MAX:
            raise OutOfOrderSequenceNumber(f"{name} sent sequence {sequence} after {last}")

    def _check_transaction(self, producer: Producer, header: BatchHeader) -> None:
        if producer.open_from >= 0 and not header.is_transactional:
            raise InvalidTxnState(
                f"producer {producer.producer_id} sent a plain batch inside its transaction"
            )

    def _end(self, producer: Producer, marker: Marker, last_offset: int) -> AbortedTxn | None:
        producer.coordinator_epoch = marker.coordinator_epoch
        first_offset, producer.open_from = producer.open_from, -1
        if first_offset < 0:
            return None
        del self.open_starts[first_offset]
        unreplicated = self.unreplicated
        while unreplicated and unreplicated[-1].first_offset > first_offset:
            unreplicated.pop()
        unreplicated.append(EndedTransaction(first_offset, last_offset))
        if not marker.abort:
            return None
        stable = next(iter(self.open_starts), last_offset + 1)
        return AbortedTxn(producer.producer_id, first_offset, last_offset, stable)

    def restoring(self, producers: Iterable[Producer]) -> Generator[None, None, None]:
        """Replace this state by that of a snapshot, pausing after each producer."""
        self.clear()
        starts = []
        for producer in producers:
            self._producers[producer.producer_id] = producer
            if producer.open_from >= 0:
                starts.append((producer.open_from, producer.producer_id))
            yield
        self.open_starts.update(sorted(starts))

    def replace(self, other: "ProducerStates") -> None:
        """Adopt a state that was built separately and is used nowhere else."""
        self._producers, self.open_starts = other._producers, other.open_starts
        self.unreplicated = other.unreplicated
        self._generation = max(self._generation, other._generation)


@attrs.frozen(eq=False, repr=False)
class FrozenProducers:
    """All producers of one partition at one moment, encoded when the snapshot is written."""

    _producers: list[Producer]

    def to_bytes(self) -> bytes:
        """Return the snapshot file's content, with only the last batch of each producer."""
        body = bytearray(len(self._producers).to_bytes(4, "big"))
        for producer in self._producers:
            last = producer.batches[-1] if producer.batches else Sent(-1, -1, 0, -1)
            body += _SNAPSHOT_ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.open_from,
            )
        return SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


def read_snapshot(data: bytes) -> list[Producer]:
    """Return the producers of a snapshot file; raises :class:`CorruptSnapshot` if it is damaged."""
    return list(iterate_snapshot(data))


def iterate_snapshot(data: bytes) -> Iterator[Producer]:
    """Return an iterator over a snapshot file's producers; raises CorruptSnapshot at once."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptSnapshot("producer snapshot is cut off")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION or crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise CorruptSnapshot("producer snapshot is damaged")
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshot("producer snapshot has the wrong size")
    return _producers(_SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :]))


def _producers(entries: Iterable[tuple[int, ...]]) -> Iterator[Producer]:
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator, open_from in entries:
        batches = [Sent(sequence, offset, delta, timestamp)] if offset >= 0 else []
        yield Producer(producer_id, epoch, coordinator, timestamp, open_from, batches)


def marker_of(buf: Buffer, pos: int, header: BatchHeader) -> Marker | None:
    """Return the transaction marker in a control batch; None if it holds another record."""
    try:
        first = next(records(buf, pos, header), None)
    except BadRecords:
        return None
    control = parse_key(first.key) if first is not None else None
    if first is None or control is None or control.type > ControlType.COMMIT:
        return None
    epoch = parse_end_txn(first.value)
    return None if epoch is None else Marker(control.type == ControlType.ABORT, epoch)
