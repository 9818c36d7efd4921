"""Measure the starts of a node that was killed, with few and with many old segments or logs.

    python benchmarks/starts.py [--few N] [--many N] [--rounds N] [--only segments|logs] [--kafka]

For one log of segments of 1 GB, and for as many logs of one segment each: the seconds until the
node is ready, and its CPU seconds until then, for the few and for the many in turn, and with
``--kafka`` also those of Apache Kafka on the same directories. Segments and
their indexes are sparse files of the full size. Only the ends of the indexes have entries, and only
the last segment has batches, because a start may look at no more. All files were just written, so
they are in the page cache. Linux only.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import TopicPartition

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.aged_group import cpu_seconds  # noqa: E402
from compat_tests.confluent_kafka.clients import consumer, create  # noqa: E402
from compat_tests.harness.broker import Broker, make_broker  # noqa: E402
from compat_tests.harness.wait import eventually  # noqa: E402
from kwire.log.formats import checkpoints, names, offset_index, time_index  # noqa: E402
from kwire.log.producers import ProducerStates  # noqa: E402
from kwire.records.build import New, batch  # noqa: E402

TOPIC_PARTITIONS: Final = 1_000
SEGMENT_BYTES: Final = 1 << 30
BATCH_BYTES: Final = 4_096
"""The distance between two entries of an index."""
OFFSETS: Final = SEGMENT_BYTES // BATCH_BYTES
"""The offsets of a segment; each batch has one record."""
TAIL: Final = 10
"""The records of an active segment."""
TIME_MS: Final = 1_700_000_000_000
SETTINGS: Final = {
    "log.retention.ms": "-1",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "offsets.topic.num.partitions": "1",
}


class Figures(NamedTuple):
    """The figures of one start."""

    seconds: float
    cpu_seconds: float


def made_batch(offset: int) -> bytes:
    return batch([New(b"key", b"%d" % offset)], timestamp_ms=TIME_MS + offset, base_offset=offset)


def write_at_end(path: Path, size: int, last: bytes, first: bytes = b"") -> None:
    """Write a sparse file of ``size`` bytes of which only the ends have content."""
    with path.open("wb") as file:
        file.write(first)
        file.seek(size - len(last))
        file.write(last)


def write_segment(folder: Path, base_offset: int) -> None:
    """Write a full segment with the files that a clean roll leaves."""
    last = made_batch(base_offset + OFFSETS - 1)
    position, stem = SEGMENT_BYTES - len(last), names.stem(base_offset)
    write_at_end(folder / f"{stem}{names.LOG}", SEGMENT_BYTES, last)
    times = [TIME_MS + base_offset + relative for relative in (1, OFFSETS - 1)]
    write_at_end(
        folder / f"{stem}{names.INDEX}",
        (OFFSETS - 1) * offset_index.ENTRY_SIZE,
        offset_index.ENTRY.pack(OFFSETS - 1, position),
        offset_index.ENTRY.pack(1, BATCH_BYTES),
    )
    write_at_end(
        folder / f"{stem}{names.TIME_INDEX}",
        (OFFSETS - 1) * time_index.ENTRY_SIZE,
        time_index.ENTRY.pack(times[1], OFFSETS - 1),
        time_index.ENTRY.pack(times[0], 1),
    )


def fill(folder: Path, segments: int) -> int:
    """Give a partition this many full segments, and an active one; return where that begins."""
    for path in folder.glob(f"{names.stem(0)}*"):
        path.unlink()
    for number in range(segments):
        write_segment(folder, number * OFFSETS)
    base_offset = segments * OFFSETS
    tail = b"".join(made_batch(base_offset + number) for number in range(TAIL))
    (folder / f"{names.stem(base_offset)}{names.LOG}").write_bytes(tail)
    (folder / f"{names.stem(base_offset)}{names.SNAPSHOT}").write_bytes(NO_PRODUCERS)
    (folder / names.EPOCHS_FILE).write_text("0\n1\n0 0\n")
    return base_offset


NO_PRODUCERS: Final = ProducerStates().freeze().to_bytes()


def prepare(directory: Path, logs: int, segments: int) -> Broker:
    """Return a killed broker with as many logs of as many full segments."""
    broker = make_broker("kwire", directory, SETTINGS)
    partitions = [divmod(number, TOPIC_PARTITIONS) for number in range(logs)]
    for topic in range(partitions[-1][0] + 1):
        create(broker.address, f"old{topic}", sum(place[0] == topic for place in partitions))
    folders = [broker.data / names.directory(f"old{topic}", n) for topic, n in partitions]
    eventually(lambda: all((f / names.EPOCHS_FILE).exists() for f in folders), "all logs", 300)
    broker.kill()
    lines = [
        f"old{topic} {index} {fill(folder, segments)}\n"
        for (topic, index), folder in zip(partitions, folders, strict=True)
    ]
    for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS):
        (broker.data / name).write_bytes(checkpoints.offsets_text(lines))
    return broker


def start(broker: Broker, kind: str) -> Figures:
    """Start a server of this kind where one was killed, and kill it once it is ready."""
    broker.kind = kind
    started = time.monotonic()
    broker.start()
    seconds = time.monotonic() - started
    assert broker.process is not None
    return Figures(seconds, cpu_seconds(broker.process.pid))


def measure(brokers: list[Broker], kinds: list[str], rounds: int) -> list[Figures]:
    """Start each kind of server in each directory in turn; return the medians of each pair."""
    pairs = [(kind, broker) for kind in kinds for broker in brokers]
    figures: list[list[Figures]] = [[] for _ in pairs]
    for _ in range(rounds):
        for (kind, broker), own in zip(pairs, figures, strict=True):
            own.append(start(broker, kind))
            broker.kill()
    return [Figures(*map(statistics.median, zip(*own, strict=True))) for own in figures]


def check(broker: Broker, segments: int) -> None:
    """Check that a start has found the whole log."""
    broker.kind = "kwire"
    broker.start()
    with consumer(broker.address, "starts") as client:
        ends = client.get_watermark_offsets(TopicPartition("old0", 0), 60)
    assert ends == (0, segments * OFFSETS + TAIL), ends
    assert "recovery cut" not in (broker.directory / "server.log").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure starts after a kill.")
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("segments", "logs"))
    parser.add_argument("--kafka", action="store_true", help="start Apache Kafka there too")
    options = parser.parse_args()
    kinds = ["kwire", "kafka"] if options.kafka else ["kwire"]
    counts = (options.few, options.many)
    for what in ("segments of a log", "logs of a segment"):
        if options.only and not what.startswith(options.only):
            continue
        with tempfile.TemporaryDirectory(dir=".") as folder:
            brokers = [
                prepare(
                    Path(folder).resolve() / str(count),
                    *((1, count) if what.startswith("segments") else (count, 1)),
                )
                for count in counts
            ]
            try:
                check(brokers[-1], counts[-1] if what.startswith("segments") else 1)
                brokers[-1].kill()
                rows = [f"{kind}, {count:,}" for kind in kinds for count in counts]
                for row, figures in zip(rows, measure(brokers, kinds, options.rounds), strict=True):
                    text = f"ready after {figures.seconds:.2f} s, CPU {figures.cpu_seconds:.2f} s"
                    print(f"{row} {what}: {text}", flush=True)
            finally:
                for broker in brokers:
                    broker.close()


if __name__ == "__main__":
    main()
