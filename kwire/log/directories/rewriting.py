"""Rewrites data that a failed fsync may have left only in the page cache.

The kernel reports a failed fsync once and then considers the pages clean: a later fsync succeeds
without writing them, so a process must not trust data that it finds intact in the cache. Rules: a
start that finds the mark (:data:`kwire.log.disk_health.FAILED_SYNC`) rewrites and syncs everything
that no earlier fsync covers, before the logs are used. The mark is removed last.
"""

from functools import partial
from typing import Final

from kwire.log.disk import Disk, File
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import InThread

READ_BYTES: Final = 1 << 20


async def write_again(log: PartitionLog, in_thread: InThread) -> None:
    """Rewrite a recovered log's bytes above its recovery point; the next flush syncs them.

    Recovery has already rewritten the indexes, and the producer snapshots of later segments. Raises
    OSError.
    """
    segments, point = log.segments, log.flush_state.recovery_point
    first = segments.index_of(point)
    for segment in segments[first:]:
        batch = segment.locate(point) if segment.base_offset < point else (0, 0)
        if batch is None:
            continue
        segment.file.pin()
        try:
            await in_thread(log.disk, partial(_copy, segment.file, batch[0], segment.size))
        finally:
            segment.file.unpin()
    files = (
        names.EPOCHS_FILE,
        names.PARTITION_METADATA,
        segments[first].files.name(names.SNAPSHOT),
    )
    for name in files:
        await in_thread(log.disk, partial(_rewrite, log.disk, f"{segments.directory}/{name}"))
        log.flush_state.unsynced.files.setdefault(name, None)


def _copy(file: File, position: int, end_position: int) -> None:
    """Write a range of a file onto itself."""
    for at in range(position, end_position, READ_BYTES):
        file.write([file.read(at, min(READ_BYTES, end_position - at))], at)


def _rewrite(disk: Disk, path: str) -> None:
    """Rewrite a small file in place, if it exists."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return
    disk.write(path, data)
