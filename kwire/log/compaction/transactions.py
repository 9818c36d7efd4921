"""The transactions that a cleaning pass encounters while it reads a log from its start.

Rules: no I/O. Transactional data is aborted if an index entry says so, otherwise it counts as
committed, because nothing at or above the last stable offset is cleaned. A marker is kept if the
pass has seen data of its transaction, because readers need both; a batch that an earlier pass
emptied counts as data. The state is kept for a whole pass, because a transaction may span several
groups.
"""

import heapq
from collections.abc import Iterator

from kwire.log.formats.txn_index import AbortedTxn
from kwire.records.control import ControlType
from kwire.records.header import TRANSACTIONAL, BatchHeader


class TransactionState:
    """The open transactions at the current offset of a pass."""

    __slots__ = ("_aborted", "_committed", "_entries", "_has_data", "_last_stable_offset", "_next")

    def __init__(self, entries: Iterator[AbortedTxn]) -> None:
        """``entries``: the index entries from the current segment onwards, in the markers' order.

        They are consumed as they are needed.
        """
        self._entries = entries
        self._last_stable_offset = -1
        self._next: list[tuple[int, AbortedTxn]] = []
        """The aborted transactions that begin at a later offset: a heap ordered by first offset."""
        self._aborted: dict[int, AbortedTxn] = {}
        """The open aborted transaction of each producer, by producer id."""
        self._has_data: set[int] = set()
        """The producers of open aborted transactions whose data the pass has seen."""
        self._committed: set[int] = set()
        """The producers of open committed transactions whose data the pass has seen."""

    def load(self, end_offset: int) -> None:
        """Read the entries of all aborted transactions that begin below ``end_offset``.

        All later entries begin at or above the last stable offset of an entry.
        """
        while self._last_stable_offset < end_offset:
            entry = next(self._entries, None)
            if entry is None:
                return
            heapq.heappush(self._next, (entry.first_offset, entry))
            self._last_stable_offset = max(self._last_stable_offset, entry.last_stable_offset)

    def on_data(self, header: BatchHeader) -> bool:
        """Account for a batch that is not a control batch; return whether it was aborted."""
        if not header.attributes & TRANSACTIONAL:
            return False
        self._begin(header.last_offset)
        if header.producer_id in self._aborted:
            self._has_data.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_control(
        self, header: BatchHeader, control_type: int | None
    ) -> tuple[bool, AbortedTxn | None]:
        """Account for a control batch whose record has this type, or that is empty (None).

        Return whether no data of its transaction is left, and the entry for the new index, if any.
        """
        self._begin(header.last_offset)
        producer_id = header.producer_id
        if control_type is None:
            return True, None  # An earlier pass emptied the batch and kept its producer's epoch.
        if control_type == ControlType.ABORT:
            entry = self._aborted.pop(producer_id, None)
            if producer_id in self._has_data:
                self._has_data.remove(producer_id)
                return False, entry
            return True, None
        if control_type == ControlType.COMMIT:
            has_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not has_data, None
        return False, None

    def _begin(self, offset: int) -> None:
        """Begin the aborted transactions whose first offset is at most ``offset``."""
        while self._next and self._next[0][0] <= offset:
            entry = heapq.heappop(self._next)[1]
            self._aborted.setdefault(entry.producer_id, entry)
