"""Fetch sessions: KIP-227, rule by rule (invariant 18)."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire import errors
from kwire.replica.fetch_sessions import FetchContext, FetchPartition, FetchSessions, Ref
from kwire.replica.partition import ReadResult


def reply(
    high_watermark: int = 0, log_start: int = 0, records: bytes | None = None, **fields: Any
) -> ReadResult:
    return ReadResult(high_watermark, high_watermark, log_start, None, records, **fields)


def fetch_partition(
    topic: str, partition: int = 0, offset: int = 0, *, by_id: bool = False
) -> FetchPartition:
    topic_id = topic.encode() * 4
    ref = topic_id if by_id else topic, partition
    return FetchPartition(topic, topic_id, partition, offset, 1000, -1, -1, -1, ref)


def session_cache(slots: int = 10, eviction_s: float = 120.0) -> FetchSessions:
    return FetchSessions(slots, eviction_s, itertools.count(1).__next__)


def begin(
    sessions: FetchSessions,
    session_id: int = 0,
    epoch: int = 0,
    partitions: tuple[FetchPartition, ...] = (),
    removals: tuple[Ref, ...] = (),
    *,
    by_id: bool = False,
    privileged: bool = False,
    now: float = 0.0,
) -> FetchContext:
    return sessions.begin(
        session_id=session_id,
        epoch=epoch,
        by_id=by_id,
        partitions=list(partitions),
        removals=list(removals),
        privileged=privileged,
        now=now,
    )


def open_session(
    sessions: FetchSessions, *topics: str, privileged: bool = False, now: float = 0.0
) -> int:
    partitions = tuple(fetch_partition(topic) for topic in topics)
    context = begin(sessions, partitions=partitions, privileged=privileged, now=now)
    session_id, sent = sessions.finish(context, [reply() for _ in topics], now)
    assert len(sent) == len(topics)
    return session_id


def test_full_fetch_opens_session_and_incremental_answers_hold_only_changes():
    sessions = session_cache()
    session_id = open_session(sessions, "a", "b")
    context = begin(sessions, session_id, 1)
    assert [p.topic for p in context.partitions] == ["a", "b"]
    assert sessions.finish(context, [reply(), reply()], 0.0) == (session_id, [])
    context = begin(sessions, session_id, 2)
    a, b = context.partitions
    moved = reply(high_watermark=5)
    assert sessions.finish(context, [reply(), moved], 0.0) == (session_id, [(b, moved)])
    context = begin(sessions, session_id, 3)
    assert sessions.finish(context, [reply(), moved], 0.0) == (session_id, [])
    assert a.topic == "a"


@pytest.mark.parametrize(
    "changed",
    [
        reply(records=b"x"),
        reply(error=errors.NotLeaderOrFollower()),
        reply(log_start=3),
        reply(high_watermark=1),
        reply(preferred_replica=2),
        reply(diverging=(1, 5)),
    ],
)
def test_incremental_answer_holds_partition_with_a_change(changed: ReadResult):
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    context = begin(sessions, session_id, 1)
    assert len(sessions.finish(context, [changed], 0.0)[1]) == 1


def test_first_answer_after_an_error_is_sent():
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    context = begin(sessions, session_id, 1)
    sessions.finish(context, [reply(-1, -1, error=errors.UnknownTopicOrPartition())], 0.0)
    context = begin(sessions, session_id, 2)
    assert len(sessions.finish(context, [reply()], 0.0)[1]) == 1


def test_incremental_fetch_adds_changes_and_removes_partitions():
    sessions = session_cache()
    session_id = open_session(sessions, "a", "b")
    changes = (fetch_partition("c"), fetch_partition("a", 0, 7))
    context = begin(sessions, session_id, 1, changes, (("b", 0),))
    assert [(p.topic, p.fetch_offset) for p in context.partitions] == [("a", 7), ("c", 0)]
    # The added partition is answered, the changed one is not: its answer was sent before.
    _, sent = sessions.finish(context, [reply(), reply()], 0.0)
    assert [p.topic for p, _ in sent] == ["c"]


def test_partition_that_gave_records_moves_to_the_end():
    sessions = session_cache()
    session_id = open_session(sessions, "a", "b", "c")
    context = begin(sessions, session_id, 1)
    sessions.finish(context, [reply(records=b"x"), reply(), reply()], 0.0)
    assert [p.topic for p in begin(sessions, session_id, 2).partitions] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("session_id", "epoch", "by_id", "expected"),
    [
        (77, 1, True, errors.FetchSessionIdNotFound),
        (1, 2, True, errors.InvalidFetchSessionEpoch),
        (1, 1, True, errors.FetchSessionTopicIdError),
    ],
)
def test_unknown_session_wrong_epoch_and_changed_topic_ids_are_refused(
    session_id: int, epoch: int, by_id: bool, expected: type
):
    """A request that names no partition is refused too, as by Kafka."""
    sessions = session_cache()
    open_session(sessions, "a")
    with pytest.raises(expected):
        begin(sessions, session_id, epoch, by_id=by_id)
    assert begin(sessions, 1, 1).session is not None


def test_final_epoch_closes_the_session_and_opens_none():
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    context = begin(sessions, session_id, -1, (fetch_partition("a"),))
    assert sessions.finish(context, [reply()], 0.0)[0] == 0
    assert len(sessions) == 0


def test_session_without_partitions_is_closed():
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    context = begin(sessions, session_id, 1, (), (("a", 0),))
    assert sessions.finish(context, [], 0.0) == (0, [])
    assert len(sessions) == 0


def test_full_fetch_replaces_its_session():
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    context = begin(sessions, session_id, 0, (fetch_partition("b"),))
    new_id, _ = sessions.finish(context, [reply()], 0.0)
    assert new_id not in (0, session_id)
    assert len(sessions) == 1


def test_session_epoch_wraps_to_one():
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    begin(sessions, session_id, 1)
    sessions._sessions[session_id].epoch = 0x7FFFFFFF
    begin(sessions, session_id, 0x7FFFFFFF)
    assert begin(sessions, session_id, 1).session_id == session_id


@pytest.mark.parametrize(
    ("old", "new", "now", "evicted"),
    [
        # (privileged, partitions) of the session in the slot, and of the session that needs it.
        ((False, 1), (False, 5), 10.0, False),  # young sessions of equals stay
        ((False, 1), (False, 5), 121.0, True),  # idle for longer than the eviction time
        ((False, 9), (True, 1), 10.0, True),  # followers come before consumers
        ((True, 1), (False, 9), 10.0, False),
        ((True, 1), (True, 9), 10.0, False),
    ],
)
def test_new_session_evicts_an_idle_or_a_lower_ranked_one(
    old: tuple[bool, int], new: tuple[bool, int], now: float, evicted: bool
):
    sessions = session_cache(slots=1)
    open_session(sessions, *"abcdefghi"[: old[1]], privileged=old[0])
    session_id = open_session(sessions, *"abcdefghi"[: new[1]], privileged=new[0], now=now)
    assert (session_id != 0) is evicted
    assert len(sessions) == 1


def test_old_session_in_use_is_evicted_only_by_a_larger_one():
    sessions = session_cache(slots=1)
    session_id = open_session(sessions, "a", "b")
    begin(sessions, session_id, 1, now=150.0)
    assert open_session(sessions, "x", now=200.0) == 0
    assert open_session(sessions, "x", "y", "z", now=200.0) != 0


def test_cache_without_slots_opens_no_session():
    assert open_session(session_cache(slots=0), "a") == 0


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
def test_client_of_incremental_answers_has_every_high_watermark(requests):
    """The point of a session: what an answer leaves out has not changed."""
    sessions = session_cache()
    session_id = open_session(sessions, "a")
    topics = {"a"}
    client_watermarks, broker_watermarks = {"a": 0}, dict.fromkeys("abc", 0)
    for epoch, (additions, removals, new_watermarks) in enumerate(requests, 1):
        broker_watermarks |= new_watermarks
        topics = (topics | {topic for topic, _ in additions}) - set(removals)
        client_watermarks = {t: v for t, v in client_watermarks.items() if t in topics}
        context = begin(
            sessions,
            session_id,
            epoch,
            tuple(fetch_partition(topic, 0, offset) for topic, offset in additions),
            tuple((topic, 0) for topic in removals),
        )
        assert {p.topic for p in context.partitions} == topics
        replies = [reply(broker_watermarks[p.topic]) for p in context.partitions]
        _, sent = sessions.finish(context, replies, 0.0)
        if not topics:
            return
        client_watermarks |= {p.topic: reply.high_watermark for p, reply in sent}
        assert client_watermarks == {topic: broker_watermarks[topic] for topic in topics}
