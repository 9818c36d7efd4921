"""A follower's fetch session: what each request names, and when a session begins anew."""

import tracemalloc

from kwire.drive import run_steps
from kwire.replica.fetcher.session import FetcherSession, Position, SessionPart

TOPIC, OTHER = b"t" * 16, b"o" * 16


def at(offset: int, epoch: int = 1) -> Position:
    return Position(offset, epoch, epoch, 0)


def offsets_in(part: SessionPart) -> dict[tuple[bytes, int], int]:
    """Return the fetch offset of each partition that a request names."""
    return {(t.topic_id, p.partition): p.fetch_offset for t in part.topics for p in t.partitions}


def left_out(part: SessionPart) -> set[tuple[bytes, int]]:
    return {(t.topic_id, index) for t in part.removed for index in t.partitions}


def open_session(count: int = 3) -> FetcherSession:
    """A session with partitions 0 to ``count`` of one topic, after its first answer."""
    session = FetcherSession(1000)
    for index in range(count):
        session.set((TOPIC, index), at(0))
    assert offsets_in(run_steps(session.next_request())) == {
        (TOPIC, index): 0 for index in range(count)
    }
    session.on_response(7)
    return session


def test_first_request_names_all_partitions_and_opens_a_session() -> None:
    session = FetcherSession(1000)
    session.set((TOPIC, 0), at(5))
    session.set((OTHER, 2), at(9))
    part = run_steps(session.next_request())
    assert (part.session_id, part.session_epoch) == (0, 0)
    assert offsets_in(part) == {(TOPIC, 0): 5, (OTHER, 2): 9}
    assert part.topics[0].partitions[0].partition_max_bytes == 1000


def test_later_requests_name_only_what_has_changed() -> None:
    session = open_session()
    session.set((TOPIC, 1), at(10))
    session.set((TOPIC, 2), at(0))
    part = run_steps(session.next_request())
    assert (part.session_id, part.session_epoch) == (7, 1)
    assert offsets_in(part) == {(TOPIC, 1): 10}
    session.on_response(7)
    part = run_steps(session.next_request())
    assert (part.session_epoch, offsets_in(part), left_out(part)) == (2, {}, set())


def test_later_request_does_not_visit_the_partitions_that_have_not_changed() -> None:
    session = open_session(5000)
    session.set((TOPIC, 1), at(10))
    tracemalloc.start()
    try:
        run_steps(session.next_request())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000, "a list of all partitions has 40,000"


def test_removed_partitions_are_left_out_once() -> None:
    session = open_session()
    session.remove((TOPIC, 0))
    session.remove((TOPIC, 5))
    part = run_steps(session.next_request())
    assert left_out(part) == {(TOPIC, 0)}
    session.on_response(7)
    assert not left_out(run_steps(session.next_request()))


def test_partition_that_returns_before_the_next_request_is_not_left_out() -> None:
    session = open_session()
    session.remove((TOPIC, 0))
    session.set((TOPIC, 0), at(0))
    part = run_steps(session.next_request())
    assert (offsets_in(part), left_out(part)) == ({(TOPIC, 0): 0}, set())


def test_partition_that_was_never_sent_is_not_left_out() -> None:
    session = open_session()
    session.set((OTHER, 0), at(0))
    session.remove((OTHER, 0))
    part = run_steps(session.next_request())
    assert (offsets_in(part), left_out(part)) == ({}, set())


def test_after_a_failure_the_next_request_names_all_and_closes_the_old_session() -> None:
    session = open_session()
    session.set((TOPIC, 1), at(10))
    session.remove((TOPIC, 2))
    run_steps(session.next_request())
    session.reset()
    part = run_steps(session.next_request())
    assert (part.session_id, part.session_epoch) == (7, 0)
    assert offsets_in(part) == {(TOPIC, 0): 0, (TOPIC, 1): 10}
    assert not left_out(part)
    session.on_response(8)
    assert run_steps(session.next_request()).session_id == 8


def test_leader_without_room_for_a_session_gets_all_partitions_each_time() -> None:
    session = FetcherSession(1000)
    session.set((TOPIC, 0), at(0))
    for _ in range(3):
        part = run_steps(session.next_request())
        assert (part.session_id, part.session_epoch) == (0, 0)
        assert offsets_in(part) == {(TOPIC, 0): 0}
        session.on_response(0)


def test_epoch_after_the_largest_one_is_1() -> None:
    session = open_session()
    session._epoch = 0x7FFFFFFF
    assert run_steps(session.next_request()).session_epoch == 0x7FFFFFFF
    session.on_response(7)
    assert run_steps(session.next_request()).session_epoch == 1
