"""Truncated or removed data that reappears after a power loss, and the log that results."""

from random import Random

import pytest

from kwire.log.flush_state import CLOSED_MAX
from kwire.log.partition_log import PartitionLog
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.restart import CONFIG, reopen

SEEDS = range(30)
EPOCHS = [(0, 0), (1, 3), (2, 6)]


def fill(disk: SimDisk) -> PartitionLog:
    """Return a log of seven synced records in four segments, three to an epoch."""
    disk.make_directory("t-0")
    log = reopen(disk)
    for n in range(7):
        append(log, [b"old %d" % n], epoch=n // 3)
    log.flush_state.flush()
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
    assert log.epochs.entries() == EPOCHS
    return log


def flush_below(log: PartitionLog, end_offset: int) -> None:
    """Flush the records below this offset, for a caller that waits only for them."""
    flush = log.flush_state.start(end_offset)
    assert flush is not None
    flush.run()
    log.flush_state.end(flush)


@pytest.mark.parametrize("offset", [4, 5, 6])
def test_clean_stop_syncs_a_truncation_after_a_flush_of_older_records(offset: int) -> None:
    """Invariants 78 and 85: a start after it finds no truncated record."""
    disk = SimDisk()
    log = fill(disk)
    log.truncate_to(offset)
    flush_below(log, 2)
    log.finish()
    log.flush_state.flush()
    for seed in SEEDS:
        reopened = reopen(disk.power_loss(Random(seed)), clean=True, recovery_point=offset)
        assert reopened.end_offset == offset
        assert content(reopened) == content(log)
        assert reopened.epochs.entries() == log.epochs.entries()


@pytest.mark.parametrize("offset", [4, 5, 6])
def test_truncation_does_not_count_as_synced_before_it_is(offset: int) -> None:
    """Invariants 78 and 85: whatever a flush of older records leaves out comes later."""
    disk = SimDisk()
    log = fill(disk)
    log.truncate_to(offset)
    flush_below(log, 2)
    assert not log.flush_state.cut_unsynced
    recovery_point = log.flush_state.stored_recovery_point(log.end_offset)
    for seed in SEEDS:
        reopened = reopen(disk.power_loss(Random(seed)), recovery_point=recovery_point)
        assert content(reopened) == content(log)


def test_flush_of_older_records_syncs_the_segment_that_a_truncation_ended() -> None:
    """Invariants 78 and 85: later flushes need not, once further segments have followed."""
    disk = SimDisk()
    log = fill(disk)
    log.truncate_to(5)
    flush_below(log, 2)
    log.roll(TIME_MS)
    for n in range(4 * CLOSED_MAX):
        append(log, [b"new %d" % n], epoch=9)
    log.flush_state.flush()
    recovery_point = log.flush_state.stored_recovery_point(log.end_offset)
    for seed in SEEDS:
        reopened = reopen(disk.power_loss(Random(seed)), recovery_point=recovery_point)
        assert content(reopened) == content(log)


def test_queued_truncation_is_synced_by_the_next_flush() -> None:
    """Invariant 78: on a slow directory the file is truncated after the earlier writes."""
    disk = SimDisk()
    log = fill(disk)
    log.writer.on_queued = lambda: None
    disk.slow = True
    append(log, [b"not written"])
    log.truncate_to(5)
    flush_below(log, 5)
    job = log.writer.queue.take()
    job.run()
    log.on_written()
    log.flush_state.flush()
    for seed in SEEDS:
        reopened = reopen(disk.power_loss(Random(seed)), recovery_point=5)
        assert content(reopened) == [(n, b"old %d" % n) for n in range(5)]


@pytest.mark.parametrize("offset", [4, 6])
def test_deleted_records_that_reappear_get_their_epochs(offset: int) -> None:
    """Invariant 85: the power was lost before the new log start was checkpointed."""
    disk = SimDisk()
    fill(disk).advance_log_start(offset)
    assert b"0 0" not in disk.read("t-0/leader-epoch-checkpoint")
    reopened = reopen(disk.after_kill(), recovery_point=7)
    assert reopened.log_start == 0
    assert reopened.epochs.entries() == EPOCHS


@pytest.mark.parametrize("log_start", [0, 1, 4])
def test_truncated_records_that_reappear_get_their_epochs(log_start: int) -> None:
    """Invariant 85: the power was lost when only the epoch file was on disk."""
    disk = SimDisk()
    fill(disk)
    disk.write("t-0/leader-epoch-checkpoint", b"0\n1\n0 0\n")
    reopened = reopen(disk.after_kill(), recovery_point=7, log_start=log_start)
    assert reopened.end_offset == 7
    expected = [(0, log_start), *EPOCHS[1:]] if log_start < 3 else [(1, 4), (2, 6)]
    assert reopened.epochs.entries() == expected


def test_removed_segment_that_reappears_behind_newer_records_is_dropped() -> None:
    """Invariant 85: the batches of the old epoch do not continue those of the new one."""
    disk = SimDisk()
    log = fill(disk)
    path = log.segments[1].file.path
    removed = disk.read(path)
    log.truncate_to(1)
    append(log, [b"new 1"], epoch=9)
    disk.write(path, removed)
    reopened = reopen(disk.after_kill(), CONFIG, recovery_point=1)
    assert content(reopened) == [(0, b"old 0"), (1, b"new 1")]
    assert reopened.epochs.entries() == [(0, 0), (9, 1)]


def test_epoch_begun_before_a_clean_stop_survives_power_loss() -> None:
    """Invariant 85: the stop syncs the epoch file with the records."""
    disk = SimDisk()
    log = fill(disk)
    disk.sync("t-0/leader-epoch-checkpoint")
    append(log, [b"new 7"], epoch=9)
    log.finish()
    log.flush_state.flush()
    for seed in SEEDS:
        reopened = reopen(disk.power_loss(Random(seed)), clean=True, recovery_point=8)
        assert reopened.epochs.entries() == [*EPOCHS, (9, 7)]
