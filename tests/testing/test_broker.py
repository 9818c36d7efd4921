"""Brokers in the process of a test: start, settings, reset, outages, and a clean end."""

import asyncio
import gc
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.describe_client_quotas import DescribeClientQuotasRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import BROKER
from kwire.errors import MessageTooLarge
from kwire.testing import Broker, BrokerError, Cluster, MockTime, folders, nodes, open_broker
from kwire.testing.wire import Closed, WireClient
from tests.support.testing.clients import (
    begin_transactional_id,
    commit,
    find_coordinator,
    groups,
    partition_counts,
    produce,
    transactional_ids,
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the file system in memory, to see what is left in it."""
    monkeypatch.setattr(folders, "IN_MEMORY", str(tmp_path))
    return tmp_path


def own_threads() -> set[str]:
    """Return the names of the threads, without trio's spares, which end after ten idle seconds."""
    return {t.name for t in threading.enumerate() if not t.name.startswith("Trio thread")}


def test_a_record_is_accepted_as_soon_as_the_broker_is_open() -> None:
    with Broker() as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{broker.address.port}"
        broker.create_topic("orders", 3, cleanup_policy="delete")
        assert partition_counts(broker.address) == {"orders": 3}
        with WireClient(*broker.address) as client:
            assert produce(client, "orders") == 0


@pytest.mark.parametrize(
    ("settings", "interval_ms"), [({}, 200), ({"group_consumer_heartbeat_interval_ms": 5000}, 5000)]
)
def test_members_soon_learn_of_changes_in_their_group(
    settings: dict[str, Any], interval_ms: int
) -> None:
    with Broker(**settings) as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders", 2)
        answers = []
        for member in ("1" * 22, "2" * 22):
            joining = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=member,
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["orders"],
                topic_partitions=[],
            )
            find_coordinator(client, 0, "g")
            answers.append(client.call(joining, 1))
    assert [answer.error_code for answer in answers] == [0, 0]
    assert [answer.heartbeat_interval_ms for answer in answers] == [interval_ms] * 2
    # No pause before the second assignment: it is part of the second member's first answer.
    assert answers[1].member_epoch > answers[0].member_epoch


def test_settings_have_kafkas_names_with_underscores() -> None:
    with Broker(num_partitions=4, auto_create_topics_enable=True) as broker:
        broker.create_topic("orders", -1)
        assert partition_counts(broker.address) == {"orders": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_partitons": 4}, "num_partitons is not .* did you mean num_partitions?"),
        ({"listeners": "PLAINTEXT://:9092"}, "listeners cannot be set"),
        ({"num_partitions": 0}, "num.partitions"),
        ({"port": 1 << 16}, "65536"),
        ({"port": "9092"}, "port must be a whole number, not '9092'"),
        ({"max_versions": 3.7}, "max_versions must be a string, not 3.7"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BrokerError, match=message), Broker(**settings):  # type: ignore[arg-type]
        pass


def test_a_count_that_is_no_number_is_a_clear_error() -> None:
    cluster = Cluster("3")  # type: ignore[arg-type]
    with pytest.raises(BrokerError, match="count must be a whole number, not '3'"), cluster:
        pass
    with Broker() as broker:
        message = "partitions must be a whole number, not '2'"
        with pytest.raises(BrokerError, match=message):
            broker.create_topic("orders", "2")  # type: ignore[arg-type]
        with pytest.raises(BrokerError, match=message):
            broker.wait_topic("orders", "2")  # type: ignore[arg-type]


def test_a_port_in_use_is_a_clear_error_that_leaves_nothing(place: Path) -> None:
    before = own_threads()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"cannot listen on .*{port}"), Broker(port=port):
            pass
    assert not list(place.iterdir())
    assert own_threads() == before


def test_threads_descriptors_and_directories_are_gone_at_the_end(place: Path) -> None:
    with Broker():  # The first one makes descriptors that trio and the codecs keep.
        pass
    gc.collect()  # Errors of other tests may hold sockets.
    threads, descriptors = own_threads(), len(os.listdir("/proc/self/fd"))
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders")
        assert produce(client, "orders") == 0
        assert list(place.iterdir())
        assert own_threads() != threads
    assert not list(place.iterdir())
    assert own_threads() == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_the_data_of_a_killed_process_are_removed_by_the_next_broker(place: Path) -> None:
    program = f"""
import os, signal
from kwire.testing import Broker, folders
folders.IN_MEMORY = {str(place)!r}
with Broker():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL
    (abandoned,) = place.iterdir()
    with Broker() as broker, Broker() as other:
        assert not abandoned.exists()
        assert len(list(place.iterdir())) == 2
        broker.create_topic("orders")
        other.create_topic("orders")


@pytest.mark.parametrize(("free", "count"), [(64 << 20, 1), (31 << 20, 0)])
def test_the_data_are_on_disk_if_the_memory_has_no_room(
    place: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    count: int,
) -> None:
    """A broker without room would reject all records."""
    disk = tmp_path_factory.mktemp("disk")
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    usage = shutil.disk_usage(place)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with Broker():
        assert len(list(place.iterdir())) == count
        assert len(list(disk.iterdir())) == 1 - count


def test_an_error_of_the_test_is_raised_unchanged(place: Path) -> None:
    with pytest.raises(ZeroDivisionError), Broker():
        raise ZeroDivisionError
    assert not list(place.iterdir())


async def test_an_error_in_trio_is_raised_unchanged(place: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_broker():
            raise ZeroDivisionError
    assert not os.listdir(place)


def test_brokers_of_one_process_share_nothing() -> None:
    with Broker() as first, Broker() as second:
        first.create_topic("of-the-first")
        second.create_topic("of-the-second")
        assert list(partition_counts(first.address)) == ["of-the-first"]
        assert list(partition_counts(second.address)) == ["of-the-second"]
        assert "of-the-second" not in "".join(first.log_lines)
        assert "of-the-second" in "".join(second.log_lines)


def test_restart_reports_no_topic_as_created() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        broker.restart()
        created = [line for line in broker.log_lines if "topics created name=orders" in line]
        assert len(created) == 1


def test_the_log_is_the_brokers_own(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogger("kwire").level
    with caplog.at_level(logging.DEBUG), Broker() as broker:
        broker.create_topic("orders")
    assert any("topics created name=orders" in line for line in broker.log_lines)
    assert not [record for record in caplog.records if record.name.startswith("kwire")]
    assert logging.getLogger("kwire").level == before
    assert logging.getLogger("kwire").parent is logging.getLogger()


def test_a_topic_of_a_context_has_a_name_of_its_own_and_is_deleted() -> None:
    with Broker() as broker:
        with broker.topic(partitions=2) as first, broker.topic() as second:
            assert partition_counts(broker.address) == {first: 2, second: 1}
        assert partition_counts(broker.address) == {}
        broker.delete_topics("never-created")


def test_a_topic_that_exists_is_a_clear_error() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        with pytest.raises(BrokerError, match=r"cannot create the topic orders: .*exists"):
            broker.create_topic("orders")


def test_reset_deletes_topics_groups_and_transactions_and_keeps_connections() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders")
        for _ in range(2):
            broker.reset()
            broker.create_topic("orders")
            assert groups(client) == transactional_ids(client) == []
            commit(client, "readers", "orders", 7)
            begin_transactional_id(client, "writer")
            assert groups(client) == ["readers"]
            assert transactional_ids(client) == ["writer"]
        broker.reset()
        assert partition_counts(broker.address) == {}
        assert groups(client) == transactional_ids(client) == []


def test_reset_removes_quotas() -> None:
    shape = AlterClientQuotasRequest.EntryData
    entry = shape(
        entity=[shape.EntityData(entity_type="client-id", entity_name="slow")],
        ops=[shape.OpData(key="producer_byte_rate", value=10.0, remove=False)],
    )
    alter = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    describe = DescribeClientQuotasRequest(components=[], strict=False)
    with Broker() as broker, WireClient(*broker.address) as client:
        assert not client.call(alter, 1).entries[0].error_code
        assert client.call(describe, 1).entries
        broker.reset()
        assert not client.call(describe, 1).entries


def test_reset_restores_settings_of_all_brokers() -> None:
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    limit = shape.AlterableConfig(name="message.max.bytes", config_operation=0, value="100")
    alter = IncrementalAlterConfigsRequest(
        resources=[shape(resource_type=BROKER, resource_name="", configs=[limit])],
        validate_only=False,
    )
    with Broker() as broker, WireClient(*broker.address) as client:
        assert client.call(alter, 1).responses[0].error_code == 0
        broker.create_topic("orders")
        assert produce(client, "orders", bytes(1000)) == MessageTooLarge.code
        broker.reset()
        broker.create_topic("orders")
        assert produce(client, "orders", bytes(1000)) == 0


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
def test_an_outage_keeps_port_and_records(end: object) -> None:
    with Broker() as broker:
        port = broker.address.port
        broker.create_topic("orders")
        with WireClient(*broker.address) as client:
            assert produce(client, "orders") == 0
            end(broker)  # type: ignore[operator]
            with pytest.raises(Closed):
                produce(client, "orders")
        with pytest.raises(ConnectionRefusedError):
            WireClient(*broker.address)
        with pytest.raises(BrokerError, match="is stopped"):
            broker.create_topic("more")
        broker.start()
        assert broker.address.port == port
        assert partition_counts(broker.address) == {"orders": 1}


def test_a_directory_of_the_user_is_kept(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data") as broker:
        broker.create_topic("orders")
    with Broker(data=tmp_path / "data") as broker:
        assert partition_counts(broker.address) == {"orders": 1}


def test_a_broker_is_used_once_and_only_in_its_context() -> None:
    broker = Broker()
    with pytest.raises(BrokerError, match="is not running yet"):
        broker.create_topic("orders")
    with broker:
        pass
    with pytest.raises(BrokerError, match="has ended"):
        broker.create_topic("orders")
    with pytest.raises(BrokerError, match="for one use"), broker:
        pass


def test_a_broker_serves_a_program_on_asyncio() -> None:
    async def program() -> dict[str, int]:
        with Broker() as broker:
            await asyncio.to_thread(broker.create_topic, "orders")
            broker.create_topic("payments")
            return partition_counts(broker.address)

    assert asyncio.run(program()) == {"orders": 1, "payments": 1}


async def test_a_broker_serves_a_program_on_trio() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        stream = await trio.open_tcp_stream(*broker.address)
        await stream.aclose()


def test_a_test_can_move_the_time_of_a_broker() -> None:
    """A connection that is idle for ten minutes, which pass at once, is closed."""
    time = MockTime()

    async def program() -> None:
        async with open_broker(clock=time) as broker:
            stream = await trio.open_tcp_stream(*broker.address)
            await trio.sleep(0.05)
            time.move(601)
            assert await stream.receive_some(1) == b""
            await stream.aclose()

    trio.run(program, clock=time.of_trio)


@pytest.mark.slow
def test_a_cluster_has_nodes_that_are_only_brokers() -> None:
    """The first five nodes are the controllers."""
    with Cluster(6) as cluster:
        cluster.create_topic("t", 6, replication_factor=6)
        cluster.stop(6)
        cluster.start(6)
        assert cluster.bootstrap_servers.count(",") == 5


def test_a_start_that_takes_too_long_shows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "READY_S", 0.5)
    monkeypatch.setattr(nodes.LocalCluster, "_knows_running", lambda self, image: False)
    with pytest.raises(BrokerError) as raised, Broker():
        pass
    first, *lines = str(raised.value).split("\n")
    assert first == "the nodes are not ready after 0.5 s; they logged:"
    assert all(" kwire." in line for line in lines if line)


@pytest.mark.slow
def test_a_cluster_survives_the_loss_of_a_node() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("orders", 3)
        cluster.kill(2)
        cluster.start(2)
        cluster.restart(1)
        assert [partition_counts(address) for address in cluster.addresses] == [{"orders": 3}] * 3
        with pytest.raises(BrokerError, match="no node 4; the ids are 1, 2, 3"):
            cluster.kill(4)
