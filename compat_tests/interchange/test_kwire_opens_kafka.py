"""kwire opens directories that Apache Kafka 4.3.1 wrote, and clients see the same as with Kafka.

The sets under tests/vectors/disk have the files, and the observations of Kafka's clients
(``observed``). Features that kwire does not serve are finalized in all of them.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import time

import pytest

from compat_tests.confluent_kafka.clients import consumer, deliver, poll, producer
from compat_tests.harness.broker import ROOT
from compat_tests.harness.wait import collect
from compat_tests.interchange import view
from compat_tests.interchange.node import complaints, hand_over, prepare
from kwire.codec.messages.describe_client_quotas import DescribeClientQuotasRequest
from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.testing.wire import WireClient

SETS = {"clean": False, "killed": False, "quorum": True}
"""The sets of files, by name, and whether the quorum's voters are dynamic."""
PRODUCERS_MS = 2_000_000_000
"""The expiration time of producers; the setting cannot be much larger."""
AS_THEN = {
    "offsets.retention.minutes": "2000000000",
    "producer.id.expiration.ms": str(PRODUCERS_MS),
    "transactional.id.expiration.ms": "2000000000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000000000",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
"""Settings that keep old data and open transactions from expiring, and fit Kafka's small heap."""
TOPIC_SOURCE = "DYNAMIC_TOPIC_CONFIG"


@pytest.fixture(params=SETS)
def taken_over(request, tmp_path):
    """A started node on a copy of a set, the set's name, and the observations of its clients."""
    name = request.param
    vectors = ROOT / "tests" / "vectors" / "disk"
    node = tmp_path / "node"
    node.mkdir()
    with tarfile.open(vectors / f"{name}.tar.gz") as tar:
        tar.extractall(node, filter="data")
    with gzip.open(vectors / f"{name}.json.gz") as file:
        observations = json.load(file)
    paths = sorted(str(path) for path in node.iterdir())
    broker = prepare(node, dynamic=SETS[name], overrides={**AS_THEN, "log.dirs": ",".join(paths)})
    broker.start()
    yield name, broker, observations
    broker.close()


def test_clients_see_what_they_saw(taken_over):
    name, node, observations = taken_over
    state = observations.get("observed_after_restart") or observations["observed"]
    _check_metadata(node, state)
    _check_groups(node, state)
    _check_offsets(node, state)
    _check_producers(node, state)
    if "acked" in observations:
        for partition, offset in enumerate(observations["acked"]["acked_high"]):
            spot = state["offsets"][f"{observations['acked']['topic']}-{partition}"]
            assert spot["high_watermark"] > offset
    before = _everything(node, state)
    _go_on(node, next(topic for topic in state["topics"] if topic.startswith("plain")))
    after = _everything(node, state)
    for place, records in before["records"].items():
        assert after["records"][place][: len(records)] == records
    node.kill()
    node.start()
    _same(after, _everything(node, state))
    if name == "clean":  # And back: Kafka logs no complaint.
        node.stop()
        hand_over(node, "kafka")
        _same(after, _everything(node, state))
        assert complaints(node) == []


def _everything(node, state):
    return view.everything(node.address, _readable_groups(state))


def _same(before, after):
    for part in before:
        for name in before[part].keys() | after[part].keys():
            assert after[part].get(name) == before[part].get(name), (part, name)


def _check_metadata(node, state):
    topics = view.topics(node.address)
    ids = {name: details["id"] for name, details in state["topics"].items()}
    assert {t: id.replace("+", "-").replace("/", "_") for t, (id, _, _) in topics.items()} == ids
    assert {t: count for t, (_, count, _) in topics.items()} == {
        t: details["partitions"] for t, details in state["topics"].items()
    }
    assert all(led for _, _, led in topics.values())
    configs = view.configs(node.address, topics)
    for topic in topics:
        settings = state["configs"].get(f"TOPIC:{topic}", {})
        own = {key: s["value"] for key, s in settings.items() if s["source"] == TOPIC_SOURCE}
        assert configs[topic] == own, topic
    with WireClient("127.0.0.1", node.port) as client:
        answer = client.call(DescribeClientQuotasRequest(components=[], strict=False), 1)
    quotas = [
        (
            sorted((entity.entity_type, str(entity.entity_name)) for entity in entry.entity),
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or ()
    ]
    expected_quotas = [
        (sorted((kind, str(name)) for kind, name in quota["entity"].items()), quota["limits"])
        for quota in state["client_quotas"]
    ]
    assert sorted(quotas, key=str) == sorted(expected_quotas, key=str)


def _readable_groups(state):
    """Return the observed groups whose offsets kwire serves, also of the new protocol.

    kwire does not run groups of the new protocol, but keeps their offsets.
    """
    return [name for name, group in state["groups"].items() if group["type"] != "Share"]


def _check_groups(node, state):
    committed = view.committed_offsets(node.address, _readable_groups(state))
    for name in committed:
        offsets = state["groups"][name]["offsets"]
        assert committed[name] == {
            _place(partition): (committed_offset["offset"], committed_offset["metadata"])
            for partition, committed_offset in offsets.items()
        }, name


def _check_offsets(node, state):
    observed = {_place(partition): details for partition, details in state["offsets"].items()}
    offsets = view.offsets(node.address, observed)
    names = {"start": "log_start", "end": "high_watermark", "stable": "last_stable"}
    for name, field in names.items():
        assert offsets[name] == {place: details[field] for place, details in observed.items()}, name
    for isolation in ("read_uncommitted", "read_committed"):
        records = view.records(node.address, observed, isolation)
        for place, details in observed.items():
            runs = [list(run) for run in details.get(f"{isolation}_runs", [])]
            assert _runs([record[0] for record in records[place]]) == runs, (place, isolation)


def _check_producers(node, state):
    """Check that Kafka's producers are known with their last sequence, unless they have expired.

    A producer with an open transaction never expires. (Some others had expired in Kafka itself.)
    """
    since = time.time() * 1000 - PRODUCERS_MS + 3_600_000
    with WireClient("127.0.0.1", node.port) as client:
        for partition, details in state["offsets"].items():
            topic, number = _place(partition)
            shape = DescribeProducersRequest.TopicRequest
            request = DescribeProducersRequest(
                topics=[shape(name=topic, partition_indexes=[number])]
            )
            (answer,) = client.call(request, 0).topics[0].partitions
            assert answer.error_code == 0
            producers = {
                (p.producer_id, p.producer_epoch, p.last_sequence, p.current_txn_start_offset)
                for p in answer.active_producers
            }
            expected = {
                (
                    p["producer_id"],
                    p["epoch"],
                    p["last_sequence"],
                    -1 if p["current_txn_first_offset"] is None else p["current_txn_first_offset"],
                )
                for p in details.get("active_producers", [])
                if p["last_timestamp"] > since or p["current_txn_first_offset"] is not None
            }
            assert expected <= producers, partition


def _go_on(node, topic):
    """Check that the broker also takes new work: produce, consume in a group, commit."""
    client = producer(node.address, enable_idempotence=True, compression_type="lz4")
    sent = deliver(client, [{"topic": topic, "partition": 0, "value": b"new"}] * 20)
    with consumer(node.address, "of-kwire") as reader:
        reader.subscribe([topic])
        last = sent[-1].offset()
        got = collect(lambda: poll(reader), 1)
        while not any(m.partition() == 0 and m.offset() == last for m in got):
            got += collect(lambda: poll(reader), 1)
        reader.commit(asynchronous=False)


def _place(partition):
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def _runs(offsets):
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    return runs
