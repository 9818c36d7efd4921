"""A topic that is deleted and created again under its name, on one broker."""

from functools import partial
from typing import Any

import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.produce import ProduceRequest
from tests.support.handlers.broker import Broker, broker, one_batch, read_log, topic_id
from tests.support.handlers.fetch import at, fetch, request, values
from tests.support.handlers.produce import Data, Topic, produce
from tests.support.log.threads import HangingThreads

NEW_ID = b"created again.. "


async def recreate_topic() -> Broker:
    """Delete a topic with two records of an idempotent producer, and create it again."""
    subject = broker()
    await subject.create("t")
    batch = one_batch(b"a", b"b", producer_id=7, producer_epoch=3, base_sequence=0)
    await produce(subject, ("t", 0, batch))
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    await subject.create("t", identity=NEW_ID)
    return subject


async def test_recreated_topic_has_no_old_records() -> None:
    """Invariant 40."""
    subject = await recreate_topic()
    partition = subject.replicas.partitions.get("t", 0)
    assert (partition.log.end_offset, partition.high_watermark) == (0, 0)
    (fetched,) = await fetch(subject, at("t"))
    assert (fetched.high_watermark, values(fetched)) == (0, [])
    (answer,) = await produce(subject, ("t", 0, one_batch(b"new")))
    assert answer.base_offset == 0
    assert read_log(partition).endswith(one_batch(b"new")[61:])


async def test_old_topic_id_is_unknown() -> None:
    """Invariant 40: late producers and consumers of the old topic do not reach the new one."""
    subject = await recreate_topic()
    topic = Topic(topic_id=topic_id("t"), partition_data=[Data(index=0, records=one_batch())])
    answer = await subject.call(ProduceRequest(acks=1, timeout_ms=0, topic_data=[topic]), 13)
    assert answer.responses[0].partition_responses[0].error_code == errors.UnknownTopicId.code
    fetched = await subject.call(request(at("t")), 13)
    assert fetched.responses[0].partitions[0].error_code == errors.UnknownTopicId.code
    assert subject.replicas.partitions.get_by_id(NEW_ID, 0).log.end_offset == 0


async def test_recreated_topic_has_no_old_producer_state() -> None:
    """Invariant 40: the same sequence is a new batch there, and an older epoch is not fenced."""
    subject = await recreate_topic()
    batch = one_batch(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=0)
    (answer,) = await produce(subject, ("t", 0, batch))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert subject.replicas.partitions.get("t", 0).log.end_offset == 2


async def test_metadata_is_applied_while_a_deleted_topics_disk_hangs(autojump_clock: Any) -> None:
    """Invariants 40 and 91: the applier waits for no flush; only the new log waits for the old."""
    subject = broker()
    partition = await subject.create("t")
    assert partition is not None
    await produce(subject, ("t", 0, one_batch(b"old")))
    threads = HangingThreads(hung=subject.disk)
    subject.logs.threads.stand_in = partial(threads.run, subject.disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.logs.run)
        nursery.start_soon(subject.logs.flush, partition.log)
        await trio.testing.wait_all_tasks_blocked()
        try:
            with trio.fail_after(1):
                await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
                assert subject.replicas.partitions.find("t", 0) is None
                assert await subject.create("u") is not None
                await subject.create("t", identity=NEW_ID)
            (refused,) = await produce(subject, ("t", 0, one_batch(b"early")))
            assert refused.error_code == errors.KafkaStorageError.code
        finally:
            threads.released.set()
        await trio.testing.wait_all_tasks_blocked()
        (answer,) = await produce(subject, ("t", 0, one_batch(b"new")))
        assert (answer.error_code, answer.base_offset) == (0, 0)
        nursery.cancel_scope.cancel()
