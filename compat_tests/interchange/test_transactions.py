"""Directories with transactions in every state pass between kwire and Apache Kafka."""

from __future__ import annotations

import shutil

import pytest

from compat_tests.cluster.tools import FEATURES
from compat_tests.interchange import transactions, view
from compat_tests.interchange.node import hand_over, prepare

COMMITTED = {
    "committed": ["committed-0", "committed-1"],
    "aborted": ["aborted-0"],
    "open": ["open-0"],
    "commit-decided": ["commit-decided-0", "commit-decided-1"],
    "abort-decided": ["abort-decided-0"],
}


@pytest.mark.parametrize("level", [pytest.param(0, marks=pytest.mark.long), 2])
@pytest.mark.with_apache
def test_both_finish_what_kwire_has_decided(tmp_path, jvm, level):
    """Kafka finishes a copy of the directory as kwire does, and each goes on after the other.

    The node is stopped, not killed: at the end of a dead broker's session Kafka's coordinator finds
    no leaders, and completes transactions without their markers (seen in half of the runs).
    """
    node = prepare(tmp_path / "node")
    try:
        node.start()
        if level < 2:
            _downgrade(jvm, node.address, level)
        transactions.fill(node.address)
        node.stop()
        copy = tmp_path / "copy"
        shutil.copytree(node.data, copy)
        node.start()
        finished_by_kwire = transactions.wait_finished(node.address)
        _check(finished_by_kwire)
        node.kill()
        shutil.rmtree(node.data)
        copy.rename(node.data)
        hand_over(node, "kafka")
        finished_by_kafka = transactions.wait_finished(node.address)
        assert finished_by_kafka == finished_by_kwire
        transactions.go_on(node.address)
        node.stop()
        hand_over(node, "kwire")  # And back.
        values = _values(view.records(node.address, _places(), "read_committed"))
        assert values == {name: [*old, f"{name}-later"] for name, old in COMMITTED.items()}
        transactions.go_on(node.address)
    finally:
        node.close()


def _downgrade(jvm, address, level):
    how = ("downgrade", "--feature", f"transaction.version={level}")
    jvm.tool(FEATURES, "--bootstrap-server", address, *how).ok()


def _check(state):
    assert _values(state["records"]) == COMMITTED
    everything = {name: [f"{name}-0", f"{name}-1"] for name in transactions.STATES}
    assert _values(state["uncommitted"]) == everything
    positions = {
        group: [offset for offset, _ in offsets.values()]
        for group, offsets in state["committed"].items()
    }
    assert positions == {f"group-of-{name}": [len(values)] for name, values in COMMITTED.items()}
    states = {name: details[0] for name, details in state["described"].items()}
    assert states == {
        "committed": "CompleteCommit",
        "aborted": "CompleteAbort",
        "open": "Ongoing",
        "commit-decided": "CompleteCommit",
        "abort-decided": "CompleteAbort",
    }


def _places():
    return [(transactions.TOPIC, partition) for partition in range(len(transactions.STATES))]


def _values(records_by_place):
    return {
        transactions.STATES[partition]: [record[2].decode() for record in records]
        for (_, partition), records in records_by_place.items()
    }
