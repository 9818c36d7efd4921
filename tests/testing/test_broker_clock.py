"""The clock of test brokers: what is due happens when the test moves the time forward."""

import threading
import time
from functools import partial

import pytest
import trio

from kwire.testing import Broker, BrokerError, MockTime, open_broker
from kwire.testing.wire import WireClient
from tests.support.testing.clients import begin_transaction, end_offset, produce, start_offset

HOUR_S = 3600


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


@pytest.mark.parametrize("seconds", [-1, 1e10, float("nan")])
def test_a_wrong_time_is_a_clear_error(seconds: float) -> None:
    with Broker() as broker, pytest.raises(BrokerError, match="cannot advance by"):
        broker.clock.advance(seconds)
