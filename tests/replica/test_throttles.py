"""Throttled replicas: the rate at which leaders send and followers fetch (KIP-73)."""

from math import inf

import pytest
import trio
import trio.testing

from kwire.log.config import LogConfig
from kwire.replica.partition import Partition
from kwire.replica.throttles import THROTTLE_MS_MAX, RateLimit, is_throttled
from tests.support.handlers.broker import NODE, Broker, broker, create_topic, write
from tests.support.handlers.fetch import at, fetch
from tests.support.replica.leader import Answer, Leader, following, ten_records


@pytest.mark.parametrize(
    ("setting", "expected"),
    [((), False), (("*",), True), (("3:1",), True), (("3:2", "4:1"), False)],
)
def test_setting_names_replicas_by_partition_and_broker(
    setting: tuple[str, ...], expected: bool
) -> None:
    assert is_throttled(frozenset(setting), 3, 1) is expected


def test_rate_is_measured_over_one_window_at_least() -> None:
    limit = RateLimit(bytes_per_s=100)
    limit.record(100, 5.0)
    assert not limit.is_exceeded(5.0)
    limit.record(1, 5.0)
    assert limit.is_exceeded(5.0)
    assert limit.is_exceeded(6.0)
    assert not limit.is_exceeded(6.02)


def test_limit_is_exceeded_until_its_pause_is_over() -> None:
    limit = RateLimit(bytes_per_s=100)
    limit.record(150, 0.0)
    assert limit.pause_s(0.0) == pytest.approx(0.5)
    assert not limit.is_exceeded(1.51)
    assert limit.pause_s(1.51) == 0


def test_bytes_count_for_all_windows_and_no_longer() -> None:
    limit = RateLimit(bytes_per_s=100, window_count=3, window_s=2.0)
    limit.record(100_000, 0.0)
    assert limit.is_exceeded(5.9)
    assert limit.pause_s(5.9) == 2.0
    assert not limit.is_exceeded(6.0)


def test_excess_is_the_time_in_which_the_rate_falls_back_to_the_limit() -> None:
    limit = RateLimit(bytes_per_s=100, windows_min=10)
    limit.record(1000, 5.0)
    assert limit.excess_ms(5.0) == 0, "what an idle client may send at once"
    limit.record(250, 5.0)
    assert limit.excess_ms(5.0) == 2500
    assert limit.excess_ms(15.5) == 2000, "the rate is measured over more than ten seconds now"
    assert limit.excess_ms(16.0) == 0, "the window is too old to count"
    limit.record(1 << 50, 20.0)
    assert limit.excess_ms(20.0) == THROTTLE_MS_MAX


def test_available_bytes_are_what_the_windows_have_left() -> None:
    limit = RateLimit(bytes_per_s=100, windows_min=10)
    assert limit.available_bytes(5.0) == 1000
    limit.record(300, 5.0)
    assert limit.available_bytes(5.0) == 700
    limit.record(900, 5.0)
    assert limit.available_bytes(5.0) == 1, "one byte at least, so that a batch can be read"


def test_limit_of_zero_holds_back_what_follows_the_first_bytes() -> None:
    limit = RateLimit(bytes_per_s=0)
    assert not limit.is_exceeded(0.0)
    limit.record(1, 0.0)
    assert limit.is_exceeded(1.0)
    assert limit.pause_s(1.0) == limit.window_s


def test_broker_without_limit_holds_back_nothing() -> None:
    limit = RateLimit()
    limit.record(1 << 60, 0.0)
    assert limit.bytes_per_s == inf
    assert not limit.is_exceeded(0.0)


async def leader_of(*in_sync: int, throttled: str = f"0:{NODE}") -> tuple[Broker, Partition]:
    """Make a partition with followers 2 and 3, and a leader that has sent more than it may."""
    subject = broker()
    subject.replicas.throttles.leader.bytes_per_s = 10
    partition = await create_topic(
        subject,
        replicas=(NODE, 2, 3),
        isr=(NODE, *in_sync),
        leader_throttled_replicas=frozenset({throttled}),
    )
    write(subject, partition, b"a")
    (data,) = await fetch(subject, at("t"), replica_id=2)
    assert len(data.records) > 10
    return subject, partition


async def test_throttled_follower_out_of_sync_gets_no_records(autojump_clock) -> None:
    subject, partition = await leader_of(3)
    (data,) = await fetch(subject, at("t"), replica_id=2, max_wait_ms=500)
    assert (len(data.records), data.error_code) == (0, 0)
    assert trio.current_time() == pytest.approx(0.5)
    assert partition.leader is not None
    assert partition.leader.followers[2].log_end == 0
    await trio.sleep(10)
    (data,) = await fetch(subject, at("t"), replica_id=2, max_wait_ms=500)
    assert len(data.records)


async def test_follower_in_sync_and_consumers_are_not_throttled() -> None:
    subject, _ = await leader_of(2, 3)
    for replica in (2, 3, -1):
        subject.replicas.throttles.leader.record(1000, 0.0)
        partition = subject.replicas.partitions.get("t", 0)
        partition.log.high_watermark = 1
        (data,) = await fetch(subject, at("t"), replica_id=replica)
        assert len(data.records), replica


async def test_replica_that_the_setting_does_not_name_is_not_throttled() -> None:
    subject, _ = await leader_of(3, throttled="1:1")
    (data,) = await fetch(subject, at("t"), replica_id=2)
    assert len(data.records)


async def test_append_does_not_end_the_wait_of_a_throttled_follower(autojump_clock) -> None:
    subject, partition = await leader_of(3)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def append() -> None:
            await trio.sleep(0.1)
            write(subject, partition, b"b")

        await fetch(subject, at("t"), replica_id=2, max_wait_ms=500)
    assert trio.current_time() == pytest.approx(0.5)


def records_of(high_watermark: int) -> Answer:
    return Answer(
        partition_index=0,
        high_watermark=high_watermark,
        log_start_offset=0,
        records=ten_records(),
    )


@pytest.mark.parametrize(
    ("high_watermark", "throttled", "at_once"),
    [(1000, "0:1", False), (1000, "*", False), (10, "0:1", True), (1000, "0:2", True)],
)
async def test_follower_fetches_a_throttled_replica_no_faster_than_its_limit(
    autojump_clock: trio.testing.MockClock, high_watermark: int, throttled: str, at_once: bool
) -> None:
    """A replica at the leader's high watermark is in sync, and is not held back."""
    config = LogConfig(follower_throttled_replicas=frozenset({throttled}))
    leader = Leader(lambda offset: None if offset else records_of(high_watermark))
    async with following(leader, config) as (partition, fetcher, _):
        fetcher.throttle.bytes_per_s = len(ten_records()) / 5
        await trio.sleep(3)
        assert partition.log.end_offset == 10
        assert leader.offsets == ([0, 10] if at_once else [0])
        await trio.sleep(3)
        assert leader.offsets == [0, 10]
