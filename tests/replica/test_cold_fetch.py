"""A Fetch of segments outside the page cache: threads wait for the disk, the loop does not."""

import threading
from collections.abc import Generator
from itertools import count

import attrs
import pytest

from kwire.drive import give_way
from kwire.log.disk import File
from kwire.log.formats import names, offset_index
from kwire.log.segments.segment import Repair
from kwire.records import header
from kwire.records.header import Buffer
from kwire.replica.verification import NOT_REQUIRED
from simulation.disk import SimDisk, SimFile
from tests.support.handlers import broker as brokers
from tests.support.handlers.broker import NOW_MS, Broker, broker, one_batch
from tests.support.handlers.fetch import at, fetch, values
from tests.support.log.batches import marker

BATCHES = 60


@attrs.define(eq=False)
class ColdFile(SimFile):
    """A file that is in the page cache once a part of it was read."""

    def _is_cached(self) -> bool:
        assert isinstance(self.disk, ColdDisk)
        return self.path in self.disk.warm

    def read(self, position: int, size: int) -> bytes:
        assert isinstance(self.disk, ColdDisk)
        self.disk.record_read(self.path)
        return super().read(position, size)

    def read_cached(self, position: int, size: int) -> Buffer | None:
        return super().read(position, size) if self._is_cached() else None


@attrs.define(eq=False)
class ColdDisk(SimDisk):
    """A disk that records whether the loop or a thread waits for each of its files."""

    warm: set[str] = attrs.Factory(set)
    loop_waits: list[str] = attrs.Factory(list)
    thread_waits: list[str] = attrs.Factory(list)

    def record_read(self, path: str) -> None:
        """Record a wait if this file is not cached; it is cached from then on."""
        if path not in self.warm:
            on_loop = threading.current_thread() is threading.main_thread()
            (self.loop_waits if on_loop else self.thread_waits).append(path)
            self.warm.add(path)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self.record_read(path)
        return data

    def open(self, path: str, *, create: bool = False) -> File:
        super().open(path, create=create)
        return ColdFile(self, path)


@pytest.fixture
async def subject(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Return a broker with two partitions of several segments outside the page cache."""
    monkeypatch.setattr(brokers, "SimDisk", ColdDisk)
    subject = broker()
    for name in ("t", "u"):
        partition = await subject.create(name, segment_bytes=600, index_interval_bytes=100)
        assert partition is not None
        for number in range(BATCHES):
            batch = one_batch(b"%d" % number)
            subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)
        partition.log.flush_state.flush()
        for segment in partition.log.segments:
            segment.file.close()
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    disk.warm.clear()
    disk.loop_waits.clear()
    return subject


@pytest.mark.parametrize("offset", [0, 3, 17, 40])
@pytest.mark.parametrize("isolation", [0, 1])
async def test_position_in_a_cold_segment_is_looked_up_by_a_thread(
    subject: Broker, offset: int, isolation: int
) -> None:
    """Invariants 16 and 91."""
    (answer,) = await fetch(subject, at("t", offset, max_bytes=70), isolation_level=isolation)
    assert values(answer)[0] == (offset, b"%d" % offset)
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    assert disk.loop_waits == []
    assert {path.rpartition(".")[2] for path in disk.thread_waits} == {"index", "log"}


async def test_wrong_index_of_a_cold_segment_is_rebuilt_by_a_thread(
    subject: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 91: only the data that the first thread has read show that it is wrong."""
    disk, are_on_loop = subject.disk, list[bool]()
    assert isinstance(disk, ColdDisk)
    path = subject.replicas.partitions.get("t", 0).log.segments[0].files.path(names.INDEX)
    pairs = offset_index.entries(bytes(disk.inode(path).data), 0)
    wrong = b"".join(offset_index.ENTRY.pack(offset, at + 7) for offset, at in pairs)
    disk.write(path, wrong)
    disk.warm.clear()
    building = Repair.building

    def record(self: Repair, file: File | None = None) -> Generator[None, None, None]:
        if not self.is_complete:
            are_on_loop.append(threading.current_thread() is threading.main_thread())
        return building(self, file)

    monkeypatch.setattr(Repair, "building", record)
    (answer,) = await fetch(subject, at("t", 7, max_bytes=70))
    assert values(answer)[0] == (7, b"7")
    assert are_on_loop == [False]
    assert disk.loop_waits == []


async def test_cold_and_warm_partitions_of_one_request_are_answered(subject: Broker) -> None:
    """Both are answered, in order and within the limits of the request; no file stays pinned."""
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    await fetch(subject, at("u", 5, max_bytes=70))
    wait_count = len(disk.thread_waits)
    first, second = await fetch(subject, at("t", 5, max_bytes=70), at("u", 5, max_bytes=70))
    assert values(first)[0] == values(second)[0] == (5, b"5")
    assert len(disk.thread_waits) == wait_count + 2, "index and log of the cold partition"
    assert disk.loop_waits == []
    assert not [file for file in disk.opened if file.pins]


async def test_fetch_at_the_log_end_needs_no_thread(subject: Broker) -> None:
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    (answer,) = await fetch(subject, at("t", BATCHES - 1))
    assert values(answer) == [(BATCHES - 1, b"%d" % (BATCHES - 1))]
    assert disk.thread_waits == []


@pytest.mark.parametrize("offset", [0, 21, 45])
async def test_aborted_transactions_of_cold_segments_are_read_by_a_thread(
    monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Invariants 19 and 91: a thread reads the ``.txnindex`` for read_committed."""
    monkeypatch.setattr(brokers, "SimDisk", ColdDisk)
    subject = broker()
    partition = await subject.create("t", segment_bytes=900, index_interval_bytes=100)
    assert partition is not None
    aborted: list[tuple[int, int]] = []
    for number in range(BATCHES // 2):
        data = one_batch(
            b"%d" % number,
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        subject.replicas.append(partition, data, header.parse(data), 1, NOW_MS, guard=NOT_REQUIRED)
        data = marker(7, commit=bool(number % 3))
        subject.replicas.append(partition, data, header.parse(data), 1, NOW_MS, from_client=False)
        if number % 3 == 0 and number * 2 + 1 >= offset:
            aborted.append((7, number * 2))
    partition.log.flush_state.flush()
    assert len(partition.log.segments) > 4
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    disk.warm.clear()
    disk.loop_waits.clear()
    (answer,) = await fetch(subject, at("t", offset, max_bytes=70), isolation_level=1)
    listed = [(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()]
    assert values(answer)[0][0] == offset
    end = values(answer)[-1][0] + 1
    in_range = [each for each in aborted if each[1] < end]
    near = [each for each in aborted if each[1] < end + 4]
    assert in_range == listed[: len(in_range)]
    assert listed == near[: len(listed)], "nothing far behind the returned range"
    assert disk.loop_waits == []
    assert any(path.endswith(names.TXN_INDEX) for path in disk.thread_waits)


async def test_cold_partition_that_changed_before_the_wait_is_read_by_a_thread(
    subject: Broker, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 91: also the lookup that is repeated waits for no disk on the event loop.

    The end of a transaction is the change: until then, a segment in the middle has the last
    readable record.
    """
    partition = await subject.create("w", segment_bytes=600, index_interval_bytes=100)
    assert partition is not None
    for number in range(BATCHES):
        batch = one_batch(b"%d" % number)
        if number == 20:
            batch = one_batch(
                b"20", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
            )
        subject.replicas.append(
            partition, batch, header.parse(batch), 1, NOW_MS, guard=NOT_REQUIRED
        )
    partition.log.flush_state.flush()
    for segment in partition.log.segments:
        segment.file.close()
    await subject.create("many", partitions=100)
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    disk.warm.clear()
    pauses = count(1)

    async def end_meanwhile() -> None:
        if next(pauses) == 3:  # The first reading finds cold files; this is in the second one.
            end = marker(7, commit=True)
            subject.replicas.append(partition, end, header.parse(end), 1, NOW_MS, from_client=False)
            disk.warm.clear()
            disk.thread_waits.clear()
            disk.loop_waits.clear()
        await give_way()

    monkeypatch.setattr("kwire.replica.fetching.give_way", end_meanwhile)
    others = [at("many", 0, partition=number) for number in range(100)]
    answer, *_ = await fetch(
        subject,
        at("w", 17, max_bytes=140),
        *others,
        min_bytes=10_000,
        max_wait_ms=100,
        isolation_level=1,
    )
    assert values(answer)[0] == (17, b"17")
    assert answer.last_stable_offset == BATCHES + 1
    assert disk.thread_waits != []
    assert disk.loop_waits == []
    assert not [file for file in disk.opened if file.pins > 1]
