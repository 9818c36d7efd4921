"""The clock of test brokers: what is due happens when the test moves the time forward."""

import sys
import threading
import time
from functools import partial

import pytest
import trio

from kwire.clock import SystemClock
from kwire.records import header, iterate
from kwire.testing import Broker, BrokerError, MockTime, open_broker
from kwire.testing.wire import WireClient
from tests.support.testing.clients import (
    begin_transaction,
    end_offset,
    fetch,
    heartbeat,
    join_group,
    produce,
    start_offset,
)
from tests.support.testing.share import ShareMember

HOUR_S = 3600
UNKNOWN_MEMBER_ID = 25


def test_a_transaction_times_out() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders")
        begin_transaction(client, "calculator", "orders")
        produce(client, "orders")
        broker.clock.advance(60)
        assert broker.wait_transaction_end("calculator") == "CompleteAbort"


def test_old_records_are_deleted() -> None:
    with Broker() as broker:
        broker.create_topic(
            "orders", retention_ms=HOUR_S * 1000, message_timestamp_type="LogAppendTime"
        )
        with WireClient(*broker.address) as client:
            produce(client, "orders")
        before = broker.clock.now_ms()
        broker.clock.advance(2 * HOUR_S)
        assert broker.clock.now_ms() - before >= 2 * HOUR_S * 1000
        with WireClient(*broker.address) as client:
            deadline = time.monotonic() + 10
            while start_offset(client, "orders") == 0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert produce(client, "orders") == 0
            assert end_offset(client, "orders") == 2


def test_members_whose_session_expires_leave_their_group() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        member = join_group(client, "workers")
        broker.clock.advance(20)  # Less than the session time-out, 30 s.
        broker.wait_group("workers", 1)
        assert heartbeat(client, "workers", member) == 0
        broker.clock.advance(31)
        broker.wait_group("workers", 0)
        assert heartbeat(client, "workers", member) == UNKNOWN_MEMBER_ID


def test_records_are_compacted_once_their_lag_is_over() -> None:
    """A record beyond the lag begins a segment, so that those before it are compacted."""
    with Broker() as broker:
        broker.create_topic(
            "prices",
            cleanup_policy="compact",
            max_compaction_lag_ms=2 * HOUR_S * 1000,
            message_timestamp_type="LogAppendTime",
        )
        put(broker, "prices", b"first", b"second")
        broker.clock.advance(HOUR_S)
        assert values(broker, "prices") == [b"first", b"second"]
        broker.clock.advance(2 * HOUR_S)
        put(broker, "prices", b"third")
        deadline = time.monotonic() + 60
        while values(broker, "prices")[0] != b"second":
            assert time.monotonic() < deadline
            broker.clock.advance(15)  # log.cleaner.backoff.ms
            time.sleep(0.01)


def test_a_record_whose_lock_ends_is_delivered_again() -> None:
    with (
        Broker() as broker,
        WireClient(*broker.address) as first,
        WireClient(*broker.address) as second,
    ):
        broker.create_topic("orders")
        member, other = (ShareMember(client, "workers", "orders") for client in (first, second))
        member.join()
        while not (records := member.fetch()):  # The group begins at the end of the topic.
            assert produce(first, "orders") == 0
        assert {delivery_count for _, delivery_count in records} == {1}
        other.join()
        broker.clock.advance(20)
        assert other.fetch() == []
        broker.clock.advance(11)  # group.share.record.lock.duration.ms is 30 s
        assert other.wait_records() == [(offset, 2) for offset, _ in records]


def test_a_delayed_request_is_carried_out() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders")
        broker.faults.delay("Produce", HOUR_S)
        sender = threading.Thread(target=partial(produce, client, "orders"))
        sender.start()
        while not broker.requests.count("Produce"):
            time.sleep(0.001)
        with WireClient(*broker.address) as other:
            assert end_offset(other, "orders") == 0
        broker.clock.advance(HOUR_S)
        sender.join(10)
        assert not sender.is_alive()


def test_the_systems_clock_cannot_be_moved() -> None:
    async def advance(clock: MockTime | None) -> int:
        async with open_broker(clock=clock) as broker:
            await broker.advance(HOUR_S)
            return broker.nodes[1].environment().clock.now_ms()

    moved = MockTime(start_ms=0)
    assert HOUR_S * 1000 <= trio.run(advance, moved, clock=moved.of_trio) < 2 * HOUR_S * 1000
    with pytest.raises(BrokerError, match="clock=MockTime"):
        trio.run(advance, None)


def freeze(monkeypatch: pytest.MonkeyPatch, at: float, *names: str) -> None:
    """Stop functions of the module time, as libraries do that set the time of a test."""
    for name in names:
        frozen = int(at * 1e9) if name.endswith("_ns") else at
        monkeypatch.setattr(time, name, lambda *_, frozen=frozen: frozen)


FREEZEGUN = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
IN_2020 = 1_577_836_800


def test_the_time_passes_in_a_process_whose_time_is_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that starts there would wait for ever wherever it waits for a moment."""
    before_ms = SystemClock().now_ms()
    freeze(monkeypatch, IN_2020, *FREEZEGUN)
    clock = MockTime()
    started = clock.now()
    time.sleep(0.01)
    assert clock.now() >= started + 0.01
    assert clock.of_trio.deadline_to_sleep_time(started) < 0
    assert before_ms <= clock.now_ms() < before_ms + HOUR_S * 1000
    with Broker() as broker, WireClient(*broker.address) as client:
        with pytest.raises(BrokerError, match=r"waited 0\.01 s"):
            broker.wait_group("workers", 1, timeout=0.01)
        join_group(client, "workers")
        assert broker.clock.now_ms() < before_ms + HOUR_S * 1000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has another such clock")
def test_the_wall_clock_is_the_machines_when_a_test_travels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """time-machine moves CLOCK_REALTIME too. Clients in C stamp records with the machine's time."""
    before_ms = SystemClock().now_ms()
    gettime, read_ns = time.clock_gettime, time.clock_gettime_ns
    real = time.CLOCK_REALTIME
    monkeypatch.setattr(time, "clock_gettime", lambda id: IN_2020 if id == real else gettime(id))
    monkeypatch.setattr(
        time, "clock_gettime_ns", lambda id: IN_2020 * 10**9 if id == real else read_ns(id)
    )
    freeze(monkeypatch, IN_2020, "time", "time_ns")
    assert before_ms - 1000 <= MockTime().now_ms() < before_ms + HOUR_S * 1000


def put(broker: Broker, topic: str, *texts: bytes) -> None:
    """Produce values of one key; the connection is new, as idle ones end when the clock moves."""
    with WireClient(*broker.address) as client:
        for text in texts:
            assert produce(client, topic, text, key=b"book") == 0


def values(broker: Broker, topic: str) -> list[bytes | None]:
    """Return the first values in partition 0, as a new client sees them."""
    data = list[bytes]()
    with WireClient(*broker.address) as client:
        fetch(client, topic, [0], records=data)
    return [
        record.value
        for each in data
        for position, head in header.headers(each)
        for record in iterate.records(each, position, head)
    ]


def test_a_time_that_is_no_number_is_a_clear_error() -> None:
    with Broker() as broker:
        with pytest.raises(BrokerError, match="seconds must be a number, not '1'"):
            broker.clock.advance("1")  # type: ignore[arg-type]
        with pytest.raises(BrokerError, match="timeout must be a number, not '1'"):
            broker.wait_topic("orders", timeout="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, 1e10, float("nan")])
def test_a_wrong_time_is_a_clear_error(seconds: float) -> None:
    with Broker() as broker, pytest.raises(BrokerError, match="cannot advance by"):
        broker.clock.advance(seconds)
