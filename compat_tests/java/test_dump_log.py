"""Kafka's own DumpLogSegments reads the files of kwire's log without a complaint."""

from pathlib import Path

from compat_tests.harness.jvm import Jvm
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.partition_log import PartitionLog, create
from kwire.records.build import New, batch
from kwire.records.control import end_txn_marker
from kwire.records.header import parse
from kwire.types import TopicPartition

DUMP = "org.apache.kafka.tools.DumpLogSegments"
TIME_MS = 1_700_000_000_000


def dump(jvm: Jvm, *files: Path, sanity: bool = False) -> str:
    """Return the tool's output, which has its complaints; the tool exits 0 even with some."""
    how = "--index-sanity-check" if sanity else "--deep-iteration"
    done = jvm.tool(DUMP, "--files", ",".join(map(str, files)), how)
    output = done.ok() + done.err
    for complaint in ("mismatch", "Mismatch", "Exception", "isvalid: false", "not found", "could"):
        assert complaint not in output, output
    return output


def append(log: PartitionLog, data: bytes, *, from_client: bool = True) -> None:
    log.append_leader(memoryview(data), parse(data), 3, TIME_MS, from_client=from_client)


def write_log(directory: Path) -> PartitionLog:
    """Write plain, idempotent and transactional batches in all codecs over several segments."""
    disk = RealDisk(str(directory))
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=9_000, index_interval_bytes=300)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    for n in range(200):
        values = [New(b"k%d" % n, b"v" * (n % 60), [(b"h", None)], TIME_MS + n) for _ in range(4)]
        plain = batch(values, timestamp_ms=TIME_MS + n, compression=n % 5)
        append(log, plain)
        idempotent = batch(
            values, timestamp_ms=TIME_MS, producer_id=7, producer_epoch=0, base_sequence=n * 4
        )
        append(log, idempotent)
        transactional = batch(
            values,
            timestamp_ms=TIME_MS,
            producer_id=9,
            producer_epoch=n,
            base_sequence=0,
            transactional=True,
        )
        append(log, transactional)
        marker = end_txn_marker(
            commit=n % 3 > 0,
            coordinator_epoch=1,
            producer_id=9,
            producer_epoch=n + 1,
            timestamp_ms=TIME_MS + n,
        )
        append(log, marker, from_client=False)
    return log


def test_every_file_of_a_closed_log(jvm: Jvm, tmp_path: Path) -> None:
    log = write_log(tmp_path)
    log.close()
    files = sorted((tmp_path / "t-0").iterdir())
    kinds = {suffix: [f for f in files if f.suffix == suffix] for suffix in SUFFIXES}
    assert all(len(paths) > 3 for paths in kinds.values())
    output = dump(jvm, *(f for paths in kinds.values() for f in paths))
    assert output.count("baseOffset:") == 800
    assert output.count("isvalid: true") >= 800
    dump(jvm, *kinds[".index"], *kinds[".timeindex"], sanity=True)


SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def test_the_files_of_a_killed_log(jvm: Jvm, tmp_path: Path) -> None:
    log = write_log(tmp_path)
    log.segments.release()  # As after kill -9: the active segment has no indexes.
    files = sorted((tmp_path / "t-0").iterdir())
    output = dump(jvm, *(f for f in files if f.suffix in SUFFIXES))
    assert output.count("baseOffset:") == 800
