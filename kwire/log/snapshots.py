"""The producer snapshots of a log: a file for each segment's base offset, and one for the end."""

from bisect import insort
from contextlib import suppress
from typing import TYPE_CHECKING

from kwire.log.formats import names
from kwire.log.trouble import if_room

if TYPE_CHECKING:
    from kwire.log.partition_log import PartitionLog


def _name(offset: int) -> str:
    return names.stem(offset) + names.SNAPSHOT


def take(log: "PartitionLog", offset: int) -> None:
    """Write a snapshot of the producers below ``offset``; the next flush syncs the file.

    Without room on the disk it stays in memory, and the next flush writes it.
    """
    data = log.producers.snapshot()
    log.unsynced.files[_name(offset)] = data
    with if_room():
        log.disk.write(f"{log.directory}/{_name(offset)}", data)
        log.unsynced.files[_name(offset)] = None
    if offset not in log.snapshots:
        insort(log.snapshots, offset)


def add(log: "PartitionLog", offset: int) -> None:
    """Let the next flush write a snapshot of the producers as they are now, below ``offset``."""
    data = log.producers.snapshot()
    if offset not in log.snapshots:
        insort(log.snapshots, offset)
    else:
        with suppress(FileNotFoundError):
            if read(log, offset) == data:
                return
    log.unsynced.files[_name(offset)] = data


def read(log: "PartitionLog", offset: int) -> bytes:
    """Return a snapshot file's content, even if no flush has written it yet."""
    data = log.unwritten(_name(offset))
    return log.disk.read(f"{log.directory}/{_name(offset)}") if data is None else data


def remove(log: "PartitionLog", offset: int) -> None:
    """Remove a snapshot from the list and from the disk."""
    log.disk.remove(f"{log.directory}/{_name(offset)}")
    log.snapshots.remove(offset)
    log.unsynced.files.pop(_name(offset), None)
