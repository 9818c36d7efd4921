"""Reading and writing a log's ``leader-epoch-checkpoint`` file."""

from typing import TYPE_CHECKING, Final

from kwire.log import epochs
from kwire.log.formats import names
from kwire.log.storage_errors import storage_errors
from kwire.log.trouble import Trouble, trouble

if TYPE_CHECKING:
    from kwire.log.partition_log import PartitionLog

SECTOR: Final = 512
"""Bytes that a crash cannot tear: a file up to this size, written in place, is old or new."""


def write(log: "PartitionLog") -> None:
    """Write a log's epochs; the flush that covers the epoch's batches syncs the file.

    It is written in place as long as a crash cannot tear it: a rename over the old file makes ext4
    flush, which costs 2 ms per partition at each start. Without room for it the file is removed:
    recovery takes the epochs from the batches.
    """
    path, text = f"{log.segments.directory}/{names.EPOCHS_FILE}", log.epochs.to_text()
    with storage_errors(log.changes):
        try:
            if len(text) <= SECTOR:
                log.disk.write(path, text)
            else:
                log.disk.replace(path, text, sync=False)
                log.flush_state.unsynced.names = True
        except OSError as error:
            if trouble(error) is not Trouble.NO_ROOM:
                raise
            log.disk.remove(path)
    log.flush_state.unsynced.lazy.add(names.EPOCHS_FILE)


def load(log: "PartitionLog") -> bool:
    """Read a log's epochs; return whether the file was valid and had entries."""
    try:
        stored = epochs.from_text(log.disk.read(f"{log.segments.directory}/{names.EPOCHS_FILE}"))
    except (FileNotFoundError, ValueError):
        return False
    log.epochs.replace(stored)
    return bool(stored.entries())
