"""Fetch sessions of many partitions, of which few change: what a request visits and answers."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.replica import fetching
from kwire.replica.fetch_sessions import Ref, Session
from kwire.replica.partition import Partition
from tests.support.handlers.broker import NODE, Broker, broker, create_topic, topic_id, write
from tests.support.handlers.fetch import Fetcher, request, values

MANY = 200
FEW = 20
"""More partitions than a request of an idle session visits."""


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that fetches read."""
    read = Partition.read
    visited: list[int] = []

    def note(self: Partition, *args: Any, **more: Any) -> Any:
        visited.append(self.partition)
        return read(self, *args, **more)

    monkeypatch.setattr(Partition, "read", note)
    return visited


async def idle_session(replica: int = -1, **topic: Any) -> tuple[Broker, Fetcher]:
    """Open a session over many empty partitions, and visit each of them in it."""
    subject = broker()
    await create_topic(subject, partitions=MANY, **topic)
    fetcher = Fetcher(subject, replica)
    assert len(await fetcher.fetch(*range(MANY))) == MANY
    assert await fetcher.fetch() == {}
    return subject, fetcher


def partition_of(subject: Broker, index: int) -> Partition:
    return subject.replicas.partitions.get("t", index)


@pytest.mark.parametrize("replica", [-1, 2])
async def test_request_visits_what_has_changed(
    autojump_clock: object, visits: list[int], replica: int
) -> None:
    replicas = (NODE,) if replica < 0 else (NODE, replica)
    subject, fetcher = await idle_session(replica, replicas=replicas)
    visits.clear()
    assert await fetcher.fetch(wait_ms=500) == {}
    assert len(visits) < FEW
    visits.clear()
    write(subject, partition_of(subject, 150), b"a")
    answers = await fetcher.fetch(wait_ms=500)
    assert {index: values(data) for index, data in answers.items()} == {150: [(0, b"a")]}
    assert len(visits) < FEW
    assert list(await fetcher.fetch()) == [150], "the fetcher has not taken the records"
    await fetcher.fetch(150, offset=1)
    visits.clear()
    assert await fetcher.fetch() == {}
    assert len(visits) < FEW


@pytest.mark.parametrize("replica", [-1, 2])
async def test_append_to_an_idle_partition_ends_the_long_poll(
    autojump_clock: object, replica: int
) -> None:
    replicas = (NODE,) if replica < 0 else (NODE, replica)
    subject, fetcher = await idle_session(replica, replicas=replicas)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def append() -> None:
            await trio.sleep(1)
            write(subject, partition_of(subject, 7), b"a")

        answers = await fetcher.fetch(wait_ms=60_000)
    assert values(answers[7]) == [(0, b"a")]
    assert trio.current_time() == pytest.approx(1)


async def test_appends_are_not_reported_again_to_many_sessions_that_do_not_fetch(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may end without closing their sessions, of which a broker keeps a thousand."""
    subject = broker()
    await create_topic(subject)
    partition = partition_of(subject, 0)
    subject.replicas.sessions.slots = MANY
    idle, waiting = Fetcher(subject), Fetcher(subject, min_bytes=200)
    for fetcher in (idle, waiting, *(Fetcher(subject) for _ in range(MANY - 2))):
        await fetcher.fetch(0)
        assert await fetcher.fetch() == {}
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait() -> None:
            assert len(values((await waiting.fetch(wait_ms=60_000))[0])) == 3

        await trio.sleep(1)
        for value in (b"a", b"b", b"c"):
            write(subject, partition, value)
    mark, marked = Session.mark, list[Session]()

    def note(session: Session, ref: Ref) -> bool:
        marked.append(session)
        return mark(session, ref)

    monkeypatch.setattr(Session, "mark", note)
    write(subject, partition, b"d")
    assert len(marked) < FEW
    assert values((await idle.fetch())[0]) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert await idle.fetch(0, offset=4) == {}
    write(subject, partition, b"e")
    assert values((await idle.fetch())[0]) == [(4, b"e")]


async def test_high_watermark_that_moves_is_sent_with_the_next_answer() -> None:
    subject, fetcher = await idle_session(2, replicas=(NODE, 2, 3))
    write(subject, partition_of(subject, 9), b"a")
    await fetcher.fetch()
    await fetcher.fetch(9, offset=1)
    assert await fetcher.fetch() == {}
    await Fetcher(subject, 3).fetch(9, offset=1)
    answers = await fetcher.fetch()
    assert {index: data.high_watermark for index, data in answers.items()} == {9: 1}
    assert await fetcher.fetch() == {}


async def test_follower_learns_the_high_watermark_from_the_fetch_that_moves_it() -> None:
    subject, fetcher = await idle_session(2, replicas=(NODE, 2))
    write(subject, partition_of(subject, 9), b"a")
    await fetcher.fetch()
    answers = await fetcher.fetch(9, offset=1)
    assert {index: data.high_watermark for index, data in answers.items()} == {9: 1}
    assert await fetcher.fetch() == {}


async def test_partition_whose_high_watermark_a_follower_moves_is_read_once(
    autojump_clock: object, visits: list[int]
) -> None:
    subject, fetcher = await idle_session(2, replicas=(NODE, 2))
    write(subject, partition_of(subject, 150), b"a")
    await fetcher.fetch()
    async with trio.open_nursery() as nursery:
        visits.clear()
        nursery.start_soon(partial(fetcher.fetch, 150, offset=1, wait_ms=500))
        await trio.testing.wait_all_tasks_blocked()
        assert visits.count(150) == 1


async def test_lost_leadership_of_an_idle_partition_is_answered_each_time() -> None:
    subject, fetcher = await idle_session(2, replicas=(NODE, 2))
    change = r.PartitionChangeRecord(partition_id=150, topic_id=topic_id("t"), leader=2)
    await subject.publish(change)
    for _ in range(3):
        answers = await fetcher.fetch()
        codes = {index: data.error_code for index, data in answers.items()}
        assert codes == {150: errors.NotLeaderOrFollower.code}


async def test_partition_that_was_left_out_is_not_answered() -> None:
    subject, fetcher = await idle_session()
    await fetcher.fetch(removed=(150,))
    write(subject, partition_of(subject, 150), b"a")
    assert await fetcher.fetch() == {}
    assert list(await fetcher.fetch(150)) == [150]


async def test_every_partition_is_visited_after_a_while(
    autojump_clock: object, visits: list[int]
) -> None:
    """A change that was not reported is noticed: here the start of a log after its retention."""
    _, fetcher = await idle_session()
    visits.clear()
    for _ in range(MANY):
        await trio.sleep(0.5)
        await fetcher.fetch()
    assert set(visits) == set(range(MANY))


async def test_frequent_requests_visit_few_settled_partitions(
    autojump_clock: object, visits: list[int]
) -> None:
    _, fetcher = await idle_session()
    visits.clear()
    for _ in range(MANY):
        await fetcher.fetch()
    assert not visits


async def test_partitions_take_turns_when_an_answer_is_full() -> None:
    """Invariant 18: those that do not fit stay, and are first in the next answer."""
    subject, fetcher = await idle_session()
    for index in (5, 6, 7):
        write(subject, partition_of(subject, index), b"a")
    indexes = []
    for _ in range(3):
        answer = await subject.call(
            request(session_id=fetcher.id, session_epoch=fetcher.epoch, max_bytes=1, max_wait_ms=0),
            17,
        )
        fetcher.epoch += 1
        indexes.append(
            [p.partition_index for t in answer.responses for p in t.partitions if p.records]
        )
    assert indexes == [[5], [6], [7]]


@pytest.mark.parametrize("in_slices", [False, True])
async def test_follower_that_begins_a_new_session_stays_caught_up(
    autojump_clock: object, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, in_slices: bool
) -> None:
    """Invariant 35: a record is appended before the pass of the first request gets there."""
    subject, fetcher = await idle_session(2, replicas=(NODE, 2))
    if in_slices:
        await nursery.start(subject.replicas.fetch_waits.run)
    for _ in range(4):
        await fetcher.fetch(wait_ms=10_000)
    partition = partition_of(subject, MANY - 1)

    async def append() -> None:
        write(subject, partition, b"a")

    monkeypatch.setattr(fetching, "give_way", append)
    fetcher.epoch = 0
    answers = await fetcher.fetch(*range(MANY))
    assert len(values(answers[MANY - 1])) > 1
    assert partition.leader is not None
    assert not partition.leader.laggards(trio.current_time())
    await trio.sleep(1)
    assert not subject.replicas.fetch_waits._bytes.watches


async def test_follower_of_an_idle_partition_counts_as_caught_up(autojump_clock: object) -> None:
    """Invariant 35: its fetches do not name the partition, but go on."""
    subject, fetcher = await idle_session(2, replicas=(NODE, 2))
    for _ in range(100):
        await fetcher.fetch(wait_ms=500)
    now = subject.replicas.now()
    assert now > 40
    partition = partition_of(subject, 150)
    leader = partition.leader
    assert leader is not None
    write(subject, partition, b"a")
    assert not leader.laggards(now + 25)
    assert leader.laggards(now + 31) == {2}


async def test_follower_that_stopped_to_fetch_is_late_with_the_first_append(
    autojump_clock: object,
) -> None:
    subject, _ = await idle_session(2, replicas=(NODE, 2))
    await trio.sleep(40)
    partition = partition_of(subject, 150)
    write(subject, partition, b"a")
    assert partition.leader is not None
    assert partition.leader.laggards(subject.replicas.now()) == {2}


async def test_follower_outside_of_the_isr_is_visited_until_it_joins(visits: list[int]) -> None:
    subject, fetcher = await idle_session(2, replicas=(NODE, 2))
    change = r.PartitionChangeRecord(partition_id=150, topic_id=topic_id("t"), isr=[NODE])
    await subject.publish(change)
    for _ in range(3):
        visits.clear()
        await fetcher.fetch()
        assert 150 in visits


async def test_ended_sessions_watch_nothing() -> None:
    subject, fetcher = await idle_session()
    watched = subject.replicas.fetch_waits._bytes.watches
    assert len(watched) == MANY
    fetcher.epoch = -1
    await fetcher.fetch()
    assert not watched
    assert not subject.replicas.fetch_waits._sessions


async def test_session_that_ends_while_its_fetch_waits_watches_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    subject, fetcher = await idle_session()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def close() -> None:
            await trio.sleep(1)
            await subject.call(request(session_id=fetcher.id, session_epoch=-1), 17)

        assert await fetcher.fetch(wait_ms=2000) == {}
    watched_count = len(subject.replicas.fetch_waits._bytes.watches)
    assert watched_count == 0
