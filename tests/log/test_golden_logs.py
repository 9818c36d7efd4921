"""Kafka's directories: kwire opens them, and writes the same files from their batches."""

from pathlib import Path
from typing import Any

import pytest

from kwire.drive import run_steps
from kwire.log.aborted_transactions import find_aborted
from kwire.log.disk import RealDisk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.formats.checkpoints import parsing_offsets
from kwire.log.partition_log import PartitionLog, create
from kwire.log.producers import ProducerStates, read_snapshot
from kwire.log.recovery import StoredOffsets, open_log
from kwire.log.segments.segment import Segment
from kwire.records.header import headers
from kwire.records.iterate import records
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log import golden
from tests.support.log.batches import max_timestamp, offset_for_timestamp
from tests.support.log.golden import producers_of

NOW_MS = 1_795_240_000_000


def partition_of(directory: str) -> TopicPartition | None:
    actual = names.parse_directory(directory.rsplit("/", 1)[-1])
    return TopicPartition(*actual) if actual else None


def live(name: str) -> list[str]:
    """Return the directories of partitions that are in use."""
    return [d for d in golden.expected_files(name) if d and partition_of(d) is not None]


def simulate_directory(path: Path) -> SimDisk:
    """Return a copy of a partition's directory in memory, which a test may change."""
    disk = SimDisk()
    disk.make_directory("p")
    for file in path.iterdir():
        disk.write(f"p/{file.name}", file.read_bytes())
    return disk


def checkpoint(root: Path, directory: str, name: str) -> int:
    partition = partition_of(directory)
    assert partition is not None
    return run_steps(parsing_offsets((root / directory).parent.joinpath(name).read_bytes())).get(
        partition, 0
    )


def open_golden_log(
    name: str, root: Path, directory: str, *, clean: bool
) -> tuple[SimDisk, PartitionLog]:
    disk = simulate_directory(root / directory)
    partition = partition_of(directory)
    assert partition is not None
    offsets = StoredOffsets(
        clean=clean,
        recovery_point=checkpoint(root, directory, names.RECOVERY_POINTS),
        log_start=checkpoint(root, directory, names.LOG_STARTS),
        high_watermark=checkpoint(root, directory, names.HIGH_WATERMARKS),
    )
    config = golden.topic_config(name, directory)
    return disk, open_log(disk, "p", partition, now_ms=NOW_MS, config=config, offsets=offsets)


# -- contents of a directory


def read_runs(log: PartitionLog, end_offset: int, *, committed: bool) -> list[list[int]]:
    """Return the ranges of offsets that a consumer would read, with inclusive ends."""
    runs: list[list[int]] = []
    offset = log.log_start
    while offset < end_offset:
        with log.read(offset, 1 << 20, end_offset=end_offset) as region:
            data = region.read()
        if not data:
            break
        aborted = find_aborted(log.segments, offset, end_offset) if committed else []
        for pos, header in headers(data):
            offset = header.next_offset
            if header.is_control or any(
                header.is_transactional
                and a.producer_id == header.producer_id
                and a.first_offset <= header.base_offset <= a.last_offset
                for a in aborted
            ):
                continue
            for record in records(data, pos, header):
                if record.offset < log.log_start:
                    continue
                if runs and runs[-1][1] == record.offset - 1:
                    runs[-1][1] = record.offset
                else:
                    runs.append([record.offset, record.offset])
    return runs


def check_observed(log: PartitionLog, observed_log: dict[str, Any]) -> None:
    assert log.log_start == observed_log["log_start"]
    assert log.high_watermark == observed_log["high_watermark"]
    assert log.producers.last_stable_offset(log.high_watermark) == observed_log["last_stable"]
    if "max_timestamp" in observed_log:
        actual = max_timestamp(log)
        assert actual == (observed_log["max_timestamp"], observed_log["max_timestamp_offset"])
        if actual != (-1, -1):
            assert offset_for_timestamp(log, actual[0]) == (actual[1], actual[0])
        assert offset_for_timestamp(log, actual[0] + 1) is None
    for key, end, committed in (
        ("read_uncommitted_runs", log.high_watermark, False),
        ("read_committed_runs", observed_log["last_stable"], True),
    ):
        if key in observed_log:
            assert read_runs(log, end, committed=committed) == observed_log[key]
    for producer in observed_log.get("active_producers", ()):
        mine = log.producers.get(producer["producer_id"])
        assert mine is not None
        assert (mine.epoch, mine.last_sequence, mine.timestamp) == (
            producer["epoch"],
            producer["last_sequence"],
            producer["last_timestamp"],
        )
        open_from = producer["current_txn_first_offset"]
        assert mine.open_from == (-1 if open_from is None else open_from)


@pytest.mark.parametrize("name", ["clean", "quorum"])
def test_cleanly_stopped_directory_has_the_records_that_clients_read(
    name: str, golden_directory
) -> None:
    root = golden.root(name, golden_directory(name))
    observed = golden.read_expected(name)["observed"]["offsets"]
    checked = 0
    for directory, observed_log in observed.items():
        _, log = open_golden_log(name, root, directory, clean=True)
        check_observed(log, observed_log)
        checked += 1
    assert checked == {"clean": 12, "quorum": 23}[name]


def test_directory_of_a_killed_broker_is_recovered_as_by_kafka(golden_directory) -> None:
    """The open transactions are open, and every producer has its state."""
    root = golden.root("killed", golden_directory("killed"))
    actual = golden.read_expected("killed")
    observed, acked = actual["observed_after_restart"]["offsets"], actual["acked"]
    checked = open_transactions = 0
    for directory in live("killed"):
        partition = partition_of(directory)
        if f"{partition}" not in observed:
            continue
        _, log = open_golden_log("killed", root, directory, clean=False)
        observed_log = observed[f"{partition}"]
        log.high_watermark = log.end_offset  # With one replica all records are committed.
        check_observed(log, observed_log)
        checked += 1
        open_transactions += log.producers.first_open() is not None
        if partition is not None and partition.topic == acked["topic"]:
            assert log.end_offset > acked["acked_high"][partition.partition]
    assert (checked, open_transactions) == (15, 2)


def test_damaged_directory_is_truncated_where_kafka_truncates_it(golden_directory) -> None:
    root = golden.root("torn", golden_directory("torn"))
    checked = 0
    for directory, stems in golden.expected_files("torn").items():
        if partition_of(directory) is None or not (root / directory).exists():
            continue
        _, log = open_golden_log("torn", root, directory, clean=False)
        batches = [
            (b["base_offset"], b["last_offset"], b["crc"])
            for stem in sorted(stems)
            for b in stems[stem].get("log", [])
        ]
        with_new = [
            (h.base_offset, h.last_offset, h.crc)
            for segment in log.segments
            for _, h in segment.scan()
        ]
        if not directory.endswith(INTERNAL):
            assert with_new == batches
        assert with_new == batches[: len(with_new)]
        checked += 1
    assert checked > 20


INTERNAL = ("__cluster_metadata-0",)


# -- files of a writer


def rebuild_indexes(
    disk: SimDisk, base_offset: int, interval: int, restart: int | None
) -> tuple[bytes, bytes]:
    """Return a segment's indexes as kwire writes them, with a restart before one batch."""
    size = len(disk.read(f"p/{names.stem(base_offset)}{names.LOG}"))
    segment = Segment(disk, "p", base_offset, size)
    end, segment.size = segment.size, 0
    batches = list(segment.scan(0, end))
    segment.start_indexes()
    for number, (_, header) in enumerate(batches):
        if number == restart:
            segment.resume_indexes()
        segment.note(header.size, header.next_offset, header.max_timestamp, interval)
    index, times, _ = segment.indexes.data()
    segment.close_indexes()
    return index, segment.indexes.data()[1] if times is not None else times


def trim_index(data: bytes, entry: int) -> bytes:
    """Return an index file's bytes without the preallocated entries."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry) * entry]


@pytest.mark.parametrize("name", ["clean", "killed", "three", "quorum"])
def test_indexes_are_written_as_by_kafka(name: str, golden_directory) -> None:
    root = golden.root(name, golden_directory(name))
    checked = restarted = 0
    for directory, stems in golden.expected_files(name).items():
        for stem, kinds in stems.items():
            for mark in ("", ".deleted"):
                if f"log{mark}" not in kinds or f"timeindex{mark}" not in kinds:
                    continue
                path = root / directory / stem
                disk = SimDisk()
                disk.make_directory("p")
                disk.write(f"p/{stem}.log", Path(f"{path}.log{mark}").read_bytes())
                index = Path(f"{path}.index{mark}").read_bytes()
                times = Path(f"{path}.timeindex{mark}").read_bytes()
                restarted += check_rebuilt(name, directory, disk, stem, index, times)
                checked += 1
    assert (checked, restarted) == EXPECTED_REBUILT[name]


EXPECTED_REBUILT = {"clean": (58, 0), "killed": (64, 0), "three": (54, 17), "quorum": (12, 0)}


def check_rebuilt(
    name: str, directory: str, disk: SimDisk, stem: str, index: bytes, times: bytes
) -> bool:
    """Whether the bytes are the same only with a restart before one of the batches."""
    interval = golden.topic_config(name, directory.split(".", maxsplit=1)[0]).index_interval_bytes
    preallocated = len(index) + len(times)
    index = trim_index(index, offset_index.ENTRY_SIZE)
    times = trim_index(times, time_index.ENTRY_SIZE)
    is_active = preallocated > len(index) + len(times)
    count = len(list(headers(disk.read(f"p/{stem}.log"))))
    for restart in (None, *range(count)):
        new = rebuild_indexes(disk, int(stem), interval, restart)
        without_closing = new[1][: -time_index.ENTRY_SIZE]
        if new[0] == index and (new[1] == times or (is_active and without_closing == times)):
            assert restart is None or not directory.startswith("n1/")  # It never restarted.
            return restart is not None
    raise AssertionError(f"{directory}/{stem}: other indexes")


@pytest.mark.parametrize("name", ["clean", "killed", "three", "quorum"])
def test_snapshots_and_transaction_indexes_follow_from_the_batches(
    name: str, golden_directory
) -> None:
    """A replay from the start, or from the oldest snapshot, gives the contents of later files."""
    root = golden.root(name, golden_directory(name))
    snapshots = transactions = 0
    for directory in live(name):
        stems = golden.expected_files(name)[directory]
        state = ProducerStates()
        bases = sorted(int(stem) for stem, kinds in stems.items() if "log" in kinds)
        for number, base in enumerate(bases):
            stem = names.stem(base)
            data = (root / directory / f"{stem}.log").read_bytes()
            snapshot = stems[stem].get("snapshot")
            if not number and snapshot is not None:
                raw = (root / directory / f"{stem}.snapshot").read_bytes()
                run_steps(state.restoring(read_snapshot(raw)))
            elif snapshot is not None and not is_compacted(directory):
                assert same_producers(state, snapshot, directory)
                snapshots += 1
            aborted = []
            for pos, header in headers(data):
                if header.producer_id >= 0:
                    actual = state.replay(data, pos, header)
                    aborted += [] if actual is None else [actual._asdict()]
            expected = [
                {k: v for k, v in e.items() if k != "version"}
                for e in stems[stem].get("txnindex", [])
            ]
            if not is_compacted(directory):
                assert aborted == expected
            transactions += len(aborted)
        last = max((int(stem) for stem in stems if stem.isdigit()), default=-1)
        final = stems.get(names.stem(last), {}) if last >= 0 else {}
        if bases and last > bases[-1] and "snapshot" in final and not is_compacted(directory):
            assert same_producers(state, final["snapshot"], directory)
            snapshots += 1
    assert (snapshots, transactions) == EXPECTED_REPLAYED[name]


EXPECTED_REPLAYED = {
    "clean": (38, 18),
    "killed": (17, 24),
    "three": (29, 18),
    "quorum": (11, 0),
}


def is_compacted(directory: str) -> bool:
    """Whether compaction removed batches that the files beside them still mention."""
    return "compact" in directory


def same_producers(state: ProducerStates, snapshot: list[dict[str, Any]], directory: str) -> bool:
    mine = {p["producer_id"]: p for p in producers_of(list(state.all()))}
    theirs = {p["producer_id"]: p for p in snapshot}
    # In the files of a restarted broker the producers of 2023 have expired.
    mine = {i: p for i, p in mine.items() if i in theirs or p["timestamp"] > NOW_MS - 10**10}
    assert mine == theirs, directory
    return True


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_log_of_the_same_batches_has_the_same_files(name: str, golden_directory, tmp_path) -> None:
    """Each batch is appended as by a follower, and the log closed as by a clean stop."""
    root = golden.root(name, golden_directory(name))
    checked = 0
    for directory in live(name):
        config = golden.topic_config(name, directory)
        logs = sorted((root / directory).glob("*.log"))
        if is_compacted(directory) or int(logs[0].stem) or "__" in directory:
            continue
        disk = RealDisk(str(tmp_path))
        target = directory.rsplit("/", 1)[-1]
        disk.make_directory(target)
        log = create(disk, target, TopicPartition("t", 0), now_ms=NOW_MS, config=config)
        for file in logs:
            data = file.read_bytes()
            for pos, header in headers(data):
                log.append_follower(memoryview(data)[pos : pos + header.size], NOW_MS)
        log.close()
        for file in logs if name == "clean" else logs[:-1]:
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                theirs = file.with_suffix(suffix)
                mine = tmp_path / target / theirs.name
                assert mine.exists() == theirs.exists(), theirs
                if theirs.exists():
                    assert mine.read_bytes() == theirs.read_bytes(), theirs
        if name == "clean":
            written = {f.name for f in (tmp_path / target).iterdir()}
            assert {name for name in written if not name.endswith(names.ABORTED)} == {
                f.name for f in (root / directory).iterdir() if f.name != "partition.metadata"
            }
        checked += 1
    assert checked > 5
