"""A start with a damaged file: each kind of file, and each way of damage."""

import copy
import itertools
from collections.abc import Callable
from random import Random

import pytest
import trio

from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names, offset_index
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.log.threads import DiskThreads
from kwire.records.header import parse
from kwire.records.iterate import records
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from simulation.log.sim import Model, batches_of, contents, judge, producers, replay
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS
from tests.support.log.indexes import are_offsets_plausible, are_times_plausible
from tests.support.log.manager import ID
from tests.support.log.rolling import ObservedDisk, Rolling
from tests.support.log.threads import at_once

CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=100,
    retention_ms=-1,
    producer_id_expiration_ms=1 << 50,
)
ENTRY_BYTES = {names.INDEX: 8, names.TIME_INDEX: 12, names.TXN_INDEX: 34, names.SNAPSHOT: 34}


def remove(data: bytes, entry: int) -> bytes | None:
    return None


def empty(data: bytes, entry: int) -> bytes | None:
    return b""


def cut_inside_an_entry(data: bytes, entry: int) -> bytes | None:
    return data[: -entry // 2]


def reorder(data: bytes, entry: int) -> bytes | None:
    if data[:2] == b"0\n":  # The lines of a checkpoint.
        *head, last = data.decode().splitlines(keepends=True)
        return "".join([*head[:2], last, *head[2:]]).encode()
    entries = [data[at : at + entry] for at in range(0, len(data), entry)]
    return b"".join(reversed(entries))


def replace_by_garbage(data: bytes, entry: int) -> bytes | None:
    return Random(len(data)).randbytes(len(data))


def append_zeros(data: bytes, entry: int) -> bytes | None:
    return data + bytes(4 * entry)


DAMAGES = [remove, empty, cut_inside_an_entry, reorder, replace_by_garbage, append_zeros]
Damage = Callable[[bytes, int], bytes | None]
"""Returns the damaged contents of a file with entries of this size; None to remove it."""


def manager(disk: SimDisk) -> LogManager:
    return LogManager([LogDirectory(disk, "dir")], Clock(), threads=DiskThreads(at_once))


async def make_log(*, stop: bool) -> tuple[SimDisk, Model]:
    """Make a log of several segments, synced and checkpointed; return its disk after a kill.

    With ``stop`` the manager is stopped in order first.
    """
    disk = ObservedDisk()
    logs = manager(disk)
    await logs.open(lambda topic: CONFIG)
    rolling = Rolling(disk, logs, Model(logs.create("t", ID, 0, CONFIG), ID))
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        rolling.feed(70)
        await logs.flush(rolling.log, indexes=True)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    if stop:
        await logs.close()
    assert len(rolling.log.segments) > 5
    return SimDisk(root=copy.deepcopy(disk.root)), rolling.model


async def start(disk: SimDisk) -> tuple[LogManager, PartitionLog]:
    logs = manager(disk)
    await logs.open(lambda topic: CONFIG)
    log = logs.get("t", 0)
    assert log is not None
    return logs, log


async def files_after_a_restart(disk: SimDisk) -> dict[str, bytes]:
    """Return the contents of every file after a start and a stop in order."""
    logs, _ = await start(disk)
    await logs.close()
    return {path: bytes(inode.data) for path, inode in disk.files.items()}


def check_indexes(disk: SimDisk, log: PartitionLog) -> None:
    """Check that the indexes on disk could be those of their segments."""
    for segment in log.segments[:-1]:
        offsets, times, _ = segment.indexes.data()
        assert are_offsets_plausible(offsets, segment.size)
        assert are_times_plausible(times)


def of_kind(disk: SimDisk, kind: str) -> list[str]:
    return sorted(path for path in disk.files if path.endswith(kind))


def apply(damage: Damage, disk: SimDisk, path: str, entry: int) -> bool:
    """Damage a file; return whether its contents changed."""
    data = bytes(disk.inode(path).data)
    actual = damage(data, entry)
    if actual is None:
        disk.unlink(path)
    else:
        disk.inode(path).data[:] = actual
    return actual != data


KINDS = [
    *((kind, entry) for kind, entry in ENTRY_BYTES.items()),
    (names.EPOCHS_FILE, 4),
    (names.RECOVERY_POINTS, 8),
    (names.HIGH_WATERMARKS, 8),
]
UNREAD = {
    # As in Kafka, a start checks only the names and sizes of the files that it does not rebuild.
    # The search that uses a wrong offset index notices it.
    (kind, damage)
    for kind in (names.INDEX, names.TIME_INDEX)
    for damage in (reorder, replace_by_garbage, append_zeros)
}


@pytest.mark.parametrize("stop", [False, True], ids=["killed", "stopped in order"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "entry"), KINDS)
async def test_damaged_file_is_rebuilt_by_a_start(
    autojump_clock, kind: str, entry: int, damage: Damage, stop: bool
) -> None:
    """Invariants 52, 79, 82 and 85: the log's own bytes are enough to rebuild the others."""
    disk, model = await make_log(stop=stop)
    expected = await files_after_a_restart(SimDisk(root=copy.deepcopy(disk.root)))
    paths = of_kind(disk, kind)
    changed = 0
    for path in paths:
        after = SimDisk(root=copy.deepcopy(disk.root))
        if not apply(damage, after, path, entry):
            continue
        changed += 1
        again = SimDisk(root=copy.deepcopy(after.root))
        _, log = await start(after)
        if (kind, damage) in UNREAD:
            check_offsets(model, log, by_time=kind == names.INDEX)
            continue
        check_indexes(after, log)
        judge(0, model, log, model.log.end_offset)
        if kind == names.SNAPSHOT:
            check_producers_after_truncations(again, log)
        else:
            assert await files_after_a_restart(again) == expected, path
    assert changed or damage is reorder


def check_offsets(model: Model, log: PartitionLog, *, by_time: bool) -> None:
    """Check that a read at each offset finds its record, and a search by time as well."""
    for offset in range(log.end_offset):
        with log.read(offset, 1, end_offset=log.end_offset) as region:
            header = parse(region.read())
        assert header.base_offset <= offset < header.next_offset
    assert dict(contents(log)) == model.current
    if by_time:
        judge(0, model, log, log.end_offset)


def check_producers_after_truncations(disk: SimDisk, log: PartitionLog) -> None:
    """Check the producers after truncations that start from each of the snapshots."""
    for segment in log.segments[1:]:
        cut = open_log(
            SimDisk(root=copy.deepcopy(disk.root)),
            "t-0",
            TopicPartition("t", 0),
            now_ms=TIME_MS,
            config=CONFIG,
            offsets=StoredOffsets(recovery_point=log.end_offset),
        )
        cut.truncate_to(segment.base_offset + 1)
        assert producers(cut.producers) == producers(replay(cut)[0])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("index", [1, 3, -1])
async def test_damaged_log_is_truncated_where_the_damage_begins(
    autojump_clock, caplog: pytest.LogCaptureFixture, damage: Damage, index: int
) -> None:
    """Invariants 77, 79 and 80: the records before it stay, those behind it go, with a log line.

    As in Kafka, whole segments behind it go too. Offsets that decrease are damage; a gap may be a
    result of compaction.
    """
    disk, model = await make_log(stop=False)
    disk.unlink(names.RECOVERY_POINTS)  # So that the recovery reads every segment.
    path = of_kind(disk, names.LOG)[index]
    size = len(disk.inode(path).data)
    base_offset = model.log.segments[index].base_offset
    apply(damage, disk, path, size // 2)
    caplog.clear()
    _, log = await start(disk)
    messages = [r.getMessage() for r in caplog.records if "recovery cut" in r.getMessage()]
    check_indexes(disk, log)
    judge(0, model, log, base_offset)
    batches = [header for _, _, header in batches_of(log)]
    steps = {b.base_offset - a.next_offset for a, b in itertools.pairwise(batches)}
    assert steps == {0} if damage is not reorder else min(steps) == 0
    is_at_end = index == -1
    assert len(messages) == (not is_at_end or damage not in (remove, empty))
    is_whole = is_at_end and damage is append_zeros
    assert (log.end_offset == model.log.end_offset) == is_whole


@pytest.mark.parametrize("shift", ["by a byte", "by an entry"])
async def test_wrong_positions_hide_no_record_from_a_search_by_time(
    autojump_clock, shift: str
) -> None:
    """Invariants 17 and 79: after a stop in order the index is not checked at the start."""
    disk, model = await make_log(stop=True)
    for path in of_kind(disk, names.INDEX):
        data = disk.inode(path).data
        entries = list(offset_index.ENTRY.iter_unpack(bytes(data)))
        positions = [position for _, position in entries]
        by_byte, by_entry = [p + 1 for p in positions], [*positions[1:], 0]
        wrong_positions = by_byte if shift == "by a byte" else by_entry
        data[:] = b"".join(
            offset_index.ENTRY.pack(entry[0], position)
            for entry, position in zip(entries, wrong_positions, strict=True)
        )
    _, log = await start(disk)
    actual = [
        (record.timestamp, record.offset)
        for data, pos, header in batches_of(log)
        for record in records(data, pos, header)
    ]
    for timestamp in sorted({timestamp for timestamp, _ in actual}):
        record = timestamp_search.run(timestamp_search.first_at_least(log, timestamp))
        assert record == next((o, t) for t, o in actual if t >= timestamp)
    check_offsets(model, log, by_time=True)
