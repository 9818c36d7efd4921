"""Apache's log dump over the files that the broker wrote."""

from __future__ import annotations

import random
import re

import pytest

from compat_tests.harness.broker import make_broker
from compat_tests.harness.wait import collect
from compat_tests.kafka_python.clients import consumer, create, fill, poll, producer

DUMP = "org.apache.kafka.tools.DumpLogSegments"


TOPIC, GROUP = "dumped", "dumping-group"


@pytest.fixture(scope="module")
def stopped_broker(broker_kind, tmp_path_factory):
    """A stopped broker that has written several segments, a group's offsets and metadata."""
    broker = make_broker(broker_kind, tmp_path_factory.mktemp("dumped"))
    noise = random.Random(20)
    try:
        settings = {"segment_bytes": str(1 << 20), "index_interval_bytes": "512"}
        create(broker.address, TOPIC, 1, **settings)
        for codec in (None, "gzip", "snappy", "lz4", "zstd"):
            with producer(broker.address, compression_type=codec, linger_ms=5) as client:
                for number in range(500):
                    client.send(TOPIC, noise.randbytes(1000), key=b"k%d" % number)
        with consumer(broker.address, TOPIC, group_id=GROUP) as reader:
            collect(lambda: poll(reader), 2500)
            reader.commit()
        fill(broker.address, f"{TOPIC}-auto", [b"x"])
        broker.stop()
        yield broker
    finally:
        broker.close()


def dump(jvm, *arguments):
    ran = jvm.tool(DUMP, *arguments)
    printed = ran.ok()
    for complaint in (
        "Mismatches in",
        "isvalid: false",
        "Found timestamp mismatch",
        "out of order",
    ):
        assert complaint not in printed + ran.err
    return printed


def test_every_file_dumps_without_complaint(jvm, stopped_broker):
    files = [
        path
        for path in sorted(stopped_broker.data.glob("*-*/*"))
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
        and not path.parent.name.startswith("__cluster_metadata")
    ]
    assert sum(path.suffix == ".log" for path in files if path.parent.name == f"{TOPIC}-0") > 1
    logs = [str(path) for path in files if path.suffix == ".log"]
    printed = dump(jvm, "--deep-iteration", "--print-data-log", "--files", ",".join(logs))
    assert printed.count("payload: ") >= 2501
    rest = [str(path) for path in files if path.suffix != ".log"]
    dump(jvm, "--index-sanity-check", "--files", ",".join(p for p in rest if p.endswith("index")))
    dump(jvm, "--verify-index-only", "--files", ",".join(p for p in rest if p.endswith("index")))
    dump(jvm, "--files", ",".join(rest))


def test_offsets_and_metadata_are_decoded(jvm, stopped_broker):
    offsets = [
        str(p) for p in stopped_broker.data.glob("__consumer_offsets-*/*.log") if p.stat().st_size
    ]
    printed = dump(jvm, "--offsets-decoder", "--files", ",".join(offsets))
    assert f'"group":"{GROUP}"' in printed
    assert re.search(rf'"topic":"{TOPIC}","partition":0.*"offset":2500', printed)
    (metadata,) = stopped_broker.data.glob("__cluster_metadata-0/00000000000000000000.log")
    printed = dump(jvm, "--cluster-metadata-decoder", "--files", str(metadata))
    assert f'"name":"{TOPIC}"' in printed
    for kind in ("TOPIC_RECORD", "PARTITION_RECORD", "REGISTER_BROKER_RECORD", "CONFIG_RECORD"):
        assert kind in printed
