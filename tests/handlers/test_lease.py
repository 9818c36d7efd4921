"""Requests to a broker whose session may have ended: another broker may lead its partitions."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages.delete_records import DeleteRecordsRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kwire.raftmeta.broker.session_lease import SessionLease
from tests.support.handlers.broker import Broker, broker, create_topic, one_batch
from tests.support.handlers.fetch import at, fetch
from tests.support.handlers.list_offsets import offsets
from tests.support.handlers.produce import produce

REFUSED = errors.NotLeaderOrFollower.code


def lease_until(end: float) -> SessionLease:
    lease = SessionLease(9.0)
    lease.end = end
    return lease


async def paused_broker() -> tuple[Broker, SessionLease]:
    """Return a broker with a record whose lease is over."""
    subject = broker()
    await create_topic(subject)
    await produce(subject, ("t", 0, one_batch()))
    lease = lease_until(subject.replicas.now())
    subject.replicas.lease = lease
    return subject, lease


@pytest.mark.parametrize("acks", [1, -1])
async def test_produce_is_refused(acks: int) -> None:
    """Invariant 34."""
    subject, lease = await paused_broker()
    (answer,) = await produce(subject, ("t", 0, one_batch()), acks=acks)
    assert answer.error_code == REFUSED
    lease.end = float("inf")
    (answer,) = await produce(subject, ("t", 0, one_batch()), acks=acks)
    assert (answer.error_code, answer.base_offset) == (0, 1)


async def test_consumer_gets_no_records() -> None:
    subject, lease = await paused_broker()
    (answer,) = await fetch(subject, at("t"))
    assert (answer.error_code, bytes(answer.records or b"")) == (REFUSED, b"")
    lease.end = float("inf")
    (answer,) = await fetch(subject, at("t"))
    assert (answer.error_code, len(answer.records or b"") > 0) == (0, True)


async def test_replica_verifier_gets_no_records() -> None:
    """Kafka's tool that compares replicas fetches as -2, and counts as a consumer."""
    subject, lease = await paused_broker()
    state = FetchRequest.ReplicaState(replica_id=-2)
    for version, identity in ((12, {"replica_id": -2}), (18, {"replica_state": state})):
        lease.end = 0.0
        (answer,) = await fetch(subject, at("t"), version=version, **identity)
        assert answer.error_code == REFUSED
        lease.end = float("inf")
        (answer,) = await fetch(subject, at("t"), version=version, **identity)
        assert (answer.error_code, len(answer.records or b"") > 0) == (0, True)


async def test_consumer_that_waited_gets_no_records(autojump_clock: Any) -> None:
    """A fetch that waits while the lease ends is refused when it wakes."""
    subject, lease = await paused_broker()
    lease.end = subject.replicas.now() + 1
    (answer,) = await fetch(subject, at("t", 1), max_wait_ms=5000)
    assert answer.error_code == REFUSED


async def test_followers_are_served() -> None:
    """They compare leader epochs; what they fetch acknowledges nothing that they lack."""
    subject, _ = await paused_broker()
    subject.replicas.lease = None
    await create_topic(subject, "two", replicas=(1, 2))
    subject.replicas.lease = lease_until(subject.replicas.now())
    (answer,) = await fetch(subject, at("two"), replica_id=2)
    assert answer.error_code == 0


@pytest.mark.parametrize("timestamp", [-1, -2, 0])
async def test_offsets_are_refused(timestamp: int) -> None:
    subject, lease = await paused_broker()
    assert (await offsets(subject, timestamp))[0] == REFUSED
    lease.end = float("inf")
    assert (await offsets(subject, timestamp))[0] == 0


async def test_records_are_not_deleted() -> None:
    subject, _ = await paused_broker()
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    part = topic.DeleteRecordsPartition(partition_index=0, offset=1)
    answer = await subject.call(
        DeleteRecordsRequest(timeout_ms=1, topics=[topic(name="t", partitions=[part])])
    )
    assert answer.topics[0].partitions[0].error_code == REFUSED


async def test_end_of_an_epoch_is_refused() -> None:
    subject, _ = await paused_broker()
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    answer = await subject.call(
        OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(topic="t", partitions=[part])])
    )
    assert answer.topics[0].partitions[0].error_code == REFUSED
