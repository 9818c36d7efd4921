"""Wrong indexes are rebuilt in a thread, whatever finds them, and long ones are cut as bytes."""

import pytest
import trio.testing

from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.formats import names, offset_index
from kwire.log.formats.txn_index import BLOCK, AbortedTxn, pack
from kwire.log.partition_log import PartitionLog
from kwire.log.segments.segment import Repair
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append
from tests.support.log.manager import ID, running

CONFIG = LogConfig(retention_ms=-1, index_interval_bytes=50)


def with_closed_segment(log: PartitionLog) -> str:
    """Fill two segments of a log, the first with a wrong index, whose path is returned."""
    for number in range(20):
        append(log, [b"value"], timestamp_ms=TIME_MS - number)
    log.roll(TIME_MS)
    append(log, [b"value"], timestamp_ms=TIME_MS - 100)
    log.flush_state.flush()
    path = log.segments[0].files.path(names.INDEX)
    disk = log.disk
    pairs = offset_index.entries(disk.read(path), 0)
    disk.write(path, b"".join(offset_index.ENTRY.pack(last, at + 7) for last, at in pairs))
    return path


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return, for each index that was rebuilt, whether that happened in a thread.

    A thread opens the log file itself; the event loop passes the segment's file.
    """
    calls, building = list[bool](), Repair.building

    def note(self: Repair, file: object = None) -> object:
        if self.built is None:
            calls.append(file is None)
        return building(self, file)  # type: ignore[arg-type]

    monkeypatch.setattr(Repair, "building", note)
    return calls


async def test_truncation_rebuilds_a_wrong_index_in_a_thread(
    autojump_clock: trio.testing.MockClock, rebuilt: list[bool]
) -> None:
    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        with_closed_segment(log)
        assert await logs.truncate(log, 9)
        assert log.end_offset == 9
        assert rebuilt == [True]


async def test_search_for_the_youngest_record_rebuilds_a_wrong_index_in_a_thread(
    autojump_clock: trio.testing.MockClock, rebuilt: list[bool]
) -> None:
    """The youngest record of the segment is below the log start, so its batches are read."""
    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        with_closed_segment(log)
        log.advance_log_start(9)
        newest = timestamp_search.run(timestamp_search.youngest(log))
        assert newest == timestamp_search.OffsetAndTimestamp(9, TIME_MS - 9)
        assert rebuilt == [True]


@pytest.mark.parametrize("end_offset", [0, 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK])
async def test_truncated_index_of_aborted_transactions_keeps_those_that_ended_before(
    autojump_clock: trio.testing.MockClock, end_offset: int
) -> None:
    """Invariant 64: entries of a file stay packed, and the file is written again."""
    count = 3 * BLOCK
    entries = [AbortedTxn(1, number, number, number) for number in range(count)]
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        index = log.segments.active.indexes.aborted
        disk.write(log.segments.active.files.path(names.TXN_INDEX), b"".join(map(pack, entries)))
        index.drop()
        index.has_no_file = False
        index.truncate(end_offset)
        assert list(index.entries()) == entries[:end_offset]
        index.write()
        index.drop()
        index.has_no_file = False
        assert list(index.entries()) == entries[:end_offset]
