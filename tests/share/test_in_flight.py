"""Single rules of the records in flight; their combinations: test_in_flight_model.py."""

import pytest

from kwire.drive import run_steps
from kwire.errors import InvalidRecordState
from kwire.share.in_flight import ACCEPT, RELEASE, Acknowledgement, Fetched, InFlight, Limits
from kwire.share.persister import ReadState, StateBatch

LIMITS = Limits(max_records=100, batch_size=100, max_in_flight=10, max_deliveries=5)
LOCK_END = 30.0


def batches(first: int, last: int) -> list[tuple[int, int]]:
    """Return batches of two records each."""
    return [(offset, offset + 1) for offset in range(first, last, 2)]


def test_new_records_are_acquired_up_to_the_limit_in_flight() -> None:
    share = InFlight(0, 0, 0, 0)
    share.acquire("a", Fetched(0, batches(0, 8)), LIMITS, LOCK_END)
    acquired = share.acquire("b", Fetched(8, batches(8, 40)), LIMITS, LOCK_END)
    assert acquired == [(8, 9, 1)]
    assert not share.can_acquire(LIMITS.max_in_flight)
    assert share.acquire("b", Fetched(10, batches(10, 40)), LIMITS, LOCK_END) == []


def test_records_that_compaction_removed_do_not_stop_the_start() -> None:
    stored = ReadState(0, 0, 0, [StateBatch(4, 5, 2, 1)])
    share = InFlight.resume(stored, 1, 0)
    assert share.next_fetch_offset == 0
    acquired = share.acquire("a", Fetched(0, [(2, 3), (4, 5)]), LIMITS, LOCK_END)
    assert acquired == [(2, 3, 1)]
    assert share.start == 2
    run = Acknowledgement(2, 3, [ACCEPT])
    change = run_steps(share.acknowledging("a", [run], LIMITS.max_deliveries, LOCK_END))
    share.complete(change, is_stored=True)
    assert (share.start, share.end) == (6, 6)


def test_stored_states_continue_with_their_delivery_counts() -> None:
    stored = ReadState(0, 3, 10, [StateBatch(12, 13, 0, 2), StateBatch(14, 15, 4, 5)])
    share = InFlight.resume(stored, 1, 10)
    acquired = share.acquire("a", Fetched(10, batches(10, 18)), LIMITS, LOCK_END)
    assert acquired == [(10, 11, 1), (12, 13, 3), (16, 17, 1)]
    assert share.complete_count == 2


def test_acknowledgement_takes_no_records_that_another_member_has_got_meanwhile() -> None:
    share = InFlight(0, 0, 0, 0)
    share.acquire("a", Fetched(0, batches(0, 4)), LIMITS, LOCK_END)
    pieces = Acknowledgement(0, 3, [ACCEPT, ACCEPT, RELEASE, RELEASE])
    steps = share.acknowledging("a", [pieces], LIMITS.max_deliveries, LOCK_END)
    next(steps)  # The first two records are reserved.
    share.expire(LOCK_END, LIMITS.max_deliveries)
    acquired = share.acquire("b", Fetched(2, [(2, 3)]), LIMITS, 2 * LOCK_END)
    assert acquired == [(2, 3, 2)]
    with pytest.raises(InvalidRecordState):
        run_steps(steps)
    run = Acknowledgement(2, 3, [ACCEPT])
    run_steps(share.acknowledging("b", [run], LIMITS.max_deliveries, LOCK_END))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_that_is_not_positive_separates_the_batches_of_the_log(batch_size: int) -> None:
    share = InFlight(0, 0, 0, 0)
    limits = LIMITS._replace(batch_size=batch_size)
    acquired = share.acquire("a", Fetched(1, batches(0, 4)), limits, LOCK_END)
    assert acquired == [(0, 1, 1), (2, 3, 1)]
    accepted = [Acknowledgement(0, 3, [ACCEPT])]
    change = run_steps(share.acknowledging("a", accepted, LIMITS.max_deliveries, LOCK_END))
    share.complete(change, is_stored=True)
    assert (share.start, share.next_fetch_offset) == (4, 4)
