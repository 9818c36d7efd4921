"""Reading and writing a log's ``leader-epoch-checkpoint`` file."""

from typing import Final

from kwire.log import epochs
from kwire.log.disk_health import DiskErrorKind, classify
from kwire.log.epochs import LeaderEpochs
from kwire.log.error_mapping import storage_errors
from kwire.log.flush_state import FlushState
from kwire.log.formats import names
from kwire.log.log_changes import LogChanges
from kwire.log.log_segments import LogSegments

SECTOR: Final = 512
"""The size that a crash cannot tear: a file of at most this size is written completely or not."""


class EpochsFile:
    """The file with one log's epochs, which is written after each of their changes."""

    __slots__ = ("_changes", "_epochs", "_flush_state", "_segments")

    def __init__(
        self,
        epochs: LeaderEpochs,
        segments: LogSegments,
        flush_state: FlushState,
        changes: LogChanges,
    ) -> None:
        self._epochs = epochs
        self._segments = segments
        self._flush_state = flush_state
        self._changes = changes
        epochs.on_change = self.write

    def write(self) -> None:
        """Write the epochs; the flush that covers the epoch's batches syncs the file.

        The file is written in place if it is small enough that a crash cannot tear it, because a
        rename over the old file makes ext4 flush, which costs 2 ms per partition at each start. If
        the disk has no room for it, the file is removed; recovery then rebuilds the epochs from the
        batches. If there is no descriptor for it, the next flush writes it, because the change of
        the log goes on.
        """
        disk, path, text = self._segments.disk, self._path(), self._epochs.to_text()
        unsynced = self._flush_state.unsynced
        if self._flush_state.unwritten(names.EPOCHS_FILE) is not None:
            unsynced.files[names.EPOCHS_FILE] = lambda: text  # A flush may be writing an older one.
            return
        with storage_errors(self._changes):
            try:
                if len(text) <= SECTOR:
                    disk.write(path, text)
                else:
                    disk.replace(path, text, sync=False)
                    unsynced.has_new_names = True
            except OSError as error:
                if classify(error) is DiskErrorKind.NO_ROOM:
                    disk.remove(path)
                elif classify(error) is DiskErrorKind.NO_DESCRIPTORS:
                    unsynced.files[names.EPOCHS_FILE] = lambda: text
                else:
                    raise
        unsynced.sync_later(names.EPOCHS_FILE)

    def load(self) -> bool:
        """Read the epochs; return whether the file was valid and had entries."""
        try:
            stored = epochs.from_text(self._segments.disk.read(self._path()))
        except (FileNotFoundError, ValueError):
            return False
        self._epochs.replace(stored)
        return bool(stored.entries())

    def _path(self) -> str:
        return f"{self._segments.directory}/{names.EPOCHS_FILE}"
