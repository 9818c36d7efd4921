"""kill -9 while several producers send: nothing acknowledged is lost, and it goes on at once."""

from __future__ import annotations

import time

from compat_tests.confluent_kafka.clients import consumer, create, poll
from compat_tests.durability.load import check, first_after, loads, wait_for_more
from compat_tests.harness.wait import collect

PARTITIONS = 4
ROUNDS = 3


def test_every_acknowledged_record_is_where_it_was_said_to_be(own_broker, topic, group):
    """Small segments, so that kills also fall into rolls."""
    address = own_broker.address
    create(address, topic, PARTITIONS, internal_segment_bytes="60000", index_interval_bytes="500")
    waits = []
    with loads(address, topic, PARTITIONS) as running:
        for _ in range(ROUNDS):
            wait_for_more(running, 150)
            with consumer(address, group) as reader:
                reader.subscribe([topic])
                collect(lambda reader=reader: poll(reader), 100)
                reader.commit(asynchronous=False)
                places = {(p.topic, p.partition): p.offset for p in _committed(reader)}
            wait_for_more(running, 50)
            own_broker.kill()
            killed = time.monotonic()
            own_broker.start()
            wait_for_more(running, 50)
            waits.append(first_after(running, killed))
            with consumer(address, group) as reader:
                reader.subscribe([topic])
                collect(lambda reader=reader: poll(reader), 1)
                assert {(p.topic, p.partition): p.offset for p in _committed(reader)} == places
    print("seconds from kill -9 and restart to the first acknowledgement:", waits)
    assert max(waits) < 30
    assert check(running, address, topic, PARTITIONS) > ROUNDS * 200 * len(running)


def _committed(reader):
    return reader.committed(reader.assignment(), 30)
