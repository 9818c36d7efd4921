"""A directory that Kafka 3.9 wrote and another release has just opened: nothing of it was read."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.loads.one_broker import Load
from benchmarks.loads.scene import SETTINGS, Scene
from compat_tests.harness.broker import Broker, kafka
from compat_tests.harness.ports import new_ports

OLD_RELEASE: Final = "3.9.1"


@contextmanager
def search_of_300_segments_of_kafka_3_9(kind: str) -> Iterator[Scene]:
    """Search by time in segments whose indexes Kafka 3.9 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        ports = new_ports(2)
        properties = kafka.node_properties(directory, (ports[0], ports[1]), SETTINGS)
        kafka.write_properties(directory / "server.properties", properties)
        address = f"127.0.0.1:{ports[0]}"
        broker = Broker("kafka", address, directory, release=OLD_RELEASE)
        try:
            broker.start()
            load = Load(broker.port)
            topic = load.segments("segment_bytes")
            load.alter(topic, "segment.bytes", None)  # Kafka 4.3 does not start with so small ones.
            broker.stop()
            broker.kind, broker.release = kind, kafka.VERSION
            broker.start()
            yield Scene((broker.port,), load.search(topic))
        finally:
            broker.close()
