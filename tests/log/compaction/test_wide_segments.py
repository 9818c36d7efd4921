"""Segments with offsets that span more than 31 bits, which only old releases of Kafka wrote.

The indexes cannot hold such offsets, so compaction replaces a segment by several, as Kafka does.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import pytest
import trio

from kwire.log.compaction.clean import clean
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.formats import names
from kwire.log.formats.checkpoints import offset_line, offsets_text
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.segments.segment import Segment
from kwire.types import TopicPartition
from simulation.disk import Killed, SimDisk
from simulation.log.thread_workers import ThreadRunner
from tests.support.log import moving
from tests.support.log.compaction import DIRECTORY, MadeLog, transaction
from tests.support.log.key_logs import read_keys, table
from tests.support.log.threads import at_once

WIDE = 1 << 31
CONFIG = LogConfig(cleanup_compact=True, cleanup_delete=False)
running = partial(moving.running, config=CONFIG)
CHANGES = range(70)
KEPT = {b"a": b"first", b"b": b"second", b"c": b"third"}


def wide_log(disk: SimDisk | None = None) -> MadeLog:
    """Return a log whose first segment holds the offsets 0 to twice 31 bits."""
    log = MadeLog(disk=SimDisk() if disk is None else disk, config=CONFIG)
    log.put((b"a", b"first"))
    log.put((b"b", b"old"))
    log.skip(WIDE)
    log.put((b"b", b"second"))
    log.skip(WIDE)
    log.put((b"c", b"third"))
    log.roll()
    return log


def test_wide_segment_becomes_several_whose_indexes_find_each_batch() -> None:
    log = wide_log()
    before = {key: value for _, key, value in log.pairs()}
    (group,) = log.clean().groups
    bases = [source.base_offset for source in log.sources]
    assert bases == [0, WIDE + 2, 2 * WIDE + 3]
    assert group.sources == (0,)
    assert group.bytes_written == sum(source.size for source in log.sources)
    assert [offset for offset, _, _ in log.pairs()] == bases
    assert {key: value for _, key, value in log.pairs()} == before == KEPT
    for base_offset, source in zip(bases, log.sources, strict=True):
        segment = Segment(log.disk, DIRECTORY, base_offset, source.size, CONFIG)
        assert segment.locate(base_offset) == (0, source.size)
        assert log.times(base_offset)[-1][1] == base_offset


def test_wide_segment_is_clean_for_the_next_pass() -> None:
    log = wide_log()
    log.clean()
    before = log.pairs()
    second = log.clean()
    assert [group.later for group in second.groups] == [(), (), ()]
    assert log.pairs() == before


def test_aborted_transactions_are_in_the_index_of_their_markers_segment() -> None:
    log = MadeLog(config=CONFIG)
    log.put((b"a", b"first"), **transaction(7))
    log.mark(7, commit=False)
    log.put((b"b", b"kept"))
    log.skip(WIDE)
    log.put((b"c", b"kept"), **transaction(8))
    log.mark(8, commit=False)
    log.roll()
    active = {7: (0, 0), 8: (0, WIDE + 3)}
    log.clean(active_producers=active)
    assert [source.has_txn_index for source in log.sources] == [True, True]
    assert [entry.producer_id for entry in log.aborted_entries()] == [7, 8]


def present(logs: LogManager) -> PartitionLog:
    log = logs.get("t", 0)
    assert log is not None
    log.high_watermark = log.end_offset
    return log


@pytest.mark.parametrize("changes", CHANGES)
async def test_crash_at_any_step_of_the_split_loses_and_revives_nothing(
    autojump_clock, changes: int
) -> None:
    disk = SimDisk()
    wide = wide_log(disk)
    end = wide.end_offset
    disk.write(f"{DIRECTORY}/{names.stem(end)}{names.LOG}", b"")
    line = offset_line(TopicPartition("t", 0), end)
    disk.write(names.RECOVERY_POINTS, offsets_text([line]))

    async def in_thread(used: object, call: Callable[[], None]) -> None:
        await at_once(call)

    async with running(disk) as logs:
        log = present(logs)
        assert log.end_offset == end
        assert len(log.segments) == 2
        await logs.flush(log, indexes=True)
        await trio.sleep(100)
        for name in disk.files:
            disk.sync(name)
        disk.sync_directory(DIRECTORY)
        disk.sync_directory()
        cleaning = logs.services[log.disk].cleaning
        disk.changes_left = changes
        with suppress(Killed):
            await cleaning.clean(log, ThreadRunner(in_thread, clean), CleanerSettings())
        is_complete = disk.changes_left > 0
        disk.changes_left = None
        survivors = [disk.power_loss(Random(seed)) for seed in range(4)] + [disk.after_kill()]
    for survivor in survivors:
        async with running(survivor) as logs:
            log = present(logs)
            assert table(log) == KEPT
            assert (log.log_start, log.end_offset) == (0, end)
            if is_complete:
                assert len(log.segments) == 4
                assert len(read_keys(log)) == 3
    assert is_complete or changes < CHANGES[-1]
