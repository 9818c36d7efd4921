"""The replay of an internal topic's partition into a coordinator's state machine.

Rules:

- Only the last record of each key is decoded and applied, as if the partition had been compacted,
  so a log of millions of commits costs little more than its live keys. Keys are applied in the
  order of their last records.
- If the machine needs its records in order, because a record only changes the state before it, each
  one is applied, with its offset.
- A transaction's records take effect only with its marker, and other records may supersede them
  before. So they are applied one by one, after everything that was written before them.
- A damaged batch or record is logged and skipped; all others are applied.

Pure: the caller reads the log, and lets other tasks run whenever a generator yields.
"""

import logging
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import attrs

from kwire.coordinator.decision import NO_OFFSET, Machine
from kwire.records.control import ControlType, parse_key
from kwire.records.header import NO_PRODUCER, BatchHeader, Buffer
from kwire.records.iterate import batches, records
from kwire.speedups import latest_records
from kwire.types import TopicPartition

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)

_SLICE_BYTES: Final = 32 << 10
"""The bytes of plain batches that are read between two yields: at most 0.2 ms in C."""
_LATEST_MAX: Final = 10_000
"""The number of waiting keys at which all of them are applied, to bound the memory."""
_RECORDS_A_YIELD: Final = 16


@attrs.define(eq=False, repr=False)
class Replay(Generic[M]):
    """One replay: its state machine, and the records that were read but not applied yet."""

    partition: TopicPartition
    machine: M
    in_order: bool = False
    """True if each record is applied, with its offset."""
    latest: dict[bytes, bytes | None] = attrs.field(factory=dict)
    """The last value of each key, in the order of the last writes."""

    def read(self, buf: Buffer, offset: int) -> Iterator[int]:
        """Read the batches of ``buf`` from ``offset`` onwards; yield the next offset to read.

        Some of the records are not applied until the caller runs :meth:`finish`.
        """
        pos, size = 0, len(buf)
        while pos < size:
            before = pos
            if not self.in_order:
                pos, offset = latest_records(buf, pos, offset, self.latest, _SLICE_BYTES)
            if pos > before:
                yield offset
                if len(self.latest) >= _LATEST_MAX:
                    for _ in self.finish():
                        yield offset
                continue
            following = next(batches(buf, pos), None)
            if following is None:  # The rest of the batch comes with the next read.
                return
            for _ in self.finish():
                yield offset
            _, header = following
            if header.next_offset > offset:
                for _ in self._replay_batch(buf, pos, header):
                    yield offset
                offset = header.next_offset
            pos += header.size
            yield offset

    def finish(self) -> Iterator[None]:
        """Apply the records that still wait in :attr:`latest`; yields now and then."""
        latest, self.latest = self.latest, {}
        apply_stored = self.machine.apply_stored
        for count, (key, value) in enumerate(latest.items()):
            if not apply_stored(key, value):
                self._apply(key, value, NO_PRODUCER, NO_OFFSET)
            if count % _RECORDS_A_YIELD == 0:
                yield

    def _replay_batch(self, buf: Buffer, pos: int, header: BatchHeader) -> Iterator[None]:
        """Apply the records of one batch; yields now and then."""
        try:
            if header.is_control:
                self._replay_control_batch(buf, pos, header)
                return
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
            for count, stored in enumerate(records(buf, pos, header)):
                offset = stored.offset if self.in_order else NO_OFFSET
                self._apply(stored.key or b"", stored.value, producer_id, offset)
                if self.in_order or count % _RECORDS_A_YIELD == 0:
                    yield
        except ValueError as error:
            logger.warning(
                "batch skipped partition=%s offset=%d error=%s",
                self.partition,
                header.base_offset,
                error,
            )

    def _replay_control_batch(self, buf: Buffer, pos: int, header: BatchHeader) -> None:
        for stored in records(buf, pos, header):
            control = parse_key(stored.key)
            if control is not None and control.type in (ControlType.ABORT, ControlType.COMMIT):
                self.machine.end_transaction(
                    header.producer_id, committed=control.type == ControlType.COMMIT
                )

    def _apply(self, key: bytes, value: bytes | None, producer_id: int, offset: int) -> None:
        """Apply one record; a damaged record is skipped."""
        try:
            record = self.machine.decode(key, value)
            if record is not None:
                if offset != NO_OFFSET:
                    record = record._replace(offset=offset)
                self.machine.apply(record, producer_id)
        except Exception as error:  # noqa: BLE001  A bad record must not stop the others.
            logger.warning(
                "record skipped partition=%s key=%r error=%r", self.partition, key[:80], error
            )
