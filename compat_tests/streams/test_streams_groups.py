"""Instances of an application whose tasks the coordinator assigns (KIP-1071).

The application reads, repartitions, keeps state with a changelog, and writes each result once. The
coordinator creates its internal topics.
"""

from __future__ import annotations

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from compat_tests.streams.application import Input, Instance, Output
from kwire.codec.messages.list_groups import ListGroupsRequest

PARTITIONS = 4
RECORDS = 400
SETTINGS = ("group.protocol=streams",)
BROKER_SETTINGS = {
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.num.standby.replicas": "1",
    "group.streams.session.timeout.ms": "6000",
}


@pytest.fixture
def application(own_broker, unique, tmp_path):
    """An input, two instances of the application, and a reader of its results."""
    address = own_broker.address
    source, target, name = unique("input"), unique("output"), unique("totals")
    create(address, source, PARTITIONS)
    create(address, target, 2)
    instances = [
        Instance(
            address, name, (source, target), tmp_path / f"instance-{number}", settings=SETTINGS
        )
        for number in range(2)
    ]
    yield Input(address, source, PARTITIONS), instances, Output(address, target, unique("reader"))
    for instance in instances:
        instance.kill()


def kind_of(address: str, group: str) -> tuple[str, str]:
    """Return the type and the state of a group."""
    with connect(address) as client:
        groups = client.call(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups
    (listed,) = [each for each in groups if each.group_id == group]
    return listed.group_type, listed.group_state


def test_totals_are_exact_when_an_instance_is_killed_and_the_broker_restarts(
    own_broker, application
):
    records, instances, results = application
    for instance in instances:
        instance.start()
    records.write(RECORDS)
    results.wait_count(RECORDS, instances)
    eventually(
        lambda: kind_of(own_broker.address, instances[0].application) == ("streams", "Stable"),
        lambda: str(kind_of(own_broker.address, instances[0].application)),
    )

    instances[0].kill()  # Its tasks move to the other instance once its session has expired.
    records.write(RECORDS)
    results.wait_count(2 * RECORDS, instances)

    own_broker.kill()
    own_broker.start()
    instances[0].start()
    records.write(RECORDS)
    results.wait_count(records.written, instances)
    assert results.values == records.sums
