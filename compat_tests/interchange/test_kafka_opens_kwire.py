"""Apache Kafka 4.3.1 takes over kwire's data directory and serves its content."""

from __future__ import annotations

import pytest

from compat_tests.confluent_kafka.clients import create, deliver, producer
from compat_tests.interchange import filling, view
from compat_tests.interchange.node import complaints, hand_over, prepare


@pytest.mark.parametrize(
    ("dynamic", "end"),
    [
        pytest.param(False, "stop", id="static-voters-stop"),
        pytest.param(True, "kill", id="dynamic-voters-kill"),
        pytest.param(False, "kill", id="static-voters-kill", marks=pytest.mark.long),
        pytest.param(True, "stop", id="dynamic-voters-stop", marks=pytest.mark.long),
    ],
)
@pytest.mark.with_apache
def test_kafka_serves_what_kwire_wrote(tmp_path, dynamic, end):
    node = prepare(tmp_path / "node", dynamic=dynamic)
    try:
        node.start()
        filling.fill(node.address)
        before = view.everything(node.address, filling.GROUPS)
        getattr(node, end)()
        hand_over(node, "kafka")
        after = view.everything(node.address, filling.GROUPS)
        _same(before, after)
        assert complaints(node) == []
        create(node.address, "made-by-kafka", 1)
        filling.send(node.address, "zstd", idempotent=True, number=9)
        deliver(producer(node.address), [{"topic": "made-by-kafka", "value": b"1"}])
        filled = view.everything(node.address, filling.GROUPS)
        getattr(node, end)()
        hand_over(node, "kwire")  # And back.
        _same(filled, view.everything(node.address, filling.GROUPS))
        filling.send(node.address, "lz4", idempotent=True, number=10)
    finally:
        node.close()


def _same(before, after):
    assert after.keys() == before.keys()
    for part in before:
        for name in before[part].keys() | after[part].keys():
            assert after[part].get(name) == before[part].get(name), (part, name)
