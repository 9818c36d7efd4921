"""``leader-epoch-checkpoint``, as a log keeps it."""

from typing import TYPE_CHECKING, Final

from kwire.log import epochs, names
from kwire.log.trouble import Trouble, trouble

if TYPE_CHECKING:
    from kwire.log.partition_log import PartitionLog

SECTOR: Final = 512
"""A file of at most so many bytes is as it was or as it is after a crash, also in place."""


def write(log: "PartitionLog") -> None:
    """Write a log's epochs; the flush that covers the epoch's batches syncs the file.

    In place while it is torn by no crash: a rename over the old one makes ext4 flush, which is
    2 ms a partition in each start. Without room for it the file goes: a recovery has the epochs
    from the batches.
    """
    path, text = f"{log.directory}/{names.EPOCHS_FILE}", log.epochs.to_text()
    try:
        if len(text) <= SECTOR:
            log.disk.write(path, text)
        else:
            log.disk.replace(path, text, sync=False)
            log.unsynced.names = True
    except OSError as error:
        if trouble(error) is not Trouble.NO_ROOM:
            raise
        log.disk.remove(path)
    log.unsynced.lazy.add(names.EPOCHS_FILE)


def load(log: "PartitionLog") -> bool:
    """Read a log's epochs; whether there was anything to rely on."""
    try:
        found = epochs.from_text(log.disk.read(f"{log.directory}/{names.EPOCHS_FILE}"))
    except (FileNotFoundError, ValueError):
        return False
    log.epochs.replace(found)
    return bool(found.entries())
