"""Damage inside the indexes of old segments, of which a start reads only the ends.

So a start costs the same whatever the size of the indexes; each lookup checks the entry it finds.
"""

from collections.abc import Callable
from itertools import product
from random import Random

import pytest

from kwire.log import timestamp_search
from kwire.log.aborted_transactions import find_aborted, read_committed
from kwire.log.config import LogConfig
from kwire.log.formats import names
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.partition_log import PartitionLog, create
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.header import BatchHeader, headers
from simulation.disk import SimDisk, SimFile
from tests.support.log.batches import TIME_MS, append, end_transaction
from tests.support.log.restart import PARTITION

ENTRY_BYTES = {names.INDEX: 8, names.TIME_INDEX: 12}
Damage = Callable[[list[bytes]], list[bytes]]
"""Returns the damaged entries."""


def garbage(entries: list[bytes]) -> list[bytes]:
    random = Random(len(entries))
    return [random.randbytes(len(entry)) for entry in entries]


def small_garbage(entries: list[bytes]) -> list[bytes]:
    """Offsets and positions that a segment may have."""
    random = Random(len(entries))
    return [entry[:-6] + random.randbytes(2) + b"\0\0" + random.randbytes(2) for entry in entries]


def zeros(entries: list[bytes]) -> list[bytes]:
    return [bytes(len(entry)) for entry in entries]


def reversal(entries: list[bytes]) -> list[bytes]:
    return entries[::-1]


def later(entries: list[bytes]) -> list[bytes]:
    """Return entries of which each has the next one's first field."""
    pairs = zip(entries, [*entries[1:], entries[-1]], strict=True)
    return [following[:-4] + entry[-4:] for entry, following in pairs]


def earlier(entries: list[bytes]) -> list[bytes]:
    """Return entries of which each has the former one's first field."""
    pairs = zip(entries, [entries[0], *entries[:-1]], strict=True)
    return [former[:-4] + entry[-4:] for entry, former in pairs]


def make_log(config: LogConfig) -> tuple[SimDisk, PartitionLog]:
    """Make a log of several segments: transactions, and timestamps that go back at times."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", PARTITION, now_ms=TIME_MS, config=config)
    random = Random(1)
    sequences = dict.fromkeys(range(3), 0)
    for number in range(1_000):
        producer = random.randrange(3)
        if number % 10 == 9:
            if log.producers.get(producer) is not None:
                end_transaction(log, producer, commit=random.random() < 0.5)
            continue
        append(
            log,
            [b"v" * 10],
            timestamp_ms=TIME_MS + number * 10 + random.randint(-30, 30),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += 1
    log.flush_state.flush()
    return disk, log


def start(disk: SimDisk, log: PartitionLog, *, clean: bool) -> PartitionLog:
    offsets = StoredOffsets(clean=clean, recovery_point=log.end_offset)
    return open_log(disk, "t-0", PARTITION, now_ms=TIME_MS, config=log.config, offsets=offsets)


def old_indexes(log: PartitionLog, suffix: str) -> list[str]:
    return [f"t-0/{names.stem(segment.base_offset)}{suffix}" for segment in log.segments[:-1]]


def damage_inside(disk: SimDisk, path: str, entry: int, damage: Damage) -> None:
    """Damage all entries but the first and the last."""
    data = disk.inode(path).data
    entries = [bytes(data[at : at + entry]) for at in range(0, len(data), entry)]
    assert len(entries) > 20
    data[entry:-entry] = b"".join(damage(entries[1:-1]))


@pytest.mark.parametrize("stop", [False, True], ids=["killed", "stopped in order"])
@pytest.mark.parametrize("damage", [garbage, small_garbage, zeros, reversal, later, earlier])
@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX])
def test_damage_inside_an_index_gives_no_wrong_answers(
    kind: str, damage: Damage, stop: bool
) -> None:
    """Invariants 16, 17, 19 and 79."""
    disk, log = make_log(LogConfig(segment_bytes=20_000, index_interval_bytes=200))
    batches = [header for segment in log.segments for _, header in segment.scan()]
    aborted = find_aborted(log.segments, 0, log.end_offset)
    if stop:
        log.close()
    disk = disk.after_kill()
    for path in old_indexes(log, kind):
        damage_inside(disk, path, ENTRY_BYTES[kind], damage)
    check_aborted_lists(start(disk.after_kill(), log, clean=stop), aborted)
    check_search_by_time(start(disk.after_kill(), log, clean=stop), batches)
    check_offsets(start(disk.after_kill(), log, clean=stop), batches)


def check_offsets(log: PartitionLog, batches: list[BatchHeader]) -> None:
    for batch in batches:
        with log.read(batch.base_offset, 1, end_offset=log.end_offset) as region:
            assert next(headers(region.read()))[1] == batch


def check_search_by_time(log: PartitionLog, batches: list[BatchHeader]) -> None:
    for target in range(TIME_MS - 50, TIME_MS + 10_000, 37):
        search = timestamp_search.first_at_least(log, target)
        expected = next(
            ((b.base_offset, b.max_timestamp) for b in batches if b.max_timestamp >= target), None
        )
        assert timestamp_search.run(search) == expected


def check_aborted_lists(log: PartitionLog, aborted: list[AbortedTxn]) -> None:
    """Check that a fetch names the aborted transactions of all batches that it returns.

    The start of a segment is found without its index, so that the lookup repairs nothing.
    """
    assert len(aborted) > 20
    for start, max_bytes in product([s.base_offset for s in log.segments], range(200, 20_000, 99)):
        region, listed = read_committed(log, start, max_bytes, end_offset=log.end_offset)
        with region:
            end_offset = [batch for _, batch in headers(region.read())][-1].next_offset
        touching = {a for a in aborted if a.first_offset < end_offset and a.last_offset >= start}
        assert touching <= set(listed)


def test_start_after_a_kill_reads_as_little_of_a_long_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It grows with the number of old segments, and not with their entries."""
    few, many = (bytes_of_old_indexes_read(interval, monkeypatch) for interval in (2_000, 50))
    assert few == many


def bytes_of_old_indexes_read(interval: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the bytes of old segments' indexes that a start reads after a kill."""
    disk, log = make_log(LogConfig(segment_bytes=20_000, index_interval_bytes=interval))
    # In the last of the old segments the recovery looks up where the next one begins.
    old = {*old_indexes(log, names.INDEX)[:-1], *old_indexes(log, names.TIME_INDEX)[:-1]}
    assert len(old) >= 4
    sizes: list[int] = []
    read_file, read_path = SimFile.read, SimDisk.read

    def count(path: str, data: bytes) -> bytes:
        if path in old:
            sizes.append(len(data))
        return data

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "read", lambda f, at, size: count(f.path, read_file(f, at, size)))
        patch.setattr(SimDisk, "read", lambda d, path: count(path, read_path(d, path)))
        start(disk.after_kill(), log, clean=False)
    return sum(sizes)


def test_damaged_base_offsets_hide_no_other_batch() -> None:
    """Rebuilt indexes leave out a batch whose offsets a segment cannot have."""
    disk, log = make_log(LogConfig(segment_bytes=20_000, index_interval_bytes=200))
    segment = log.segments[0]
    batches = list(segment.scan())
    log.close()
    for position, damaged in batches[20:40]:
        survivor = disk.after_kill()
        survivor.rot(segment.file.path, position, 0x80)
        opened = start(survivor, log, clean=True)
        for at, batch in batches:
            if batch != damaged:
                with opened.read(batch.base_offset, 1, end_offset=log.end_offset) as region:
                    assert region.position == at
        survivor.rot(segment.file.path, position, 0x80)
