"""Members, locks, lost writes and failovers in any order, beside a model of each record."""

from math import inf
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kwire.drive import run_steps
from kwire.errors import InvalidRecordState, InvalidRequest
from kwire.share.in_flight import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    Fetched,
    InFlight,
    Limits,
)
from kwire.share.persister import ReadState, StateBatch
from kwire.share.runs import Change, RecordState
from tests.support.share.persister import Stored

MEMBERS = st.sampled_from(["a", "b", "c"])
MAX_DELIVERIES = 4
MAX_IN_FLIGHT = 12
LARGEST_BATCH = 6
LARGEST_GAP = 2
LOCK_S = 10.0
TYPES = st.sampled_from([GAP, ACCEPT, RELEASE, REJECT, RENEW])


@attrs.define
class Record:
    """One record in the model."""

    holder: str = ""
    deadline: float = 0.0
    count: int = 0
    is_done: bool = False
    deliveries: int = 0
    change: Change | None = None


class InFlightMachine(RuleBasedStateMachine):
    """A log, its share partition, and the state that a persister has stored."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.epoch = 0
        self.log: list[tuple[int, int]] = []
        self.log_start = self.log_end = 0
        self.records: dict[int, Record] = {}
        self.stored = Stored(0, 0)
        self.writes: list[tuple[Change | None, list[StateBatch], dict[int, tuple[int, int]]]] = []
        self.share = InFlight(0, 0, 0, 0)

    # The log.

    @rule(
        sizes=st.lists(st.integers(1, LARGEST_BATCH), min_size=1, max_size=4),
        gap=st.integers(0, LARGEST_GAP),
    )
    def append(self, sizes: list[int], gap: int) -> None:
        for size in sizes:
            self.log_end += gap
            self.log.append((self.log_end, self.log_end + size - 1))
            for offset in range(self.log_end, self.log_end + size):
                self.records[offset] = Record()
            self.log_end += size

    @rule(index=st.integers(0, 20))
    def compact(self, index: int) -> None:
        if index < len(self.log):
            first, last = self.log.pop(index)
            for offset in range(first, last + 1):
                self.records.pop(offset, None)

    @rule(count=st.integers(1, 8))
    def delete_records(self, count: int) -> None:
        self.log_start = min(self.log_start + count, self.log_end)
        self.log = [batch for batch in self.log if batch[1] >= self.log_start]
        self.records = {o: each for o, each in self.records.items() if o >= self.log_start}
        self.share.move_start(self.log_start)

    # Members.

    @rule(
        member=MEMBERS,
        count=st.integers(1, 5),
        max_records=st.integers(1, 12),
        batch_size=st.integers(1, 8),
        by_record=st.booleans(),
    )
    def fetch(
        self, member: str, count: int, max_records: int, batch_size: int, by_record: bool
    ) -> None:
        limits = Limits(max_records, batch_size, MAX_IN_FLIGHT, MAX_DELIVERIES, by_record)
        self._fetch(member, count, limits)

    def _fetch(self, member: str, count: int, limits: Limits) -> list[Acquired]:
        if not self.share.can_acquire(limits.max_in_flight):
            assert self.share.in_flight_count >= limits.max_in_flight
            return []
        offset = self.share.next_fetch_offset
        batches = [batch for batch in self.log if batch[1] >= offset][:count]
        if not batches:
            return []
        acquired = self.share.acquire(member, Fetched(offset, batches), limits, self.now + LOCK_S)
        total = 0
        for first, last, delivery_count in acquired:
            total += last - first + 1
            for offset in range(first, last + 1):
                record = self.records.get(offset)
                if record is None:
                    continue  # The client reports the gap.
                assert not record.holder, f"{offset} is delivered while another member holds it"
                assert not record.is_done, f"{offset} is delivered again after it was complete"
                assert delivery_count == record.count + 1, f"wrong delivery count of {offset}"
                assert delivery_count <= limits.max_deliveries
                record.holder, record.deadline = member, self.now + LOCK_S
                record.count = delivery_count
                record.deliveries += 1
        if limits.by_record:
            assert total <= limits.max_records
        in_flight = sum(self.share.start <= each < self.share.end for each in self.records)
        assert in_flight < limits.max_in_flight + LARGEST_BATCH, "gaps do not count"
        return acquired

    @rule(
        member=MEMBERS,
        first=st.integers(0, 30),
        size=st.integers(1, 8),
        types=st.lists(TYPES, min_size=1, max_size=8),
    )
    def acknowledge(self, member: str, first: int, size: int, types: list[int]) -> None:
        first += self.share.start - 1
        types = types if len(types) == size else types[:1]
        acknowledgement = Acknowledgement(first, first + size - 1, types)
        offsets = range(max(first, self.share.start), first + size)
        own = [o for o in offsets if o in self.records]
        is_valid = all(
            self.records[o].holder == member and self.records[o].change is None for o in own
        )
        end = self.now + LOCK_S
        try:
            change = run_steps(
                self.share.acknowledging(member, [acknowledgement], MAX_DELIVERIES, end)
            )
        except (InvalidRecordState, InvalidRequest):
            assert not is_valid or not own or len(own) < len(offsets)
            return
        assert is_valid, "records were acknowledged by a member that does not hold them"
        outcomes = {}
        for offset in offsets:
            kind = types[offset - first] if len(types) == size else types[0]
            record = self.records.get(offset)
            if record is not None and kind == RENEW:
                record.deadline = end
            elif record is not None:
                record.change = change
                outcomes[offset] = kind, record.count
        if change.moves:
            self.writes.append((change, change.batches(), outcomes))

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        change = self.share.begin_release(member, MAX_DELIVERIES)
        outcomes = {}
        for offset, record in self.records.items():
            if record.holder == member and record.change is None:
                record.change = change
                outcomes[offset] = RELEASE, record.count
        if change.moves:
            self.writes.append((change, change.batches(), outcomes))

    # Writes, time and leaders.

    @rule(is_stored=st.booleans())
    def end_write(self, is_stored: bool) -> None:
        if not self.writes:
            return
        change, batches, outcomes = self.writes.pop(0)
        if is_stored:
            self.stored.merge(self.share.start, batches)
        if change is None:
            return
        self.share.complete(change, is_stored=is_stored)
        for offset, (kind, count) in outcomes.items():
            record = self.records.get(offset)
            if record is None or record.change is not change:
                continue
            record.change = None
            if is_stored:
                record.count, record.holder = count, ""
                record.is_done = kind != RELEASE or count >= MAX_DELIVERIES

    @rule(seconds=st.sampled_from([1.0, 5.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.expire()

    @rule()
    def expire(self) -> None:
        batches = self.share.expire(self.now, MAX_DELIVERIES)
        if batches:
            self.writes.append((None, batches, {}))
        for record in self.records.values():
            if record.holder and record.deadline <= self.now and record.change is None:
                record.holder = ""
                record.is_done = record.count >= MAX_DELIVERIES

    @rule()
    def fail_over(self) -> None:
        self.writes.clear()
        self.epoch += 1
        state = ReadState(0, 0, self.stored.start_offset, self.stored.batches())
        self.share = InFlight.resume(state, self.epoch, state.start_offset)
        self.share.move_start(self.log_start)
        self.now += LOCK_S
        for offset, record in self.records.items():
            count, stored_state = self.stored.deliveries.get(offset, (0, RecordState.AVAILABLE))
            is_done = stored_state != RecordState.AVAILABLE or offset < state.start_offset
            assert is_done or not record.is_done or count == 0 or record.count > 0
            record.holder, record.change, record.count = "", None, count
            record.is_done = is_done

    @invariant()
    def start_is_behind_everything_complete(self) -> None:
        for offset, record in self.records.items():
            assert record.is_done or offset >= self.share.start, f"{offset} was never delivered"
        assert self.share.complete_count <= self.share.in_flight_count

    @invariant()
    def next_check_of_locks_is_not_too_late(self) -> None:
        ends = [each.deadline for each in self.records.values() if each.holder and not each.change]
        assert self.share.deadline <= min(ends, default=inf)

    def teardown(self) -> None:
        """Deliver everything that is not complete: no record is lost."""
        while self.writes:
            self.end_write(is_stored=False)
        self.now += 2 * LOCK_S
        self.expire()
        limits = Limits(1000, 1000, 1000, 1000)
        while self._fetch("z", 1000, limits):
            pass
        for offset, record in self.records.items():
            assert record.is_done or record.holder == "z", f"{offset} is not delivered"


TestInFlightModel: Any = InFlightMachine.TestCase
