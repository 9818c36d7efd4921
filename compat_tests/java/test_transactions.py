"""Transactions of Apache's Java producer, and the Java Admin's view of them."""

from __future__ import annotations

import pytest

from compat_tests.kafka_python.clients import create, fill


@pytest.fixture
def java(jvm, broker, topic, unique):
    """A function that runs a scenario over a new topic with a new transactional id."""
    create(broker.address, topic)
    name = unique("txn")

    def run(scenario, *arguments):
        return jvm.scenario("Transactions", scenario, broker.address, topic, name, *arguments)

    return run


def test_records_and_offsets_are_committed_together(broker, java, unique, group):
    """A copy of a topic, in transactions of which every third is aborted, has each record once."""
    source = unique("source")
    create(broker.address, source, 3)
    fill(broker.address, source, [b"%d" % number for number in range(300)])
    result = java("transform", source, group, "300")
    assert sorted(map(int, result.pop("values"))) == list(range(300))
    assert result == {"copied": 300, "committed": 300}


def test_epoch_grows_with_every_transaction(java):
    """With transaction.version 2 the coordinator raises the epoch at every end (KIP-890)."""
    assert java("epochs", "6") == {
        "epochs": [1, 2, 3, 4, 5, 6],
        "ids": 1,
        "values": ["0", "2", "4"],
    }


def test_zombie_can_neither_commit_nor_write_nor_commit_offsets(java):
    result = java("fencing")
    assert result.pop("values") == ["heir", "again"]
    assert result == {
        "commit": "ProducerFencedException",
        "send": "InvalidProducerEpochException",
        "offsets": "ProducerFencedException",
    }


def test_transaction_that_takes_too_long_is_aborted(java):
    assert java("timeOut") == {
        "values": ["after"],
        "commit": "InvalidTxnStateException",
        "later": ["after", "heir"],
    }


def test_offsets_of_an_open_transaction_are_not_stable(java, group):
    assert java("pendingOffsets", group) == {
        "open abort": "TimeoutException",
        "seen by an admin, abort": None,
        "abort": None,
        "open commit": "TimeoutException",
        "seen by an admin, commit": None,
        "commit": [7, "note"],
    }


def test_offsets_of_a_member_that_was_removed_are_refused(java, group):
    assert java("removedMember", group) == {"offsets": "CommitFailedException", "committed": None}


def test_open_transaction_is_described_and_listed(java, topic):
    assert java("describe") == {
        "before": ["Empty", 0],
        "state": "Ongoing",
        "partitions": f"[{topic}-0]",
        "timeOutMs": 54321,
        "started": True,
        "writer": [True, 0, 0],
        "listed": {
            "all": ["Ongoing"],
            "ongoing": ["Ongoing"],
            "empty": [],
            "id": ["Ongoing"],
            "other id": [],
            "an hour": [],
            "pattern": ["Ongoing"],
            "other pattern": [],
        },
        "unknown": "TransactionalIdNotFoundException",
    }


def test_producers_are_fenced_by_an_admin(java):
    assert java("fence") == {
        "same id": True,
        "newer epoch": True,
        "commit": "ProducerFencedException",
        "values": ["after"],
    }


def test_transaction_on_one_partition_is_aborted_by_an_admin(java):
    assert java("abort") == {
        "values": ["after"],
        "open": False,
        "state": "Ongoing",
        "later": ["after", "again"],
    }


def test_transaction_is_terminated_by_an_admin(java):
    assert java("terminate") == {
        "terminate": "none",
        "commit": "ProducerFencedException",
        "values": ["after"],
    }
