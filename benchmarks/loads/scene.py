"""A scene: the nodes to be probed, and the work to be measured; and those of one broker."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import attrs

from benchmarks.loads.one_broker import Load
from compat_tests.harness.broker import make_broker

SETTINGS: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "10",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "file.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
}
SCRUB: Final = {
    "kwire.scrub.interval.ms": "1000",
    "kwire.scrub.bytes.per.second": str(100 << 20),
}
"""Settings that read all closed segments again and again; Apache Kafka knows neither."""


@attrs.frozen
class Scene:
    """Prepared nodes."""

    ports: tuple[int, ...]
    """The ports of the nodes whose clients may have to wait."""
    run: Callable[[], object]


Prepare = Callable[[str], AbstractContextManager[Scene]]
"""Starts nodes of a kind ("kwire", "kafka") and prepares them; they end with the context."""


def on_broker(
    load: Callable[[Load], Callable[[], object]], more: Mapping[str, str] | None = None
) -> Prepare:
    """Return the scene of a load of one broker, with ``more`` settings than the usual ones."""

    @contextmanager
    def prepare(kind: str) -> Iterator[Scene]:
        with tempfile.TemporaryDirectory() as folder:
            broker = make_broker(kind, Path(folder), {**SETTINGS, **(more or {})})
            try:
                yield Scene((broker.port,), load(Load(broker.port)))
            finally:
                broker.close()

    return prepare
