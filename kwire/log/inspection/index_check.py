"""The comparison of a segment's index files with its batches, which the caller reads in order.

Rules: it accepts the files of every release of Apache Kafka. An entry of the offset index names the
start of a batch, and an offset below that of the next entry's batch: up to 4.0, the offset may
belong to a later batch than the one at the position, and after a compaction it may be that of the
last record left. An entry of the time index names a batch by one of its offsets, and has the
largest timestamp of that batch and of those before it. An entry of the transaction index names the
marker of an abort, and begins between the producer's marker before and the first data left.

An entry that breaks the order of a file is reported, and not compared.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.producers import marker_of
from kwire.records.header import NO_PRODUCER, BatchHeader, Buffer

NEVER: Final = (1 << 63) - 1
"""A position or an offset that no batch reaches."""


class WrongEntry(NamedTuple):
    """An entry of an index file that contradicts the batches, or the fault of a whole file."""

    suffix: str
    position: int
    """The position of the entry in the file, in bytes."""
    offset: int | None
    """The offset that the entry names, if there is an entry."""
    reason: str


Read: TypeAlias = Callable[[int, int], Buffer]
"""A function that reads from the log file: its arguments are the position and the size."""
Entry: TypeAlias = tuple[int, tuple[int, ...]]
"""The position of an entry in its file, and the entry's fields."""


class _Notes:
    """The wrong entries of one file."""

    __slots__ = ("_findings", "_only_first", "is_wrong")

    def __init__(self, findings: list[WrongEntry], only_first: bool) -> None:
        self._findings, self._only_first = findings, only_first
        self.is_wrong = False
        """True once the file has a wrong entry."""

    def add(self, wrong: WrongEntry) -> None:
        if not (self.is_wrong and self._only_first):
            self._findings.append(wrong)
        self.is_wrong = True


class IndexCheck:
    """The comparison of one segment's index files.

    :meth:`compare` is called for each batch, in order, and :meth:`finish` at the end of the file.
    """

    __slots__ = ("_aborted", "_offsets", "_times", "findings")

    def __init__(
        self,
        base_offset: int,
        files: Mapping[str, bytes],
        *,
        only_first: bool = False,
        is_complete: bool = False,
        interval: int = NEVER,
    ) -> None:
        """``files`` has the content of the files that exist, by suffix.

        With ``only_first``, the rest of a file is not compared after its first wrong entry. With
        ``is_complete``, the segment is closed: the last timestamp must be the largest, and each
        abort of data in the segment has an entry. Without entries in the offset index, no batch may
        begin past ``interval``.
        """
        self.findings: list[WrongEntry] = []
        """The wrong entries found so far; the caller may remove them."""
        offsets, times, aborted = (
            files.get(suffix) for suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)
        )
        notes = [_Notes(self.findings, only_first) for _ in range(3)]
        self._offsets = _Offsets(notes[0], base_offset, offsets, interval)
        self._times = _Times(notes[1], base_offset, times, is_complete)
        self._aborted = _Aborted(notes[2], base_offset, aborted or b"", is_complete)

    def compare(self, position: int, header: BatchHeader, read: Read) -> None:
        """Compare a batch with the entries that name it; ``read`` returns bytes of the file."""
        if position >= self._offsets.position:
            self._offsets.compare(position, header)
        times = self._times
        if header.max_timestamp > times.largest or header.last_offset >= times.offset:
            times.compare(header)
        aborted = self._aborted
        if header.last_offset >= aborted.offset or (
            header.producer_id > NO_PRODUCER and (header.is_transactional or header.is_control)
        ):
            aborted.compare(position, header, read)

    def skip(self, position: int) -> None:
        """Account for a damaged batch, whose timestamps and transactions are unknown."""
        self._offsets.skip(position)
        self._times.stop()
        self._aborted.stop()

    def finish(self, last_position: int, end_offset: int) -> None:
        """Judge the entries after the last batch, which begins at ``last_position``."""
        self._offsets.finish(last_position, end_offset)
        self._times.finish(end_offset)
        self._aborted.finish(end_offset)


class _Offsets:
    """The comparison of the offset index."""

    __slots__ = (
        "_base",
        "_entries",
        "_interval",
        "_is_empty",
        "_last",
        "_next",
        "_notes",
        "position",
    )

    def __init__(self, notes: _Notes, base_offset: int, data: bytes | None, interval: int) -> None:
        self._notes, self._base = notes, base_offset
        self._interval = NEVER if data is None else interval
        self._is_empty = not data
        self._entries = _in_order(names.INDEX, offset_index.ENTRY, data or b"", notes, base_offset)
        self._last: Entry | None = None
        """The entry before the next one, whose offset has no upper bound yet."""
        self._next: Entry | None = None
        self.position = NEVER
        """The position in the log file that the next entry names."""
        self._advance()

    def _advance(self) -> None:
        self._last, self._next = self._next, next(self._entries, None)
        self.position = NEVER if self._next is None else self._next[1][1]

    def compare(self, position: int, header: BatchHeader) -> None:
        while self.position <= position:
            entry = self._next
            assert entry is not None
            if self.position != position or not position:
                self._report(entry, f"no batch begins at position {self.position}")
                self._next = None
            else:
                self._judge_end(header.base_offset)
                if self._base + entry[1][0] < header.base_offset:
                    text = f"the batch at position {position} begins at offset {header.base_offset}"
                    self._report(entry, text)
                    self._next = None
            self._advance()

    def skip(self, position: int) -> None:
        """Pass over entries up to a damaged batch without judging them."""
        while self.position <= position:
            self._next = None
            self._advance()

    def _judge_end(self, end_offset: int) -> None:
        """Judge the last entry: a later batch, which another entry names, begins at an offset."""
        if self._last is not None and self._base + self._last[1][0] >= end_offset:
            self._report(self._last, f"a batch of a later entry begins at offset {end_offset}")

    def finish(self, last_position: int, end_offset: int) -> None:
        if self._next is not None:
            self._report(self._next, f"no batch begins at position {self.position}")
        elif self._last is not None and self._base + self._last[1][0] >= end_offset:
            self._report(self._last, f"the segment ends at {end_offset}")
        if self._is_empty and last_position > self._interval:
            self._notes.add(WrongEntry(names.INDEX, 0, None, "the index has no entries"))

    def _report(self, entry: Entry, reason: str) -> None:
        self._notes.add(WrongEntry(names.INDEX, entry[0], self._base + entry[1][0], reason))


class _Times:
    """The comparison of the time index."""

    __slots__ = (
        "_base",
        "_entries",
        "_is_complete",
        "_last_time",
        "_next",
        "_notes",
        "largest",
        "offset",
    )

    def __init__(
        self, notes: _Notes, base_offset: int, data: bytes | None, is_complete: bool
    ) -> None:
        self._notes, self._base = notes, base_offset
        self._is_complete = is_complete and data is not None
        self._entries = _in_order(
            names.TIME_INDEX, time_index.ENTRY, data or b"", notes, base_offset
        )
        self.largest = -1
        """The largest timestamp of the batches so far."""
        self.offset = NEVER
        """The offset that the next entry names."""
        self._next: Entry | None = None
        self._last_time = -1
        """The timestamp of the last entry that was compared, or -1."""
        self._advance()

    def _advance(self) -> None:
        self._next = next(self._entries, None)
        self.offset = NEVER if self._next is None else self._base + self._next[1][1]

    def compare(self, header: BatchHeader) -> None:
        self.largest = largest = max(self.largest, header.max_timestamp)
        while self.offset <= header.last_offset:
            assert self._next is not None
            self._last_time = timestamp = self._next[1][0]
            reason = ""
            if self.offset < header.base_offset:
                reason = f"no batch has offset {self.offset}"
            elif timestamp != largest:
                reason = f"timestamp {timestamp}, but the largest one so far is {largest}"
            elif timestamp != header.max_timestamp:
                reason = f"timestamp {timestamp}, but that of the batch is {header.max_timestamp}"
            if reason:
                self._report(self._next[0], self.offset, reason)
            self._advance()

    def _report(self, position: int, offset: int | None, reason: str) -> None:
        self._notes.add(WrongEntry(names.TIME_INDEX, position, offset, reason))

    def stop(self) -> None:
        """Judge no further entries."""
        self._next, self._entries, self.offset = None, iter(()), NEVER
        self._is_complete = False

    def finish(self, end_offset: int) -> None:
        if self._next is not None:
            self._report(self._next[0], self.offset, f"the segment ends at {end_offset}")
        elif self._is_complete and not self._notes.is_wrong and self._last_time != self.largest:
            reason = f"the last timestamp is {self._last_time}, but the largest is {self.largest}"
            self._report(0, None, reason)


class _Aborted:
    """The comparison of the index of aborted transactions."""

    __slots__ = (
        "_entries",
        "_first_data",
        "_is_complete",
        "_is_stopped",
        "_last_marker",
        "_last_stable",
        "_next",
        "_notes",
        "offset",
    )

    def __init__(self, notes: _Notes, base_offset: int, data: bytes, is_complete: bool) -> None:
        self._notes, self._is_complete = notes, is_complete
        self._entries = _in_order(names.TXN_INDEX, txn_index.ENTRY, data, notes, 0)
        self._first_data: dict[int, int] = {}
        """The first data in this segment of each open transaction, by producer."""
        self._last_marker: dict[int, int] = {}
        """The offset of the last marker in this segment of each producer."""
        self._last_stable = 0
        self._is_stopped = False
        self.offset = NEVER
        """The offset of the marker that the next entry names."""
        self._next: tuple[int, txn_index.AbortedTxn] | None = None
        self._advance()

    def _advance(self) -> None:
        entry = next(self._entries, None)
        if entry is None:
            self._next, self.offset = None, NEVER
            return
        self._next = entry[0], txn_index.AbortedTxn._make(entry[1][1:])
        self.offset = self._next[1].last_offset
        if entry[1][0] != txn_index.VERSION:
            self._report(*self._next, f"version {entry[1][0]}")

    def compare(self, position: int, header: BatchHeader, read: Read) -> None:
        if self._is_stopped:
            return
        producer, first_data, marker = header.producer_id, None, None
        if header.is_control and producer > NO_PRODUCER:
            marker = marker_of(read(position, header.size), 0, header)
        if marker is not None:
            first_data = self._first_data.pop(producer, None)
        elif header.is_transactional and not header.is_control and header.record_count > 0:
            self._first_data.setdefault(producer, header.base_offset)
        is_abort, has_entry = marker is not None and marker.abort, False
        while self._next is not None and self.offset <= header.last_offset:
            at, entry = self._next
            if not is_abort or entry.last_offset < header.base_offset:
                self._report(at, entry, "no marker of an abort is at this offset")
            elif entry.producer_id != producer:
                has_entry = True
                self._report(at, entry, f"producer {entry.producer_id}, the marker's is {producer}")
            else:
                has_entry = True
                self._judge(at, entry, first_data)
            self._advance()
        is_missing = is_abort and not has_entry and first_data is not None
        if is_missing and self._is_complete and not self._notes.is_wrong:
            reason = f"the aborted transaction from offset {first_data} has no entry"
            self._notes.add(WrongEntry(names.TXN_INDEX, 0, header.last_offset, reason))
        if marker is not None:
            self._last_marker[producer] = header.last_offset

    def _judge(self, position: int, entry: txn_index.AbortedTxn, first_data: int | None) -> None:
        """Judge the offsets of an entry that names the marker of its producer's abort."""
        last_offset, stable = entry.last_offset, entry.last_stable_offset
        start = last_offset if first_data is None else first_data
        # The open transactions are in the order of their first data.
        stable_max = min(last_offset + 1, next(iter(self._first_data.values()), NEVER))
        if not self._last_marker.get(entry.producer_id, -1) < entry.first_offset <= start:
            reason = f"first offset {entry.first_offset}, but the data begin at {start}"
            self._report(position, entry, reason)
        elif not self._last_stable <= stable <= stable_max:
            self._report(position, entry, f"last stable offset {stable}")
        else:
            self._last_stable = stable

    def _report(self, position: int, entry: txn_index.AbortedTxn, reason: str) -> None:
        self._notes.add(WrongEntry(names.TXN_INDEX, position, entry.last_offset, reason))

    def stop(self) -> None:
        """Judge no further entries."""
        self._next, self.offset, self._is_stopped = None, NEVER, True

    def finish(self, end_offset: int) -> None:
        if self._next is not None:
            self._report(*self._next, f"the segment ends at {end_offset}")


_KEYS: Final[dict[str, tuple[int, int]]] = {
    names.INDEX: (0, 1),
    names.TIME_INDEX: (0, 1),
    names.TXN_INDEX: (3, 3),
}
"""The fields that increase from entry to entry; only the first one does so strictly in the time
index, and the transaction index has only one of them."""
_OFFSET_FIELDS: Final = {names.INDEX: 0, names.TIME_INDEX: 1, names.TXN_INDEX: 3}


def _in_order(
    suffix: str, struct_of: struct.Struct, data: bytes, notes: _Notes, base_offset: int
) -> Iterator[Entry]:
    """Yield the entries that are in order, and report the others.

    Where two neighbours are not in order, the former one is wrong if the file is in order without
    it, because a single large value would otherwise condemn all entries after it.
    """
    size = struct_of.size
    whole = len(data) - len(data) % size
    if whole < len(data):
        reason = f"{len(data)} bytes are not a whole number of entries"
        notes.add(WrongEntry(suffix, whole, None, reason))

    def report(entry: Entry) -> None:
        offset = base_offset + entry[1][_OFFSET_FIELDS[suffix]]
        notes.add(WrongEntry(suffix, entry[0], offset, "the entry is out of order"))

    first, second = _KEYS[suffix]
    is_strict = suffix == names.INDEX

    def follows(before: Entry, after: Entry) -> bool:
        old, new = before[1], after[1]
        is_later = new[second] > old[second] if is_strict else new[second] >= old[second]
        return new[first] > old[first] and is_later

    entries: Iterable[Entry] = zip(
        range(0, whole, size), struct_of.iter_unpack(memoryview(data)[:whole]), strict=True
    )
    last: Entry | None = None
    pending: Entry | None = None
    for entry in entries:
        if pending is not None and not follows(pending, entry):
            if last is not None and not follows(last, entry):
                report(entry)
                continue
            report(pending)
        elif pending is not None:
            last = pending
            yield pending
        pending = entry
    if pending is not None:
        yield pending
