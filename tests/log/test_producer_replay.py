"""The replay of producers from a log's batches, and the transactions that hold back readers."""

from collections import OrderedDict
from collections.abc import Iterator
from random import Random

import pytest

from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog, create
from kwire.log.producers import EndedTransaction, Marker, ProducerStates
from kwire.log.recovery import StoredOffsets, opening
from kwire.records.header import parse
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, encode, end_transaction
from tests.support.log.restart import PARTITION, reopen

CONFIG = LogConfig()


def log_of_transactions(disk: SimDisk, count: int) -> PartitionLog:
    """Return a log of committed transactions of one record each."""
    disk.make_directory("t-0")
    log = create(disk, "t-0", PARTITION, now_ms=TIME_MS, config=CONFIG)
    for number in range(count):
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": number}
        append(log, [b"v"], transactional=True, **producer)
        end_transaction(log, 1, commit=True)
    return log


@pytest.mark.parametrize("is_clean", [True, False])
def test_start_replays_a_log_without_snapshots_in_slices(is_clean: bool) -> None:
    disk = SimDisk()
    log = log_of_transactions(disk, 2000)
    if is_clean:
        log.close()
        disk.remove("t-0/00000000000000004000.snapshot")
    else:
        log.roll(TIME_MS)
        log.flush_state.flush()
        disk.remove("t-0/00000000000000004000.snapshot")
    point = 4000 if not is_clean else 0
    offsets = StoredOffsets(clean=is_clean, recovery_point=point)
    disk = disk.after_kill()
    steps = opening(
        disk,
        "t-0",
        PARTITION,
        now_ms=TIME_MS,
        config=CONFIG,
        offsets=offsets,
        entries=disk.entries("t-0"),
    )
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            again: PartitionLog = done.value
            break
        count += 1
    producer = again.producers.get(1)
    assert producer is not None
    assert producer.last_sequence == 1999
    assert count >= 100, "4000 batches are more than a slice"


@pytest.mark.parametrize("is_clean", [True, False])
def test_start_forgets_the_transactions_that_hold_back_no_reader(is_clean: bool) -> None:
    """A log may have millions of them."""
    disk = SimDisk()
    log_of_transactions(disk, 100).close()
    disk.remove("t-0/00000000000000000200.snapshot")
    again = reopen(disk.after_kill(), CONFIG, clean=is_clean, high_watermark=150)
    assert again.high_watermark == 150
    assert again.producers.first_unstable(0) == 150


def test_last_stable_offset_is_the_start_of_the_first_transaction_without_a_visible_end() -> None:
    """Invariant 13: transactions that overlap end in any order."""
    random = Random(7)
    for _ in range(300):
        states, high_watermark = ProducerStates(), 0
        ends: dict[int, int] = {}
        """The offset of its marker by a transaction's first offset; of open ones a large number."""
        open_from: dict[int, int] = {}
        for offset in range(random.randint(1, 60)):
            producer_id = random.randrange(6)
            data = encode([b"v"], producer_id=producer_id, producer_epoch=0, transactional=True)
            if producer_id in open_from and random.random() < 0.5:
                states.update(parse(data), offset, TIME_MS, Marker(False, 0))
                ends[open_from.pop(producer_id)] = offset
            else:
                states.update(parse(data), offset, TIME_MS)
                ends.setdefault(open_from.setdefault(producer_id, offset), 1 << 40)
            high_watermark = random.randint(high_watermark, offset + 1)
            unstable = [first for first, end in ends.items() if end >= high_watermark]
            expected = min([*unstable, high_watermark])
            assert states.last_stable_offset(high_watermark) == expected


class CountedOpen(OrderedDict[int, int]):
    """Open transactions that count how many of them are looked at."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        for first_offset in super().__iter__():
            self.count += 1
            yield first_offset


def test_last_stable_offset_looks_at_one_of_many_open_transactions() -> None:
    """It is asked at each append, fetch and move of the high watermark."""
    states = ProducerStates()
    states.open_starts = looks = CountedOpen((offset, offset) for offset in range(5_000))
    for high_watermark in range(100):
        assert states.last_stable_offset(high_watermark + 1) == 0
    assert looks.count <= 100


def test_ended_transactions_are_looked_at_once_when_readers_see_their_ends() -> None:
    """Thousands end between two moves of the high watermark."""
    looks = 0

    class CountedClosed(EndedTransaction):
        @property
        def last_offset(self) -> int:
            nonlocal looks
            looks += 1
            return super().__getitem__(1)

    states = ProducerStates()
    states.unreplicated = [CountedClosed(offset, offset + 1) for offset in range(0, 2_000, 2)]
    for high_watermark in range(2_000):
        states.last_stable_offset(high_watermark)
    assert looks <= 2 * 2_000


def test_snapshot_of_adopted_producers_does_not_change() -> None:
    """A moved or truncated log adopts producers that another state counted its snapshots for."""
    data = encode([b"v"], producer_id=1, producer_epoch=0, base_sequence=0)
    other, states = ProducerStates(), ProducerStates()
    other.freeze()
    other.update(parse(data), 0, TIME_MS)
    states.replace(other)
    frozen = states.freeze()
    before = frozen.to_bytes()
    states.update(parse(data), 1, TIME_MS)
    assert frozen.to_bytes() == before
