"""A stateful application counts each record once, whoever is killed."""

from __future__ import annotations

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.streams.application import Input, Instance, Output

PARTITIONS = 4
RECORDS = 600


@pytest.fixture
def application(own_broker, unique, tmp_path):
    """An input, two instances of the application, and a reader of its results."""
    address = own_broker.address
    source, target, name = unique("input"), unique("output"), unique("totals")
    create(address, source, PARTITIONS)
    create(address, target, 2)
    instances = [
        Instance(address, name, (source, target), tmp_path / f"instance-{number}")
        for number in range(2)
    ]
    yield Input(address, source, PARTITIONS), instances, Output(address, target, unique("reader"))
    for instance in instances:
        instance.kill()


def test_totals_are_exact_through_kills_of_the_application_and_restarts_of_the_broker(
    own_broker, application
):
    records, instances, results = application
    for instance in instances:
        instance.start()
    records.write(RECORDS)
    results.wait_count(RECORDS // 2, instances)

    instances[0].kill()  # Its transaction is open, its tasks move to the standby.
    records.write(RECORDS)
    instances[0].start()
    own_broker.kill()
    own_broker.start()
    records.write(RECORDS)
    results.wait_count(2 * RECORDS, instances)

    instances[1].kill()
    own_broker.restart()
    instances[1].start()
    records.write(RECORDS)
    results.wait_count(3 * RECORDS, instances)

    for instance in instances:
        instance.kill()
    instances[0].forget()
    records.write(RECORDS)
    for instance in instances:
        instance.start()
    results.wait_count(records.written, instances)
    assert results.values == records.sums
