"""Transactions in a pass: aborted data, markers, their index entries: invariants 19 and 65."""

import pytest

from kwire.log.config import LogConfig
from kwire.log.formats import names
from kwire.log.formats.txn_index import AbortedTxn
from kwire.records.build import rebuild_empty
from kwire.records.header import HEADER_SIZE, parse
from tests.support.log.batches import marker
from tests.support.log.compaction import DAY_MS, NOW_MS, MadeLog, transaction

ONE_BY_ONE = LogConfig(segment_bytes=1)
"""Each segment is a group."""


def markers(log: MadeLog) -> list[int]:
    return [b.header.base_offset for b in log.batches() if b.header.is_control]


def test_aborted_data_goes_at_once_and_its_marker_stays() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.put((b"b", b"1"))
    log.mark(7, commit=False)
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    assert log.pairs() == [(1, b"b", b"1"), (3, b"c", b"1")]
    assert markers(log) == [2]
    assert log.aborted_entries() == [AbortedTxn(7, 0, 2, 3)]


def test_spent_abort_marker_gets_a_horizon_and_goes_after_it() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=False)
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    before = log.batches()[0]
    assert before.header.delete_horizon_ms is None
    log.clean(now_ms=NOW_MS + 5)
    after = log.batches()[0]
    assert after.header.delete_horizon_ms == NOW_MS + 5 + DAY_MS
    assert after.records == before.records
    assert after.header.max_timestamp == before.header.max_timestamp
    assert log.aborted_entries() == []
    assert not any(name.endswith((names.TXN_INDEX, names.ABORTED)) for name in log.files())
    log.clean(now_ms=NOW_MS + 5 + DAY_MS - 1)
    assert markers(log) == [1]
    log.clean(now_ms=NOW_MS + 5 + DAY_MS)
    assert markers(log) == []


def test_commit_marker_stays_while_data_of_its_transaction_does() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=True)
    log.put((b"c", b"1"))
    log.roll()
    for day in range(4):
        log.clean(now_ms=NOW_MS + day * DAY_MS)
    assert log.batches()[1].header.delete_horizon_ms is None
    assert markers(log) == [1]


def test_commit_marker_goes_a_while_after_its_data() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=True)
    log.put((b"a", b"2"))
    log.roll()
    log.clean()  # This pass saw the data.
    assert log.batches()[0].header.delete_horizon_ms is None
    log.clean()
    assert log.batches()[0].header.delete_horizon_ms == NOW_MS + DAY_MS
    log.clean(now_ms=NOW_MS + DAY_MS)
    assert markers(log) == []
    assert log.pairs() == [(2, b"a", b"2")]


def test_emptied_batch_keeps_the_marker_of_its_transaction() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=True)
    log.put((b"a", b"2"))
    log.roll()
    for day in range(4):
        log.clean(now_ms=NOW_MS + day * DAY_MS, active_producers={7: (0, 0)})
    first, second, _ = log.batches()
    assert first.header.record_count == 0
    assert second.header.is_control
    assert second.header.delete_horizon_ms is None


def test_aborted_data_of_an_active_producer_leaves_an_empty_batch_and_the_index_entry() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", b"1"), **transaction(7))
    log.mark(7, commit=False)
    log.put((b"c", b"1"))
    log.roll()
    for _ in range(3):
        log.clean(active_producers={7: (0, 1)})
    first = log.batches()[0]
    assert (first.header.record_count, first.header.size) == (0, HEADER_SIZE)
    assert markers(log) == [2]
    assert log.aborted_entries() == [AbortedTxn(7, 0, 2, 3)]


def test_only_marker_of_an_active_producer_stays_empty() -> None:
    """It keeps the producer's epoch, by which an older one is fenced."""
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7, epoch=3))
    log.mark(7, commit=True, epoch=3)
    log.put((b"a", b"2"))
    log.roll()
    log.clean()
    log.clean()
    log.clean(now_ms=NOW_MS + DAY_MS, active_producers={7: (3, None)})
    header = log.batches()[0].header
    assert header.is_control
    assert (header.record_count, header.producer_id, header.producer_epoch) == (0, 7, 3)
    log.clean(now_ms=NOW_MS + DAY_MS, active_producers={7: (4, None)})
    assert markers(log) == []


def test_emptied_control_batch_ends_no_transaction() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.put((b"b", b"1"), **transaction(8))
    for producer_id in (7, 8):
        spent = marker(producer_id, commit=True, base_offset=log.end_offset)
        log.add(rebuild_empty(parse(spent)))
    log.mark(7, commit=True)
    log.mark(8, commit=False)
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    # Neither marker is spent: data of both transactions was seen.
    last = log.batches()[-3:]
    assert [b.header.base_offset for b in last] == [4, 5, 6]
    assert [b.header.delete_horizon_ms for b in last] == [None] * 3
    assert log.pairs() == [(0, b"a", b"1"), (6, b"c", b"1")]
    assert [entry.producer_id for entry in log.aborted_entries()] == [8]


def test_transaction_over_several_groups_is_one_transaction() -> None:
    log = MadeLog(config=ONE_BY_ONE)
    log.put((b"a", b"1"), **transaction(7))
    log.put((b"b", b"1"), **transaction(8))
    log.roll()
    log.put((b"a", b"2"), **transaction(7, 1))
    log.put((b"b", b"2"), **transaction(8, 1))
    log.roll()
    log.mark(7, commit=False)
    log.mark(8, commit=True)
    log.roll()
    log.put((b"c", b"1"))
    log.roll()
    done = log.clean()
    assert [group.sources for group in done.groups] == [(0,), (2,), (4,), (6,)]
    assert log.pairs() == [(3, b"b", b"2"), (6, b"c", b"1")]
    assert markers(log) == [4, 5]
    assert [b.header.delete_horizon_ms for b in log.batches()] == [None] * 4
    assert log.aborted_entries() == [AbortedTxn(7, 0, 4, 1)]
    suffixes = [group.suffixes for group in done.groups]
    assert [names.TXN_INDEX in s and names.ABORTED in s for s in suffixes] == [
        False,
        False,
        True,
        False,
    ]


def test_group_without_an_index_of_aborted_transactions_gets_none() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.roll()
    (group,) = log.clean().groups
    assert group.suffixes == (names.LOG, names.INDEX, names.TIME_INDEX)


def test_open_transaction_above_the_cleaned_part_loses_nothing() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.put((b"b", b"1"))
    log.roll()
    log.put((b"a", b"2"), **transaction(7))
    log.roll()
    log.clean(segments=tuple(log.sources[:1]), next_base=2, end_offset=2)
    assert log.pairs() == [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2")]


def test_long_aborted_transaction_is_known_behind_shorter_ones() -> None:
    """Entries are in the order of the markers, not of the transactions' first offsets."""
    log = MadeLog(config=ONE_BY_ONE)
    log.put((b"a", b"1"))
    log.put((b"a", b"aborted"), **transaction(7))
    log.roll()
    for number in range(3):
        log.put((b"b%d" % number, b"aborted"), **transaction(8 + number))
        log.mark(8 + number, commit=False)
        log.roll()
    log.mark(7, commit=False)
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    assert log.pairs() == [(0, b"a", b"1"), (9, b"c", b"1")]
    assert [entry.producer_id for entry in log.aborted_entries()] == [8, 9, 10, 7]


def test_idempotent_data_outside_of_a_transaction_is_never_aborted() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.put((b"b", b"1"), producer_id=7, producer_epoch=0, base_sequence=1)
    log.mark(7, commit=False)
    log.roll()
    log.clean()
    assert log.pairs() == [(1, b"b", b"1")]


@pytest.mark.parametrize("commit", [False, True])
def test_marker_alone_gets_a_horizon_in_the_first_pass(commit: bool) -> None:
    """Its transaction wrote nothing to the partition, or its data is gone."""
    log = MadeLog()
    log.mark(7, commit=commit)
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    assert log.batches()[0].header.delete_horizon_ms == NOW_MS + DAY_MS
