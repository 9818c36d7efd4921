"""The records of a share partition that are in flight, and the members that hold them (KIP-932).

Pure: each method takes the time and decides at once. Rules:

* A record is acquired by at most one member at a time, until the member acknowledges it, its lock
  ends, or the member leaves.
* An acknowledgement or release changes nothing before it is stored: :meth:`acknowledging` and
  :meth:`begin_release` reserve the records, :meth:`complete` changes or frees them. The end of a
  lock is stored later, because nobody waits for it: after a failover the records would be available
  in any case.
* An acknowledged or archived record is never delivered again. A record is archived when it has been
  delivered as often as the group allows.
* After a failover, offsets that were delivered but have no stored state are available, with a
  delivery count of 0.
* Locks do not need a timer each: :attr:`deadline` is never later than the end of the first lock.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from math import inf
from typing import Final, NamedTuple

import attrs

from kwire.errors import InvalidRecordState, InvalidRequest
from kwire.share.persister import ReadState, StateBatch
from kwire.share.runs import Change, RecordState, Run, Runs, join

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
TYPE_NAMES: Final = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}
"""The names of the acknowledgement types that members send; GAP is not counted."""
ACQUIRED_AT_ONCE: Final = 1000
"""The most runs that one request acquires; the next request gets the others."""
EXPIRED_AT_ONCE: Final = 1000
"""The most runs whose locks end in one call; the next call ends the others."""
_OUTCOMES: Final = {
    GAP: RecordState.ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: RecordState.AVAILABLE,
    REJECT: RecordState.ARCHIVED,
}


class Limits(NamedTuple):
    """The limits of what one request may acquire."""

    max_records: int
    batch_size: int
    """New records are acquired in batches of about this size."""
    max_in_flight: int
    """The most records between the start and the end of the share partition."""
    max_deliveries: int
    by_record: bool = False
    """True if ``max_records`` is exact; otherwise whole batches are acquired."""


class Fetched(NamedTuple):
    """The batches that were read from the log; none of them is empty."""

    offset: int
    """The offset from which they were read."""
    batches: Sequence[tuple[int, int]]
    """First and last offset of each batch."""
    aborted: Sequence[tuple[int, int]] = ()
    """First and last offset of each batch of an aborted transaction, for read_committed."""


class Acquired(NamedTuple):
    """Records that a member has acquired; both offsets are inclusive."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of records; both offsets are inclusive."""

    first_offset: int
    last_offset: int
    types: Sequence[int]
    """One type for all records, or one for each."""


@attrs.define(eq=False, repr=False)
class InFlight:
    """The in-flight records of one share partition."""

    start: int
    """Everything before this offset is complete."""
    end: int
    """The first offset that was never acquired."""
    state_epoch: int
    leader_epoch: int
    deadline: float = inf
    """The time of the next :meth:`expire`, never later than the end of the first lock."""
    _runs: Runs = attrs.field(factory=Runs)
    _may_have_available: bool = False
    """False only if there is no available run."""

    @classmethod
    def resume(cls, state: ReadState, leader_epoch: int, start: int) -> "InFlight":
        """Continue with a stored state whose start offset is ``start``."""
        runs, end = Runs(), start
        for batch in sorted(state.batches):
            first = max(batch.first_offset, end)
            if batch.last_offset < first:
                continue
            if first > end:
                runs.append(Run(end, first - 1, RecordState.AVAILABLE, 0, first - end))
            end = batch.last_offset + 1
            delivery_state = RecordState(batch.delivery_state)
            runs.append(Run(first, end - 1, delivery_state, batch.delivery_count, end - first))
        resumed = cls(start, end, state.state_epoch, leader_epoch, inf, runs, True)
        resumed._advance()
        return resumed

    @property
    def in_flight_count(self) -> int:
        """The number of offsets from the start to the end."""
        return self.end - self.start if self._runs else 0

    @property
    def batch_count(self) -> int:
        return len(self._runs)

    @property
    def complete_count(self) -> int:
        """The number of complete in-flight records, once current changes are stored."""
        return sum(run.size for run in self._runs if run.will_be_complete)

    @property
    def next_fetch_offset(self) -> int:
        """The offset from which to read the records for a member."""
        if self._may_have_available:
            for run in self._runs:
                if run.is_available:
                    return run.first
            self._may_have_available = False
        return self.end

    def can_acquire(self, max_in_flight: int) -> bool:
        """Return whether a request may get records if the log has any."""
        return self.next_fetch_offset < self.end or self.in_flight_count < max_in_flight

    # Acquiring.

    def acquire(
        self, member: str, fetched: Fetched, limits: Limits, lock_end: float
    ) -> list[Acquired]:
        """Acquire fetched records for a member until ``lock_end``.

        Records whose delivery has failed often are acquired in ever smaller parts, finally one by
        one, so that one bad record does not cause its neighbours to be archived.
        """
        first, last = fetched.batches[0][0], fetched.batches[-1][1]
        if limits.max_records <= 0:
            return []
        if fetched.offset < first and self._archive(
            RecordState.AVAILABLE, fetched.offset, first - 1
        ):
            self._advance()  # Compaction has removed these records.
        acquired, is_full = self._acquire_again(member, fetched, limits, lock_end)
        if not is_full and last >= self.end:
            room = limits.max_records - sum(_size(each) for each in acquired)
            acquired += self._acquire_new(member, fetched, limits, room, lock_end)
        if acquired:
            self.deadline = min(self.deadline, lock_end)
        if acquired and fetched.aborted:
            acquired = self._archive_aborted(acquired, fetched.aborted)
        return acquired

    def _acquire_again(
        self, member: str, fetched: Fetched, limits: Limits, lock_end: float
    ) -> tuple[list[Acquired], bool]:
        """Acquire available records before the end; return whether no more may be acquired."""
        first, last = fetched.batches[0][0], fetched.batches[-1][1]
        failing_count = max(2, (limits.max_deliveries + 1) // 2)
        acquired: list[Acquired] = []
        room = limits.max_records
        for run in self._runs.overlapping(first, last) if self._may_have_available else ():
            if room <= 0:
                return acquired, True
            if not run.is_available:
                continue
            begin, stop = max(first, run.first), min(last, run.last)
            is_failing = run.delivery_count >= failing_count
            if is_failing and acquired:
                return acquired, True
            if is_failing:
                is_last_delivery = run.delivery_count == limits.max_deliveries - 1
                halvings = run.delivery_count - failing_count + 1
                count = 1 if is_last_delivery else max(1, run.batch_size >> halvings)
                stop = min(stop, begin + count - 1)
            if stop - begin >= room and (limits.by_record or not run.delivery_count):
                limit = begin + room - 1
                stop = limit if limits.by_record else min(stop, _batch_end(fetched, limit))
            if run.first != begin or run.last != stop:
                (run,) = self._runs.isolate(begin, stop)
            run.acquire(member, lock_end)
            acquired.append(Acquired(begin, stop, run.delivery_count))
            room -= stop - begin + 1
            if is_failing or len(acquired) >= ACQUIRED_AT_ONCE:
                return acquired, True
        return acquired, room <= 0

    def _acquire_new(
        self, member: str, fetched: Fetched, limits: Limits, room: int, lock_end: float
    ) -> list[Acquired]:
        """Acquire records that were never acquired before."""
        first, last = max(self.end, fetched.batches[0][0]), fetched.batches[-1][1]
        if not self._runs:
            self.start = self.end = first  # Compaction has removed everything before these records.
        count = min(room, limits.max_in_flight - self.in_flight_count)
        if count <= 0:
            return []
        if last - first >= count:
            last = first + count - 1
            if not limits.by_record:
                last = _batch_end(fetched, last)
        batch_size = inf if limits.by_record else max(1, limits.batch_size)  # 0 if left out.
        acquired = []
        for begin, stop in _split(first, last, batch_size, fetched.batches):
            size = stop - begin + 1
            self._runs.append(Run(begin, stop, RecordState.ACQUIRED, 1, size, member, lock_end))
            acquired.append(Acquired(begin, stop, 1))
        self.end = last + 1
        return acquired

    def _archive_aborted(
        self, acquired: list[Acquired], aborted: Sequence[tuple[int, int]]
    ) -> list[Acquired]:
        """Archive the records of aborted transactions; return the other acquired records."""
        rest = []
        for each in acquired:
            first, last = each.first_offset, each.last_offset
            for begin, stop in aborted:
                if stop < first or begin > last:
                    continue
                if begin > first:
                    rest.append(each._replace(first_offset=first, last_offset=begin - 1))
                self._archive(RecordState.ACQUIRED, max(first, begin), min(last, stop))
                first = stop + 1
            if first <= last:
                rest.append(each._replace(first_offset=first))
        self._advance()
        return rest

    def _archive(self, state: RecordState, first: int, last: int) -> bool:
        """Archive the records of a range that are in ``state``; return whether there were any."""
        is_changed = False
        for run in self._runs.overlapping(first, last):
            if run.state is state and run.change is None:
                for part in self._runs.isolate(max(first, run.first), min(last, run.last)):
                    part.settle(RecordState.ARCHIVED, part.delivery_count)
                is_changed = True
        return is_changed

    # Acknowledging.

    def acknowledging(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        max_deliveries: int,
        lock_end: float,
        *,
        may_renew: bool = True,
    ) -> Generator[None, None, Change]:
        """Reserve acquired records that their member has acknowledged, or renew their locks.

        If one is invalid, raises InvalidRecordState or InvalidRequest and reserves nothing.
        Offsets before the start offset are ignored. Other tasks do not change reserved records.
        """
        change = Change()
        try:
            for each in acknowledgements:
                if each.last_offset < self.start:
                    continue
                if RENEW in each.types and not may_renew:
                    raise InvalidRecordState("Renewing locks is not enabled for the group.")
                self._check_acknowledgement(member, each)
                for first, last, kind in _pieces(each):
                    if last < self.start:
                        continue
                    # During a pause, a lock may have ended and another member got the record.
                    self._check_acknowledgement(member, Acknowledgement(first, last, (kind,)))
                    if kind == RENEW:
                        self._renew(first, last, lock_end)
                    else:
                        self._reserve(change, first, last, kind, max_deliveries)
                    yield
        except BaseException:
            self.complete(change, is_stored=False)
            raise
        return change

    def _renew(self, first: int, last: int, lock_end: float) -> None:
        for run in self._runs.isolate(first, last):
            run.deadline = lock_end
        self.deadline = min(self.deadline, lock_end)

    def _reserve(
        self, change: Change, first: int, last: int, kind: int, max_deliveries: int
    ) -> None:
        for run in self._runs.isolate(first, last):
            change.add(run, *_outcome(run, kind, max_deliveries))

    def _check_acknowledgement(self, member: str, acknowledgement: Acknowledgement) -> None:
        first, last = max(acknowledgement.first_offset, self.start), acknowledgement.last_offset
        if not self._runs:
            raise InvalidRecordState("Batch record not found in the share partition.")
        if last >= self.end:
            raise InvalidRequest("The last offset in the request is past the acquired records.")
        for run in self._runs.overlapping(first, last):
            if run.state is not RecordState.ACQUIRED:
                raise InvalidRecordState("The records are not acquired.")
            if run.change is not None:
                raise InvalidRecordState("An earlier acknowledgement is still being stored.")
            if run.member != member:
                raise InvalidRecordState("The member has not acquired the records.")

    def begin_release(self, member: str, max_deliveries: int) -> Change:
        """Reserve the records of a member whose session has ended, to release them."""
        change = Change()
        for run in self._runs:
            if run.member == member and run.change is None:
                change.add(run, *_outcome(run, RELEASE, max_deliveries))
        return change

    def complete(self, change: Change, *, is_stored: bool) -> bool:
        """Apply a stored change, or free its records; return whether more records may be available.

        Locks that were due in the meantime end in the next :meth:`expire`.
        """
        for run, state, delivery_count in change.moves:
            run.change = None
            if is_stored:
                run.settle(state, delivery_count)
                self._may_have_available |= state is RecordState.AVAILABLE
            else:
                self.deadline = min(self.deadline, run.deadline)
        return is_stored and (self._advance() or self._may_have_available)

    # Ends of locks, and of the log's records.

    def expire(self, now: float, max_deliveries: int) -> list[StateBatch]:
        """End the locks that are due; return the states to store, empty if no lock was due.

        At most :data:`EXPIRED_AT_ONCE` locks end; if more are due, :attr:`deadline` stays in the
        past.
        """
        expired: list[StateBatch] = []
        next_deadline = inf
        for run in self._runs:
            if run.deadline > now or len(expired) >= EXPIRED_AT_ONCE:
                if run.change is None:
                    next_deadline = min(next_deadline, run.deadline)
            elif run.change is None:
                run.settle(*_outcome(run, RELEASE, max_deliveries))
                expired.append(StateBatch(run.first, run.last, run.state, run.delivery_count))
        self.deadline = next_deadline
        if expired:
            self._may_have_available = True
            self._advance()
        return join(expired)

    def move_start(self, offset: int) -> bool:
        """Drop the records before a log's new start; return whether anything changed.

        Acquired records are dropped too: their acknowledgements are ignored.
        """
        if offset <= self.start:
            return False
        self._runs.drop_before(offset)
        self.start, self.end = offset, max(self.end, offset)
        self._advance()
        return True

    def _advance(self) -> bool:
        """Move the start past complete records; return whether it has moved."""
        if not self._runs.drop_complete():
            return False
        self.start = next((run.first for run in self._runs), self.end)
        return True


def _outcome(run: Run, kind: int, max_deliveries: int) -> tuple[RecordState, int]:
    """Return the state and delivery count of a run after an acknowledgement or a lock's end."""
    state = _OUTCOMES[kind]
    if state is RecordState.AVAILABLE and run.delivery_count >= max_deliveries:
        state = RecordState.ARCHIVED
    return state, run.delivery_count


def _pieces(acknowledgement: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """Yield the first offset, last offset and type of each part with a single type."""
    first, last, types = acknowledgement
    if len(types) == 1:
        yield first, last, types[0]
        return
    for kind, equal in groupby(types):
        stop = first + sum(1 for _ in equal)
        yield first, stop - 1, kind
        first = stop


def _size(acquired: Acquired) -> int:
    return acquired.last_offset - acquired.first_offset + 1


def _split(
    first: int, last: int, batch_size: float, batches: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield parts of about ``batch_size`` records that begin at the start of a batch."""
    for base, _ in batches:
        if base > last:
            break
        if base - first >= batch_size:
            yield first, base - 1
            first = base
    yield first, last


def _batch_end(fetched: Fetched, offset: int) -> int:
    """Return the last offset of the batch that contains ``offset``."""
    index = bisect_right(fetched.batches, offset, key=lambda batch: batch[0]) - 1
    return max(offset, fetched.batches[index][1]) if index >= 0 else offset
