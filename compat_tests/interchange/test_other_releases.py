"""Directories of other releases and of interrupted work are served, recovered and handed back.

The stored sets (``recording.py`` made them) need no JVM; the long tests write such directories with
Apache Kafka 3.9 and 4.0, and give them back to that release.
"""

from __future__ import annotations

import gzip
import json
import tarfile

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.confluent_kafka.clients import admin, deliver, producer
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually
from compat_tests.interchange import filling, transactions, view
from compat_tests.interchange.node import complaints, hand_over, prepare
from compat_tests.interchange.recording import (
    FOLDER,
    GROUPS,
    SETS,
    SMALL,
    first_release,
    plain,
)

OLD = ("kafka-3.9-stopped", "kafka-3.9-killed", "kafka-4.0-killed")
KEPT = {
    **SMALL,
    "log.retention.ms": "-1",
    "offsets.retention.minutes": "2000000000",
    "transactional.id.expiration.ms": "2000000000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000000000",
    "log.cleaner.enable": "false",
}
"""Settings that keep data written years ago as it is."""
COMMITTED = {
    "committed": ["committed-0", "committed-1"],
    "aborted": ["aborted-0"],
    "open": ["open-0"],
    "commit-decided": ["commit-decided-0", "commit-decided-1"],
    "abort-decided": ["abort-decided-0"],
}
"""The committed values of each transactional id; what was open may have been aborted since."""


@pytest.fixture(params=SETS)
def recorded_node(request, tmp_path):
    """The name of a set, a started kwire on a copy of it, and the view of the clients then."""
    broker, snapshot = _unpack(tmp_path, request.param)
    broker.start()
    yield request.param, broker, snapshot
    broker.close()


def test_clients_see_what_they_saw_in_another_release(recorded_node):
    name, node, snapshot = recorded_node
    groups = GROUPS if name in OLD else filling.GROUPS if snapshot["committed"] else []
    if name in OLD:
        _check_transactions(node)
    now = plain(dict(view.everything(node.address, groups)))
    assert now["topics"] == snapshot["topics"]
    for part, expected in _without_transactions(snapshot).items():
        assert _without_transactions(now)[part] == expected, part
    leftovers = [path for suffix in (".cleaned", ".swap") for path in node.data.rglob(f"*{suffix}")]
    assert leftovers == [], "files of an interrupted cleaner are finished or removed"
    _send(node, snapshot)
    after = view.everything(node.address, groups)
    node.kill()
    node.start()
    assert view.everything(node.address, groups) == after


@pytest.mark.parametrize("name", ["kafka-3.9-stopped"])
def test_topic_settings_of_another_release_do_not_stop_a_node(tmp_path, name):
    """A segment.bytes below today's minimum counts as the minimum, unknown settings are ignored.

    Apache Kafka 4.3 ends at the start in the first case.
    """
    node, _ = _unpack(tmp_path, name)
    try:
        node.start()
        shown = view.configs(node.address, ["cut", "of-3.9"])
        assert shown == {"cut": {"segment.bytes": "1048576"}, "of-3.9": {}}
        warnings = complaints(node)
        assert any("topic=cut" in line and "segment.bytes" in line for line in warnings)
        assert any("topic=of-3.9" in line for line in warnings)
        _alter(node, "of-3.9", "retention.ms", "1000000")
        _alter(node, "cut", "retention.ms", "-1")
        shown = view.configs(node.address, ["cut", "of-3.9"])
        assert shown["of-3.9"] == {"retention.ms": "1000000"}
        assert shown["cut"] == {"retention.ms": "-1", "segment.bytes": "1048576"}
    finally:
        node.close()


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("release", ["3.9.1", "4.0.0"])
@pytest.mark.with_apache
def test_an_earlier_kafka_hands_its_directory_over_and_takes_it_back(
    tmp_path, broker_kind, release, end
):
    node = prepare(tmp_path / "node", overrides=SMALL)
    node.kind, node.release = "kafka", release
    try:
        node.start()
        filling.fill(node.address, "segment_bytes")
        transactions.fill(node.address)
        for topic in ("plain", "cut"):  # Apache Kafka 4.3 does not start with so small segments.
            _alter(node, topic, "segment.bytes", None)
        node.stop()
        node.start()  # It finishes what is decided.
        finished = transactions.wait_finished(node.address)
        before = view.everything(node.address, GROUPS)
        getattr(node, end)()
        node.release = kafka.VERSION
        hand_over(node, broker_kind)
        assert transactions.wait_finished(node.address) == finished
        assert view.everything(node.address, GROUPS) == before
        filling.send(node.address, "lz4", idempotent=True, number=10)
        filled = view.everything(node.address, GROUPS)
        node.kill()
        hand_over(node, broker_kind)
        assert view.everything(node.address, GROUPS) == filled
        if broker_kind == "kwire":  # Apache Kafka complains about slow machines.
            assert complaints(node) == []
        getattr(node, end)()
        node.release = release
        hand_over(node, "kafka")
        assert view.everything(node.address, GROUPS) == filled
        filling.send(node.address, "zstd", idempotent=True, number=11)
        transactions.go_on(node.address)
    finally:
        node.close()


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("name", ["cleaner-cleaned", "cleaner-swap"])
@pytest.mark.with_apache
def test_kafka_takes_back_what_its_cleaner_left_unfinished(tmp_path, name, end):
    """Apache Kafka 4.3 takes the segments that kwire has put in place or thrown away."""
    node, snapshot = _unpack(tmp_path, name)
    try:
        node.start()
        _send(node, snapshot)
        node.kill()
        node.start()
        before = _of_users(node)
        getattr(node, end)()
        hand_over(node, "kafka")
        assert _of_users(node) == before
        _send(node, snapshot)
        filled = _of_users(node)
        getattr(node, end)()
        hand_over(node, "kwire")
        assert _of_users(node) == filled
    finally:
        node.close()


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_first_release_takes_its_directory_back(tmp_path, end):
    """An upgrade of a node can be undone."""
    node, snapshot = _unpack(tmp_path, "first-release")
    try:
        node.start()
        _send(node, snapshot)
        node.kill()
        node.start()
        before = view.everything(node.address, filling.GROUPS)
        getattr(node, end)()
        with first_release(node):
            assert view.everything(node.address, filling.GROUPS) == before
            filling.send(node.address, "zstd", idempotent=True, number=11)
            filled = view.everything(node.address, filling.GROUPS)
            getattr(node, end)()
        hand_over(node, "kwire")
        assert view.everything(node.address, filling.GROUPS) == filled
    finally:
        node.close()


def _of_users(node):
    """Return what clients see without internal topics, which a consumer may create."""
    everything = view.everything(node.address, [])
    return {
        part: {key: value for key, value in shown.items() if not str(key).startswith("__")}
        for part, shown in everything.items()
    }


def _unpack(folder, name):
    """Return a node on a copy of a recorded set, not started, and the view of its clients."""
    node = prepare(folder / "node", overrides=KEPT)
    with tarfile.open(FOLDER / f"{name}.tar.gz") as tar:
        tar.extractall(folder / "node", filter="data")
    with gzip.open(FOLDER / f"{name}.view.json.gz") as file:
        return node, json.load(file)


def _without_transactions(snapshot):
    """Return what does not depend on the ends of transactions that the set leftovers undecided."""

    def is_without_transactions(name: str) -> bool:
        return not name.startswith((transactions.TOPIC, "group-of-"))

    def pick(part):
        return {key: value for key, value in part.items() if is_without_transactions(key)}

    return {
        "offsets": {spot: pick(offsets) for spot, offsets in snapshot["offsets"].items()},
        "records": pick(snapshot["records"]),
        "committed": pick(snapshot["committed"]),
    }


def _check_transactions(node):
    places = [(transactions.TOPIC, number) for number in range(len(transactions.STATES))]

    def are_ended() -> bool:
        offsets = view.offsets(node.address, places)
        ends = [offsets["stable"][place] == offsets["end"][place] for place in places]
        return all(
            end or name == "open" for name, end in zip(transactions.STATES, ends, strict=True)
        )

    eventually(are_ended, "the end of every decided transaction")
    records = view.records(node.address, places, "read_committed")
    values = {
        name: [record[2].decode() for record in records[transactions.TOPIC, number]]
        for number, name in enumerate(transactions.STATES)
    }
    assert values == COMMITTED


def _send(node, snapshot):
    """Check that the node takes records for every topic that it has."""
    client = producer(node.address, enable_idempotence=True, compression_type="zstd")
    names = [name for name in snapshot["topics"] if not name.startswith("__")]
    deliver(client, [{"topic": name, "key": b"new", "value": b"new"} for name in names])


def _alter(node, topic, setting, value):
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(node.address)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(30)
