"""Requests of transactions to brokers that are paused, cut off or restarted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kwire.errors import NetworkException
from kwire.net.connection_pool import ConnectionPool, OutOfReach
from kwire.node.core import Core
from kwire.node.other_brokers import OtherBrokers
from kwire.node.transactions import NodeTransactions
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.replica.coordinator_log import CoordinatorLog
from kwire.types import TRANSACTION_STATE, TopicPartition
from tests.support.clock import Clock
from tests.support.coordinator.node import FakeLog
from tests.support.raftmeta.clusters import node_config

SILENT = 2
T0 = TopicPartition("t", 0)
REQUEST_TIMEOUT_S = 30.0
LIMIT_S = 3.0
"""The time limit of a verification, behind which a producer's later requests wait."""


@attrs.define
class SilentPool:
    """Connections over which no answer comes."""

    timeout_s: float = REQUEST_TIMEOUT_S

    async def call(self, host: str, port: int, request: object) -> Any:
        await trio.sleep(self.timeout_s)
        raise OutOfReach


@attrs.define
class Publisher:
    """The metadata, which a test changes."""

    image: MetadataImage
    subscribers: list[Callable[[MetadataImage, object], None]] = attrs.field(factory=list)

    def subscribe(self, subscriber: Callable[[MetadataImage, object], None]) -> None:
        self.subscribers.append(subscriber)

    def publish(self, *records: Any) -> None:
        self.image, delta = apply(self.image, records)
        for subscriber in self.subscribers:
            subscriber(self.image, delta)


def registration(epoch: int = 0, *, fenced: bool = False) -> Any:
    endpoint = r.RegisterBrokerRecord.BrokerEndpoint
    return r.RegisterBrokerRecord(
        broker_id=SILENT,
        incarnation_id=b"i" * 16,
        broker_epoch=epoch,
        rack=None,
        fenced=fenced,
        end_points=[endpoint(name="PLAINTEXT", host="h", port=9, security_protocol=0)],
    )


FENCED = r.BrokerRegistrationChangeRecord(broker_id=SILENT, broker_epoch=0, fenced=1)
SHUTTING_DOWN = r.BrokerRegistrationChangeRecord(
    broker_id=SILENT, broker_epoch=0, in_controlled_shutdown=1
)
RESTARTED = registration(1)
UNREGISTERED = r.UnregisterBrokerRecord(broker_id=SILENT, broker_epoch=0)


@pytest.mark.parametrize(
    ("change", "is_ended"),
    [(FENCED, True), (RESTARTED, True), (UNREGISTERED, True), (SHUTTING_DOWN, False)],
)
async def test_request_to_a_broker_ends_when_the_broker_is_fenced(
    change: Any, is_ended: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The caller retries with the next leader at once; a paused broker answers late or never."""
    publisher = Publisher(apply(MetadataImage(), [registration()])[0])
    brokers = OtherBrokers(1, "PLAINTEXT", lambda: publisher.image)
    publisher.subscribe(lambda image, _: brokers.on_image_published(image))
    began = trio.current_time()
    times: list[float] = []

    async def send() -> None:
        with pytest.raises(NetworkException):
            await brokers.call(
                cast("ConnectionPool", SilentPool()), SILENT, AddPartitionsToTxnRequest()
            )
        times.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.sleep(6)
        publisher.publish(change)
    assert times == [6.0 if is_ended else REQUEST_TIMEOUT_S]


async def test_no_request_is_sent_to_a_fenced_broker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    image = apply(MetadataImage(), [registration(fenced=True)])[0]
    brokers = OtherBrokers(1, "PLAINTEXT", lambda: image)
    with pytest.raises(NetworkException, match="fenced"):
        await brokers.call(
            cast("ConnectionPool", SilentPool()), SILENT, AddPartitionsToTxnRequest()
        )
    assert trio.current_time() == 0


async def test_verification_by_a_silent_coordinator_is_given_up_after_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The coordinator is cut off from this broker alone, so nothing fences it."""
    topic = b"t" * 16
    records = [
        registration(),
        r.TopicRecord(name=TRANSACTION_STATE, topic_id=topic),
        r.PartitionRecord(
            topic_id=topic, partition_id=0, replicas=[SILENT], isr=[SILENT], leader=SILENT
        ),
    ]
    parts = SimpleNamespace(
        config=node_config(),
        publisher=Publisher(apply(MetadataImage(), records)[0]),
        broker_pool=SilentPool,
        clock=Clock(),
        current=SimpleNamespace(config=node_config()),
    )
    unused: Any = None
    log = cast("CoordinatorLog", FakeLog())
    transactions = NodeTransactions(cast("Core", parts), log, markers=unused, take_id=unused)
    async with trio.open_nursery() as nursery:
        transactions.nursery = nursery
        codes = await transactions.verify("x", 5, 0, [T0])
        assert codes == {T0: NetworkException.code}
        assert trio.current_time() == LIMIT_S
        nursery.cancel_scope.cancel()
