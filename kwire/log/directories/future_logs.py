"""Creates, promotes and removes the directories of future replicas (KIP-113).

A move of a log copies it to a future replica in another log directory, in a directory whose name
ends with ``-future``. Rules: the future replica's directory gets the partition's own name in one
rename. Before that, a file in it records the log directory that the log leaves
(:data:`names.MOVED_HERE`). So after a crash between this rename and that of the old directory, a
start finds two directories of the partition, and knows that the old one is outdated. The file is
removed once the old directory has its ``-delete`` name on disk.
"""

import logging
from contextlib import suppress

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory, files_naming, set_aside
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.types import ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)


def create(
    service: DirectoryService,
    partition: TopicPartition,
    topic_id: bytes,
    config: LogConfig,
    unique: bytes,
    base_offset: int,
) -> PartitionLog:
    """Create an empty future replica; raises KafkaStorageError."""
    directory = service.directory
    name = names.future_directory(*partition, unique.hex())
    try:
        log = directory.create(
            partition, topic_id, config, service.clock.now_ms(), (name, base_offset)
        )
    except OSError as error:
        marked = names.marked_directory(*partition, unique.hex(), names.DELETE_DIRECTORY)
        # No later attempt would reuse the name, and the next start would resume the move.
        with suppress(OSError):
            directory.disk.rename(name, marked)
            service.removals.add(directory.disk, [marked], config.file_delete_delay_ms)
        directory.note_failure()
        raise KafkaStorageError(f"{directory.name}: {error}") from error
    service.watch(log)
    return log


def forget(service: DirectoryService, log: PartitionLog) -> None:
    """Remove a future replica from its directory's list; its files stay."""
    directory = service.directory
    if directory.futures.get(log.partition) is log:
        del directory.futures[log.partition]
        directory.retired[log.partition] = files_naming(log)
    service.forget(log)


def remove(service: DirectoryService, log: PartitionLog, unique: bytes) -> None:
    """Remove a future replica's files later; no thread may be working on it.

    An error is only logged, because the next start finds the remaining files.
    """
    directory = service.directory
    if directory.futures.get(log.partition) is log:
        forget(service, log)
    try:
        _remove_later(service, log, unique)
    except OSError as error:
        log.segments.release()
        directory.note_failure()
        text = "cannot remove future replica partition=%s directory=%s error=%s"
        logger.error(text, log.partition, directory.name, error)


def check_vacant(service: DirectoryService, partition: TopicPartition) -> None:
    """Raise KafkaStorageError if the directory still has the files of an earlier log.

    These are about to be removed, or could not be renamed. Until they are, the mark in the current
    log's directory must stay (:func:`unmark_durably`): it tells a start that they are outdated.
    """
    disk, name = service.directory.disk, names.directory(*partition)
    with suppress(FileNotFoundError):
        if disk.entries(name):
            raise KafkaStorageError(f"{service.directory.name}/{name} has not been removed yet")


def promote(service: DirectoryService, log: PartitionLog) -> None:
    """Make a future replica the current replica; raises OSError with nothing changed."""
    directory, partition = service.directory, log.partition
    name = names.directory(*partition)
    directory.disk.rename(log.segments.directory, name)
    log.segments.move(name)
    log.flush_state.unsynced.has_new_directory = True
    del directory.futures[partition]
    directory.logs[partition] = log
    service.watch(log)
    service.checkpoints.mark(log)


def give_up(service: DirectoryService, log: PartitionLog) -> None:
    """Remove a moved log from its old directory's list; :func:`remove_moved` follows."""
    del service.directory.logs[log.partition]
    service.directory.retired[log.partition] = files_naming(log)
    service.forget(log)


def remove_moved(service: DirectoryService, log: PartitionLog, unique: bytes) -> None:
    """Remove the old files of a moved log later; raises OSError if they cannot be renamed."""
    _remove_later(service, log, unique)


def _remove_later(service: DirectoryService, log: PartitionLog, unique: bytes) -> None:
    marked = names.marked_directory(*log.partition, unique.hex(), names.DELETE_DIRECTORY)
    set_aside(log, marked)
    service.removals.add(log.disk, [marked], log.config.file_delete_delay_ms, log.segments)


def identity(directory: LogDirectory) -> bytes:
    """Return the identity of a log directory, as stored in the file :data:`names.MOVED_HERE`."""
    is_named = directory.directory_id != ZERO_UUID
    return (directory.directory_id.hex() if is_named else directory.name).encode()


def mark_moved(log: PartitionLog, source: LogDirectory) -> None:
    """Record the directory that a future replica's log leaves; synced by the next flush."""
    log.disk.write(f"{log.segments.directory}/{names.MOVED_HERE}", identity(source))
    unsynced = log.flush_state.unsynced
    unsynced.files[names.MOVED_HERE] = None
    unsynced.has_new_names = True


def is_moved_from(log: PartitionLog, source: LogDirectory) -> bool:
    """Return whether a log was moved here from ``source``."""
    with suppress(FileNotFoundError):
        return log.disk.read(f"{log.segments.directory}/{names.MOVED_HERE}") == identity(source)
    return False


def unmark_moved(log: PartitionLog) -> None:
    """Remove the file :data:`names.MOVED_HERE`, which is no longer needed."""
    log.disk.remove(f"{log.segments.directory}/{names.MOVED_HERE}")


def unmark_durably(log: PartitionLog) -> None:
    """Remove the file :data:`names.MOVED_HERE` of an earlier move, in a thread.

    Otherwise, two files could each declare the other's directory outdated: the file remains if the
    end of the earlier move failed, and may reappear after a power loss.
    """
    unmark_moved(log)
    log.disk.sync_directory(log.segments.directory)
