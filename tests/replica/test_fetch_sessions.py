"""Fetch sessions: KIP-227, rule by rule (invariant 18)."""

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire import errors
from kwire.replica.fetch_sessions import Asked, FetchSessions, Ref, Turn


@attrs.define
class Reply:
    """The part of an answer that a session reads."""

    high_watermark: int = 0
    log_start_offset: int = 0
    error_code: int = 0
    preferred_read_replica: int = -1
    records: bytes = b""


def asked(topic: str, partition: int = 0, offset: int = 0, *, by_id: bool = False) -> Asked:
    return Asked(topic, topic.encode() * 4, partition, offset, 1000, -1, -1, -1, by_id)


def cache(slots: int = 10, eviction_s: float = 120.0) -> FetchSessions:
    return FetchSessions(slots, eviction_s, itertools.count(1).__next__)


def begin(
    subject: FetchSessions,
    session_id: int = 0,
    epoch: int = 0,
    wanted: tuple[Asked, ...] = (),
    forgotten: tuple[Ref, ...] = (),
    *,
    privileged: bool = False,
    now: float = 0.0,
) -> Turn:
    return subject.begin(
        session_id=session_id,
        epoch=epoch,
        asked=list(wanted),
        forgotten=list(forgotten),
        privileged=privileged,
        now=now,
    )


def opened(subject: FetchSessions, *topics: str, privileged: bool = False, now: float = 0.0) -> int:
    turn = begin(subject, wanted=tuple(asked(t) for t in topics), privileged=privileged, now=now)
    number, sent = subject.finish(turn, [Reply() for _ in topics], now)
    assert len(sent) == len(topics)
    return number


def test_a_full_fetch_opens_a_session_and_increments_say_only_what_is_new():
    subject = cache()
    number = opened(subject, "a", "b")
    turn = begin(subject, number, 1)
    assert [p.topic for p in turn.partitions] == ["a", "b"]
    assert subject.finish(turn, [Reply(), Reply()], 0.0) == (number, [])
    turn = begin(subject, number, 2)
    a, b = turn.partitions
    moved = Reply(high_watermark=5)
    assert subject.finish(turn, [Reply(), moved], 0.0) == (number, [(b, moved)])
    turn = begin(subject, number, 3)
    assert subject.finish(turn, [Reply(), moved], 0.0) == (number, [])
    assert a.topic == "a"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(records=b"x"),
        Reply(error_code=6),
        Reply(log_start_offset=3),
        Reply(high_watermark=1),
        Reply(preferred_read_replica=2),
    ],
)
def test_what_is_news(reply: Reply):
    subject = cache()
    number = opened(subject, "a")
    turn = begin(subject, number, 1)
    assert len(subject.finish(turn, [reply], 0.0)[1]) == 1


def test_the_end_of_an_error_is_news():
    subject = cache()
    number = opened(subject, "a")
    turn = begin(subject, number, 1)
    subject.finish(turn, [Reply(error_code=3, high_watermark=-1, log_start_offset=-1)], 0.0)
    turn = begin(subject, number, 2)
    assert len(subject.finish(turn, [Reply()], 0.0)[1]) == 1


def test_partitions_are_added_changed_and_forgotten():
    subject = cache()
    number = opened(subject, "a", "b")
    turn = begin(subject, number, 1, (asked("c"), asked("a", 0, 7)), (("b", 0),))
    assert [(p.topic, p.fetch_offset) for p in turn.partitions] == [("a", 7), ("c", 0)]
    # The new one is sent, the changed one is not: its answer was sent before.
    _, sent = subject.finish(turn, [Reply(), Reply()], 0.0)
    assert [p.topic for p, _ in sent] == ["c"]


def test_who_gave_records_goes_to_the_end():
    subject = cache()
    number = opened(subject, "a", "b", "c")
    turn = begin(subject, number, 1)
    subject.finish(turn, [Reply(records=b"x"), Reply(), Reply()], 0.0)
    assert [p.topic for p in begin(subject, number, 2).partitions] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("session_id", "epoch", "wanted", "expected"),
    [
        (77, 1, (), errors.FetchSessionIdNotFound),
        (1, 2, (), errors.InvalidFetchSessionEpoch),
        (1, 1, (asked("a", by_id=True),), errors.FetchSessionTopicIdError),
    ],
)
def test_errors(session_id: int, epoch: int, wanted: tuple[Asked, ...], expected: type):
    subject = cache()
    opened(subject, "a")
    with pytest.raises(expected):
        begin(subject, session_id, epoch, wanted)


def test_no_session_is_opened_with_the_final_epoch_and_the_old_one_is_closed():
    subject = cache()
    number = opened(subject, "a")
    turn = begin(subject, number, -1, (asked("a"),))
    assert subject.finish(turn, [Reply()], 0.0)[0] == 0
    assert len(subject) == 0


def test_an_emptied_session_closes():
    subject = cache()
    number = opened(subject, "a")
    turn = begin(subject, number, 1, (), (("a", 0),))
    assert subject.finish(turn, [], 0.0) == (0, [])
    assert len(subject) == 0


def test_a_full_fetch_replaces_its_session():
    subject = cache()
    number = opened(subject, "a")
    turn = begin(subject, number, 0, (asked("b"),))
    again, _ = subject.finish(turn, [Reply()], 0.0)
    assert again not in (0, number)
    assert len(subject) == 1


def test_epochs_wrap_to_one():
    subject = cache()
    number = opened(subject, "a")
    begin(subject, number, 1)
    subject._sessions[number].epoch = 0x7FFFFFFF
    begin(subject, number, 0x7FFFFFFF)
    assert begin(subject, number, 1).session_id == number


@pytest.mark.parametrize(
    ("old", "new", "now", "evicted"),
    [
        # (privileged, partitions) of the session there is, and of the one that wants its slot
        ((False, 1), (False, 5), 10.0, False),  # young sessions of equals stay
        ((False, 1), (False, 5), 121.0, True),  # idle for longer than the eviction time
        ((False, 9), (True, 1), 10.0, True),  # followers come before consumers
        ((True, 1), (False, 9), 10.0, False),
        ((True, 1), (True, 9), 10.0, False),
    ],
)
def test_eviction(old: tuple[bool, int], new: tuple[bool, int], now: float, evicted: bool):
    subject = cache(slots=1)
    opened(subject, *"abcdefghi"[: old[1]], privileged=old[0])
    number = opened(subject, *"abcdefghi"[: new[1]], privileged=new[0], now=now)
    assert (number != 0) is evicted
    assert len(subject) == 1


def test_an_old_session_in_use_gives_way_to_a_larger_one_only():
    subject = cache(slots=1)
    number = opened(subject, "a", "b")
    begin(subject, number, 1, now=150.0)
    assert opened(subject, "x", now=200.0) == 0
    assert opened(subject, "x", "y", "z", now=200.0) != 0


def test_no_slots_no_sessions():
    assert opened(cache(slots=0), "a") == 0


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=3),
            st.lists(st.sampled_from("abc"), max_size=2),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
        ),
        max_size=12,
    )
)
def test_a_client_that_keeps_what_it_heard_knows_every_high_watermark(turns):
    """The point of a session: nothing is lost by what is left out."""
    subject = cache()
    number = opened(subject, "a")
    wanted, known, truth = {"a"}, {"a": 0}, dict.fromkeys("abc", 0)
    for epoch, (more, less, moves) in enumerate(turns, 1):
        truth |= moves
        wanted = (wanted | {t for t, _ in more}) - set(less)
        known = {t: v for t, v in known.items() if t in wanted}
        turn = begin(
            subject,
            number,
            epoch,
            tuple(asked(t, 0, offset) for t, offset in more),
            tuple((t, 0) for t in less),
        )
        assert {p.topic for p in turn.partitions} == wanted
        _, sent = subject.finish(turn, [Reply(truth[p.topic]) for p in turn.partitions], 0.0)
        if not wanted:
            return
        known |= {p.topic: reply.high_watermark for p, reply in sent}
        assert known == {t: truth[t] for t in wanted}
