"""Jumps of the wall clock by an hour do not affect fetch sessions and waiting fetches."""

import pytest
import trio

from kwire import errors
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from tests.support.handlers.broker import Broker, broker, topic_id

HOUR_MS = 3_600_000
EVICTION_S = 120.0
JUMPS = pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])


async def fetch(
    subject: Broker, session_id: int = 0, epoch: int = 0, *, count: int = 1
) -> FetchResponse:
    """Fetch ``count`` empty partitions, or go on with a session."""
    topic = FetchRequest.FetchTopic
    partitions = [
        topic.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(count)
    ]
    topics = [topic(topic="t", topic_id=topic_id("t"), partitions=partitions)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics if epoch == 0 else [],
    )
    answer = await subject.call(request, 12)
    assert isinstance(answer, FetchResponse)
    return answer


@JUMPS
async def test_session_in_use_is_not_evicted_when_the_clock_jumps(
    autojump_clock, jump_ms: int
) -> None:
    """Invariant 107: another client gets its slot only after it was idle for long enough."""
    subject = broker(slots=1)
    await subject.create("t")
    session_id = (await fetch(subject)).session_id
    assert session_id
    for epoch in (1, 2, 3):
        subject.wall.ms += jump_ms if epoch % 2 else -jump_ms
        assert (await fetch(subject)).session_id == 0, "the only slot is in use"
        answer = await fetch(subject, session_id, epoch)
        assert (answer.error_code, answer.session_id) == (0, session_id)
        await trio.sleep(EVICTION_S / 4)


@JUMPS
async def test_idle_session_is_evicted_whatever_the_clock_says(
    autojump_clock, jump_ms: int
) -> None:
    """Invariant 107: also after the clock went back, when its last use is in the future.

    It has more partitions than the session that replaces it, so only its idle time counts.
    """
    subject = broker(slots=1)
    await subject.create("t", partitions=2)
    session_id = (await fetch(subject, count=2)).session_id
    assert (await fetch(subject, session_id, 1)).session_id == session_id
    subject.wall.ms += jump_ms
    await trio.sleep(EVICTION_S + 1)
    assert (await fetch(subject)).session_id not in (0, session_id)
    answer = await fetch(subject, session_id, 2)
    assert answer.error_code == errors.FetchSessionIdNotFound.code


@JUMPS
async def test_waiting_fetch_ends_in_time_when_the_clock_jumps(
    autojump_clock, jump_ms: int
) -> None:
    """Invariant 107: the wait lasts ``max_wait_ms``, neither an hour more nor less."""
    subject = broker()
    await subject.create("t")
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[topic(topic="t", topic_id=topic_id("t"), partitions=[partition])],
    )

    async def jump() -> None:
        await trio.sleep(0.1)
        subject.wall.ms += jump_ms

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(jump)
        await subject.call(request, 12)
    assert trio.current_time() - start_s == pytest.approx(0.5)
