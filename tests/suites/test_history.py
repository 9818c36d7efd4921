"""The checks of client histories find each anomaly in a history that was made with it.

A check that finds nothing in a bad history would let every faulted run pass.
"""

from typing import Any

import attrs
import pytest

from compat_tests.durability.history import CHECKS, History, anomalies
from compat_tests.durability.observations import (
    Batch,
    Call,
    Commit,
    Committed,
    EndOffset,
    Place,
    Poll,
    Send,
    Transaction,
    View,
)
from compat_tests.durability.sessions import Session, SkippedSequence

PLACE: Place = ("orders", 0)


def make_send(number: int, **changes: Any) -> Send:
    """One of an idempotent producer's records, each acknowledged at its number."""
    send = Send("producer", PLACE, b"%d" % number, number, "ok", number, is_idempotent=True)
    return attrs.evolve(send, **changes)


def make_poll(*numbers: int, client: str = "reader", **changes: Any) -> Poll:
    records = tuple((PLACE, number, b"%d" % number) for number in numbers)
    began = float(100 + numbers[0])
    return attrs.evolve(Poll(client, began, began + 0.5, records), **changes)


def sound() -> History:
    """Ten records, all read by one reader, and by a group that commits as it goes."""
    return History(
        sends=[make_send(number) for number in range(10)],
        polls=[
            make_poll(0, 1, 2),
            make_poll(3, 4, 5, 6, 7, 8, 9),
            make_poll(0, 1, 2, 3, 4, client="member", group="group"),
            make_poll(5, 6, 7, 8, 9, client="member", group="group"),
        ],
        commits=[Commit("group", PLACE, 5, 110.0, 111.0, "ok")],
        committed=[Committed("group", PLACE, 5, 112.0, 113.0)],
        calls=[Call("reader", "poll", 100.0, 100.5, 1.0)],
        ends={PLACE: 10},
        healed=105.0,
    )


def test_sound_history_has_no_anomalies() -> None:
    assert anomalies(sound()) == {}


def find_anomalies(history: History) -> set[str]:
    return set(anomalies(history))


def test_acknowledged_record_that_no_reader_gets_is_lost() -> None:
    """Invariant 1."""
    history = sound()
    history.polls = [make_poll(0, 1, 2, 4, 5, 6, 7, 8, 9)]
    assert CHECKS["lost_writes"](history) == ["lost: 3 acknowledged at orders-0@3"]
    history.polls = [make_poll(0, 1, 2)]
    assert len(CHECKS["lost_writes"](history)) == 7  # also what lies behind all that was read


def test_send_without_an_answer_may_be_there_or_not() -> None:
    """Invariant 1."""
    history = sound()
    history.sends.append(Send("producer", PLACE, b"unanswered", 50.0))
    assert anomalies(history) == {}
    history.polls.append(Poll("late", 120.0, 121.0, ((PLACE, 10, b"unanswered"),)))
    history.ends[PLACE] = 10
    assert anomalies(history) == {}


@pytest.mark.parametrize("reader", ["reader", "other"])
def test_two_values_at_one_offset(reader: str) -> None:
    """Invariant 2."""
    history = sound()
    history.polls.append(Poll(reader, 120.0, 121.0, ((PLACE, 4, b"another"),), session=1))
    assert "conflicting_values" in find_anomalies(history)


def test_two_acknowledgements_of_one_offset() -> None:
    """Invariant 2: also where no consumer has read it yet."""
    history = History(sends=[make_send(4), make_send(5, offset=4)])
    assert "conflicting_values" in find_anomalies(history)


def test_value_at_two_offsets_is_a_duplicate_of_idempotent_producers_alone() -> None:
    """Invariant 3."""
    history = sound()
    history.polls.append(Poll("late", 120.0, 121.0, ((PLACE, 10, b"4"),)))
    assert "duplicates" in find_anomalies(history)
    history.sends[4] = make_send(4, is_idempotent=False)
    assert "duplicates" not in find_anomalies(history)


@pytest.mark.parametrize(
    ("epochs", "outcome", "is_anomaly"),
    [
        ((0, 1), "unknown", False),
        ((0, 1), "failed", False),
        ((0, 1), "ok", True),
        ((0, 0), "unknown", True),
        ((0, None), "unknown", True),
    ],
)
def test_value_in_two_producer_sessions(epochs: Any, outcome: Any, is_anomaly: bool) -> None:
    """Invariant 3: no duplicate, if the client had to begin a new session."""
    history = sound()
    history.sends.append(Send("producer", PLACE, b"another", 50.0, outcome, 11, is_idempotent=True))
    history.polls.append(Poll("late", 120.0, 121.0, ((PLACE, 10, b"4"),)))
    history.sessions[PLACE] = {
        offset: Session(1000, epoch)
        for offset, epoch in zip((4, 10), epochs, strict=True)
        if epoch is not None
    }
    assert ("duplicates" in find_anomalies(history)) == is_anomaly


@pytest.mark.parametrize(
    ("client", "earlier_error", "is_anomaly"),
    [
        ("producer", "KAFKA_STORAGE_ERROR", False),
        ("producer", "NO_ERROR", True),
        ("another", "KAFKA_STORAGE_ERROR", True),
    ],
)
def test_value_in_two_sessions_of_a_producer_with_a_skipped_sequence(
    client: str, earlier_error: str, is_anomaly: bool
) -> None:
    """Invariant 3: a batch behind one that was refused for now is a cause for a new session."""
    history = sound()
    history.polls.append(Poll("late", 120.0, 121.0, ((PLACE, 10, b"4"),)))
    history.sessions[PLACE] = {4: Session(1000, 0), 10: Session(1000, 1)}
    assert "duplicates" in find_anomalies(history)
    history.session_events.append(SkippedSequence(client, earlier_error))
    assert ("duplicates" in find_anomalies(history)) == is_anomaly


def test_refused_record_is_read() -> None:
    """Invariant 4."""
    history = sound()
    history.sends[9] = make_send(9, outcome="failed", offset=None)
    assert find_anomalies(history) == {"dirty_reads"}


def in_transaction(outcome: Any, **changes: Any) -> History:
    """Two records of one transaction, read at read_committed after its end."""
    history = History(
        sends=[make_send(0, transaction="t"), make_send(1, transaction="t"), make_send(2)],
        polls=[make_poll(0, 1, 2, is_read_committed=True)],
        transactions=[Transaction("t", 50.0, outcome)],
        ends={PLACE: 3},
    )
    return attrs.evolve(history, **changes)


def test_record_of_an_aborted_transaction_is_read() -> None:
    """Invariant 4."""
    assert find_anomalies(in_transaction("committed")) == set()
    assert find_anomalies(in_transaction("aborted")) == {"dirty_reads"}
    uncommitted = in_transaction("aborted", polls=[make_poll(0, 1, 2)])
    assert find_anomalies(uncommitted) == set()


def test_record_is_read_before_its_transaction_commits() -> None:
    """Invariant 5."""
    history = in_transaction("committed", transactions=[Transaction("t", 500.0, "committed")])
    assert find_anomalies(history) == {"early_reads"}
    assert find_anomalies(in_transaction("committed", transactions=[])) == {"early_reads"}


def test_half_of_a_transaction_is_read() -> None:
    """Invariant 6."""
    history = in_transaction("committed", polls=[make_poll(0, 2, is_read_committed=True)])
    assert "torn_transactions" in find_anomalies(history)
    behind = in_transaction("committed", polls=[make_poll(0, is_read_committed=True)], ends={})
    assert "torn_transactions" not in find_anomalies(behind)  # the rest may still come


def test_offsets_of_a_transaction_are_missing() -> None:
    """Invariant 6."""
    commit = Commit("group", PLACE, 2, 40.0, 41.0, "ok", transaction="t")
    history = in_transaction("committed", commits=[commit])
    history.committed = [Committed("group", PLACE, 2, 200.0, 201.0)]
    assert "torn_transactions" not in find_anomalies(history)
    history.committed = [Committed("group", PLACE, None, 200.0, 201.0)]
    assert "torn_transactions" in find_anomalies(history)


def test_reader_skips_a_record_between_two_polls() -> None:
    """Invariant 7."""
    history = sound()
    history.polls[1] = make_poll(4, 5, 6, 7, 8, 9)
    assert find_anomalies(history) == {"skipped_polls"}


def test_reader_skips_a_record_within_a_poll() -> None:
    """Invariant 7."""
    history = sound()
    history.polls[1] = make_poll(3, 5, 6, 7, 8, 9)
    assert find_anomalies(history) == {"skipped_polls"}


def test_offsets_without_an_observed_record_are_no_skip() -> None:
    """Invariant 7."""
    history = sound()
    del history.sends[3]
    history.polls = [make_poll(0, 1, 2, 4, 5, 6, 7, 8, 9)]
    history.committed = []
    assert anomalies(history) == {}


@pytest.mark.parametrize("again", [2, 1])
def test_reader_gets_an_offset_again_or_an_earlier_one(again: int) -> None:
    """Invariant 8."""
    history = sound()
    history.polls.insert(1, make_poll(again))
    assert find_anomalies(history) == {"nonmonotonic_polls"} | (
        {"skipped_polls"} if again == 1 else set()
    )
    history.polls[1] = make_poll(again, session=7)  # it had sought
    assert "nonmonotonic_polls" not in find_anomalies(history)


def test_producer_is_given_an_earlier_offset() -> None:
    """Invariant 8."""
    history = sound()
    history.sends[4], history.sends[5] = history.sends[5], history.sends[4]
    assert find_anomalies(history) == {"nonmonotonic_sends"}


@pytest.mark.parametrize("offset", [None, -1])
def test_acknowledgement_names_no_offset(offset: int | None) -> None:
    """Invariant 9."""
    history = sound()
    history.sends[4] = make_send(4, offset=offset, is_idempotent=False)
    assert find_anomalies(history) == {"wrong_offsets"}


def test_later_acknowledgement_of_an_idempotent_producer_counts_for_an_earlier_record() -> None:
    """Invariant 9."""
    history = sound()
    history.sends[4] = make_send(4, offset=None)
    assert anomalies(history) == {}
    history.polls = [make_poll(0, 1, 2, 3), make_poll(5, 6, 7, 8, 9)]
    history.committed = []
    assert find_anomalies(history) == {"wrong_offsets"}  # The record is lost.
    history = sound()
    history.sends[9] = make_send(9, offset=None)
    assert find_anomalies(history) == {"wrong_offsets"}


def test_acknowledgement_names_another_offset() -> None:
    """Invariant 9."""
    history = sound()
    history.sends[4] = make_send(4, offset=0, is_idempotent=False)
    assert "wrong_offsets" in find_anomalies(history)


def test_call_that_does_not_end() -> None:
    """Invariant 10."""
    history = sound()
    history.calls.append(Call("producer", "flush", 101.0, float("inf"), 5.0))
    assert find_anomalies(history) == {"stuck_calls"}
    history.calls[-1] = Call("producer", "flush", 101.0, 139.0, 5.0)
    assert "stuck_calls" in find_anomalies(history)
    history.calls[-1] = Call("producer", "flush", 101.0, 134.0, 5.0)
    assert anomalies(history) == {}  # the last fault ended at 105


@pytest.mark.parametrize("offset", [None, 0, 4])
def test_committed_offset_goes_back(offset: int | None) -> None:
    """Invariant 11."""
    history = sound()
    history.committed.append(Committed("group", PLACE, offset, 114.0, 115.0))
    assert find_anomalies(history) == {"offsets_gone_back"}


def test_committed_offset_goes_back_because_a_client_commits_it_so() -> None:
    """Invariant 11."""
    history = sound()
    history.commits.append(Commit("group", PLACE, 2, 113.5, 113.6, "ok"))
    history.committed.append(Committed("group", PLACE, 2, 114.0, 115.0))
    assert anomalies(history) == {}


def test_commit_without_an_answer_may_be_there_or_not() -> None:
    """Invariant 11."""
    for offset in (5, 7):
        history = sound()
        history.commits.append(Commit("group", PLACE, 7, 113.5))
        history.committed.append(Committed("group", PLACE, offset, 114.0, 115.0))
        assert anomalies(history) == {}


@pytest.mark.parametrize(
    ("began", "read_at", "anomalies"),
    [
        (100.0, 130.0, set()),
        (100.0, 180.0, {"offsets_gone_back"}),
        (110.0, 130.0, set()),
        (110.9, 130.0, {"offsets_gone_back"}),
    ],
)
def test_commit_that_was_sent_twice_may_take_effect_again(
    began: float, read_at: float, anomalies: set[str]
) -> None:
    """The first request may wait behind a cut network, but neither for ever nor without cause."""
    history = sound()
    history.commits = [
        Commit("group", PLACE, 2, began, 111.0, "ok"),
        Commit("group", PLACE, 5, 112.0, 113.0, "ok"),
        *([Commit("group", PLACE, 7, 172.0, 173.0, "ok")] if read_at > 170 else []),
    ]
    history.committed = [Committed("group", PLACE, 2, read_at, read_at + 1)]
    assert find_anomalies(history) == anomalies


def test_offset_of_a_group_that_commits_unasked_goes_back() -> None:
    """Invariant 11."""
    history = sound()
    history.commits = []
    assert anomalies(history) == {}
    history.committed.append(Committed("group", PLACE, 4, 114.0, 115.0))
    assert find_anomalies(history) == {"offsets_gone_back"}


def test_offset_is_committed_past_records_that_were_not_given() -> None:
    """Invariant 11: auto-commit never passes a record that was not returned."""
    history = sound()
    history.commits = [Commit("group", PLACE, 7, 104.5, 104.6, "ok")]
    history.committed = [Committed("group", PLACE, 7, 104.7, 104.8)]
    assert find_anomalies(history) == {"unread_commits"}


def test_reader_does_not_reach_the_end() -> None:
    """Invariant 12."""
    history = sound()
    history.polls[3] = make_poll(5, 6, 7, client="member", group="group")
    assert find_anomalies(history) == {"lagging_readers"}


def test_aborted_records_are_no_skip_and_markers_no_lag() -> None:
    """Invariants 7 and 12, of readers at read_committed."""
    history = in_transaction("aborted", polls=[make_poll(2, is_read_committed=True)])
    history.polls.append(make_poll(0, 1, 2, client="uncommitted"))
    history.ends = {PLACE: 4}  # A marker is at the end.
    assert anomalies(history) == {}
    behind = in_transaction("committed", polls=[make_poll(0, 1, is_read_committed=True)])
    assert "lagging_readers" in find_anomalies(behind)


def test_reader_of_another_topic_does_not_lag() -> None:
    """Invariant 12."""
    history = sound()
    history.ends["payments", 0] = 7
    assert anomalies(history) == {}
    history.polls.append(Poll("late", 120.0, 121.0, ((("payments", 0), 5, b"x"),)))
    assert find_anomalies(history) == {"lagging_readers"}
    history.samplers = {"late"}
    assert anomalies(history) == {}


def test_offset_is_committed_before_the_member_gets_the_record() -> None:
    """Invariant 11."""
    history = sound()
    history.polls[3] = make_poll(5, 6, 7, 8, 9, client="member", group="group", began=113.5)
    assert anomalies(history) == {}
    history.committed = [Committed("group", PLACE, 6, 112.0, 113.0)]
    history.commits = [Commit("group", PLACE, 6, 110.0, 111.0, "ok")]
    assert find_anomalies(history) == {"unread_commits"}


def test_member_that_was_paused_gets_a_committed_record_late() -> None:
    """Invariant 11: another member got the record first, and committed it."""
    history = sound()
    late = make_poll(0, 1, 2, 3, 4, client="paused", group="group", began=115.0, ended=116.0)
    history.polls.insert(0, late)
    assert anomalies(history) == {}


def test_end_offset_goes_back() -> None:
    """Invariant 14: a client never gets a lower end offset, whichever broker leads."""
    history = sound()
    history.end_offsets = [
        EndOffset("a", PLACE, 8, 100.0, 101.0),
        EndOffset("a", PLACE, 10, 102.0, 103.0),
        EndOffset("b", PLACE, 9, 104.0, 105.0),  # It may have asked another broker.
    ]
    assert anomalies(history) == {}
    history.end_offsets.append(EndOffset("a", PLACE, 9, 106.0, 107.0))
    assert find_anomalies(history) == {"ends_gone_back"}


def test_transaction_hangs() -> None:
    """Invariant 61."""
    history = in_transaction("committed", stable_ends={PLACE: 3})
    assert anomalies(history) == {}
    history.stable_ends[PLACE] = 0
    assert find_anomalies(history) == {"hanging_transactions"}


def results_of_two() -> History:
    """Two records, each made into a result of its own, the second at the second attempt."""
    results: Place = ("results", 0)
    sends = [
        make_send(0),
        make_send(1),
        Send("t", results, b"a/0", 20.0, "ok", 0, transaction="a", source=(PLACE, 0)),
        Send("t", results, b"b/1", 21.0, "ok", 2, transaction="b", source=(PLACE, 1)),
        Send("t", results, b"c/1", 22.0, "ok", 4, transaction="c", source=(PLACE, 1)),
    ]
    records = {send.offset: (results, send.offset or 0, send.value) for send in sends[2:]}
    return History(
        sends=sends,
        polls=[
            make_poll(0, 1),
            Poll("committed", 90.0, 91.0, (records[0], records[4]), is_read_committed=True),
            Poll("uncommitted", 90.0, 91.0, tuple(records.values())),
        ],
        transactions=[
            Transaction("a", 20.5, "committed"),
            Transaction("b", 21.5, "aborted"),
            Transaction("c", 22.5, "unknown"),
        ],
        ends={PLACE: 2, results: 6},
    )


def test_each_record_has_one_visible_result() -> None:
    """Invariant 6."""
    assert anomalies(results_of_two()) == {}
    history = results_of_two()
    both = (*history.polls[1].records, history.polls[2].records[1])
    history.polls[1] = attrs.evolve(history.polls[1], records=both)
    history.transactions[1] = Transaction("b", 21.5, "unknown")
    assert CHECKS["inexact_results"](history) == ["results of orders-0@1: ['b/1', 'c/1']"]
    history.polls[1] = attrs.evolve(history.polls[1], records=both[:1])
    assert CHECKS["inexact_results"](history) == ["results of orders-0@1: []"]


def make_copy(*offsets: int, digests: str = "same") -> tuple[Batch, ...]:
    """Batches of two records."""
    return tuple(Batch(n, n + 2, digests.encode()) for n in offsets)


@pytest.mark.parametrize(
    ("copy", "is_anomaly"),
    [
        (make_copy(0, 2, 4, 6, 8), False),
        (make_copy(0, 2, 4, 6, 8, 10), False),  # What lies behind the end may differ.
        ((*make_copy(0, 2, 4, 6), *make_copy(8, digests="other")), True),
        ((*make_copy(0, 2, 4, 6), Batch(8, 9, b"same"), Batch(9, 10, b"same")), True),
        (make_copy(0, 2, 4, 6), True),
        (make_copy(0, 2, 4, 8), True),
        (make_copy(2, 4, 6, 8), True),
        ((), True),
    ],
)
def test_copies_differ(copy: tuple[Batch, ...], is_anomaly: bool) -> None:
    """Invariant 23."""
    history = sound()
    history.copies[PLACE] = {1: make_copy(0, 2, 4, 6, 8), 2: copy, 3: make_copy(0, 2, 4, 6, 8)}
    assert find_anomalies(history) == ({"diverged_copies"} if is_anomaly else set())


def test_all_copies_lack_a_batch() -> None:
    """Invariant 23."""
    history = sound()
    history.copies[PLACE] = {1: make_copy(0, 2, 4, 8), 2: make_copy(0, 2, 4, 8)}
    assert CHECKS["diverged_copies"](history) == [
        "gap: node 1 has nothing at orders-0@6",
        "gap: node 2 has nothing at orders-0@6",
    ]


def test_metadata_differ() -> None:
    """Invariant 49."""
    view = View(1, 3, frozenset({1, 2, 3}), frozenset({1, 2, 3}))
    history = sound()
    history.views = {1: {PLACE: view}, 2: {PLACE: view}}
    assert anomalies(history) == {}
    history.views[2] = {PLACE: attrs.evolve(view, leader_epoch=4)}
    assert find_anomalies(history) == {"diverged_views"}
    history.views[2] = {}
    assert find_anomalies(history) == {"diverged_views"}
