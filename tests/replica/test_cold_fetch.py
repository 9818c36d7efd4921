"""A Fetch from old segments of a cold page cache: threads wait for the disk, the loop does not."""

import threading

import attrs
import pytest

from kwire.log.disk import File
from kwire.records import header
from kwire.records.header import Buffer
from kwire.simulation.disk import SimDisk, SimFile
from tests.handlers.test_fetch import at, fetch, values
from tests.support.handlers import broker as brokers
from tests.support.handlers.broker import NOW_MS, Broker, broker, one_batch

BATCHES = 60


@attrs.define(eq=False)
class ColdFile(SimFile):
    """A file of which only what was read before is cached."""

    def _is_cached(self) -> bool:
        assert isinstance(self.disk, ColdDisk)
        return self.path in self.disk.warm

    def read(self, position: int, size: int) -> bytes:
        assert isinstance(self.disk, ColdDisk)
        if not self._is_cached():
            on_loop = threading.current_thread() is threading.main_thread()
            (self.disk.loop_waits if on_loop else self.disk.thread_waits).append(self.path)
            self.disk.warm.add(self.path)
        return super().read(position, size)

    def read_cached(self, position: int, size: int) -> Buffer | None:
        return super().read(position, size) if self._is_cached() else None


@attrs.define(eq=False)
class ColdDisk(SimDisk):
    """A disk that notes the tasks that wait for it."""

    warm: set[str] = attrs.Factory(set)
    loop_waits: list[str] = attrs.Factory(list)
    thread_waits: list[str] = attrs.Factory(list)

    def open(self, path: str, *, create: bool = False) -> File:
        super().open(path, create=create)
        return ColdFile(self, path)


@pytest.fixture
async def subject(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Two partitions of several segments; nothing of them is in the page cache."""
    monkeypatch.setattr(brokers, "SimDisk", ColdDisk)
    made = broker()
    for name in ("t", "u"):
        partition = await made.create(name, segment_bytes=600, index_interval_bytes=100)
        assert partition is not None
        for number in range(BATCHES):
            batch = one_batch(b"%d" % number)
            made.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)
        partition.log.flush_state.flush()
        for segment in partition.log.segments:
            segment.file.close()
    disk = made.disk
    assert isinstance(disk, ColdDisk)
    disk.warm.clear()
    disk.loop_waits.clear()
    return made


@pytest.mark.parametrize("offset", [0, 3, 17, 40])
@pytest.mark.parametrize("isolation", [0, 1])
async def test_place_in_a_cold_segment_is_looked_up_by_a_thread(
    subject: Broker, offset: int, isolation: int
) -> None:
    """Invariants 16 and 91."""
    (answer,) = await fetch(subject, at("t", offset, max_bytes=70), isolation_level=isolation)
    assert values(answer)[0] == (offset, b"%d" % offset)
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    assert disk.loop_waits == []
    assert {path.rpartition(".")[2] for path in disk.thread_waits} == {"index", "log"}


async def test_cold_and_warm_partitions_of_one_request(subject: Broker) -> None:
    """Each is answered, in order and within the limits of the request, and files are let go."""
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    await fetch(subject, at("u", 5, max_bytes=70))
    before = len(disk.thread_waits)
    first, second = await fetch(subject, at("t", 5, max_bytes=70), at("u", 5, max_bytes=70))
    assert values(first)[0] == values(second)[0] == (5, b"5")
    assert len(disk.thread_waits) == before + 2, "of the cold one alone"
    assert disk.loop_waits == []
    assert not [file for file in disk.opened if file.pins]


async def test_tail_needs_no_thread(subject: Broker) -> None:
    disk = subject.disk
    assert isinstance(disk, ColdDisk)
    (answer,) = await fetch(subject, at("t", BATCHES - 1))
    assert values(answer) == [(BATCHES - 1, b"%d" % (BATCHES - 1))]
    assert disk.thread_waits == []
