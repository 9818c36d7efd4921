"""A disk that a test makes full: records are rejected, everything else is served."""

from collections.abc import Callable

import pytest

from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.errors import KafkaStorageError
from kwire.testing import Broker, BrokerError, Cluster
from kwire.testing.wire import WireClient
from tests.support.testing.clients import end_offset, fetch, partition_counts, produce


def usable_bytes(client: WireClient) -> list[int]:
    """Return the free space of each log directory."""
    results = client.call(DescribeLogDirsRequest(topics=None), 4).results
    return [result.usable_bytes for result in results]


def test_full_disk_rejects_records_until_there_is_space_again() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders")
        assert produce(client, "orders", b"first") == 0
        (free,) = usable_bytes(client)
        assert free > 0
        broker.fill_disk()
        assert [produce(client, "orders") for _ in range(2)] == [KafkaStorageError.code] * 2
        assert usable_bytes(client) == [0]
        records: list[bytes] = []
        fetch(client, "orders", [0], records=records)
        assert b"first" in b"".join(records)
        broker.create_topic("payments")
        broker.delete_topics("payments")
        broker.free_disk()
        assert produce(client, "orders", b"second") == 0
        assert end_offset(client, "orders") == 2


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
def test_full_disk_is_full_after_a_restart(end: Callable[[Broker], None]) -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        broker.fill_disk()
        end(broker)
        broker.start()
        assert partition_counts(broker.address) == {"orders": 1}
        with WireClient(*broker.address) as client:
            assert produce(client, "orders") == KafkaStorageError.code
            broker.free_disk()
            assert produce(client, "orders") == 0


def test_disk_that_is_filled_while_the_broker_is_stopped_is_full_at_its_start() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        broker.stop()
        broker.fill_disk()
        broker.start()
        with WireClient(*broker.address) as client:
            assert produce(client, "orders") == KafkaStorageError.code


@pytest.mark.slow
def test_full_follower_falls_out_of_sync_and_catches_up() -> None:
    with Cluster(3, replica_lag_time_max_ms=500) as cluster:
        cluster.create_topic("orders")
        cluster.wait_in_sync("orders")
        leader = cluster.wait_leader("orders")
        follower = leader % 3 + 1
        cluster.fill_disk(follower)
        with WireClient(*cluster.addresses[leader - 1]) as client:
            assert produce(client, "orders") == 0
            cluster.wait_in_sync("orders", count=2)
            cluster.free_disk(follower)
            cluster.wait_in_sync("orders")
            assert end_offset(client, "orders") == 1
        with pytest.raises(BrokerError, match="no node 4"):
            cluster.fill_disk(4)
