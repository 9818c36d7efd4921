"""Snapshots of a test broker: what is saved, what a return brings back, what fails."""

import shutil
from pathlib import Path

import pytest

from kwire.testing import Broker, BrokerError, Cluster
from kwire.testing.wire import WireClient
from tests.support.testing.clients import (
    begin_transactional_id,
    commit,
    end_offset,
    groups,
    partition_counts,
    produce,
    transactional_ids,
)


def test_a_snapshot_is_restored_as_often_as_a_test_likes() -> None:
    with Broker() as broker:
        broker.create_topic("orders", 2)
        with WireClient(*broker.address) as client:
            assert produce(client, "orders") == 0
            commit(client, "readers", "orders", 1)
            begin_transactional_id(client, "writer")
        broker.save_snapshot("one order")
        for _ in range(2):
            broker.create_topic("later")
            with WireClient(*broker.address) as client:
                assert end_offset(client, "orders") == 1
                assert produce(client, "orders") == 0
                commit(client, "others", "orders", 2)
            broker.delete_topics("orders")
            broker.restore_snapshot("one order")
            assert broker.requests.count("Produce") == 0
            with WireClient(*broker.address) as client:
                assert partition_counts(broker.address)["orders"] == 2
                assert "later" not in partition_counts(broker.address)
                assert end_offset(client, "orders") == 1
                assert groups(client) == ["readers"]
                assert transactional_ids(client) == ["writer"]


def test_a_name_in_use_is_saved_anew() -> None:
    with Broker() as broker:
        broker.save_snapshot("state")
        broker.create_topic("orders")
        broker.save_snapshot("state")
        broker.save_snapshot("other")
        broker.delete_topics("orders")
        broker.restore_snapshot("state")
        assert partition_counts(broker.address) == {"orders": 1}


def test_a_stopped_broker_is_not_saved_but_restored() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        broker.save_snapshot("state")
        broker.kill()
        with pytest.raises(BrokerError, match=r"node 1 is stopped; call start\(\) first"):
            broker.save_snapshot("state")
        broker.restore_snapshot("state")
        assert partition_counts(broker.address) == {"orders": 1}


def test_an_unknown_name_is_an_error_and_changes_nothing() -> None:
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.save_snapshot("state")
        with pytest.raises(BrokerError, match="there is no snapshot stat; saved so far: state"):
            broker.restore_snapshot("stat")
    with Broker() as broker, WireClient(*broker.address) as client:
        broker.create_topic("orders")
        with pytest.raises(BrokerError, match="there is no snapshot state; saved so far: none"):
            broker.restore_snapshot("state")
        assert produce(client, "orders") == 0


def test_a_snapshot_that_cannot_be_saved_does_not_stop_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill_the_disk(source: Path, target: Path, **_: object) -> None:
        raise OSError(28, "No space left on device")

    with Broker() as broker:
        broker.create_topic("orders")
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copytree", fill_the_disk)
            with pytest.raises(BrokerError, match=r"cannot save the snapshot state: .*No space"):
                broker.save_snapshot("state")
        assert partition_counts(broker.address) == {"orders": 1}
        with pytest.raises(BrokerError, match="saved so far: none"):
            broker.restore_snapshot("state")


def test_a_protected_broker_keeps_its_users(tmp_path: Path) -> None:
    with Broker(secure=True, data=tmp_path / "data") as broker:
        broker.create_topic("orders")
        broker.save_snapshot("state")
        broker.restore_snapshot("state")
        broker.create_topic("again")
        broker.wait_topic("orders")
    with Broker(secure=True, data=tmp_path / "data") as broker:
        broker.wait_topic("again")


def test_a_cluster_returns_with_its_replicas() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("orders")
        cluster.wait_in_sync("orders")
        cluster.save_snapshot("state")
        cluster.wait_in_sync("orders")
        with WireClient(*cluster.addresses[cluster.wait_leader("orders") - 1]) as client:
            assert produce(client, "orders") == 0
        cluster.restore_snapshot("state")
        cluster.wait_in_sync("orders")
        with WireClient(*cluster.addresses[cluster.wait_leader("orders") - 1]) as client:
            assert end_offset(client, "orders") == 0
