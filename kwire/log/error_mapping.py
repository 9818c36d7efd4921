"""Maps an operating system error in a log to the protocol's KAFKA_STORAGE_ERROR.

:mod:`kwire.log.disk_health` decides what the error means for the log directory.
"""

from kwire.errors import KafkaStorageError
from kwire.log.log_changes import LogChanges


def storage_error(changes: LogChanges, error: OSError) -> KafkaStorageError:
    """Return the storage error of a log, and have the log's service check the disk."""
    changes.on_change()
    return KafkaStorageError(f"{changes.partition}: {error}")


class storage_errors:
    """A context that turns an OSError raised inside into the protocol's storage error."""

    __slots__ = ("_changes",)

    def __init__(self, changes: LogChanges) -> None:
        self._changes = changes

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise storage_error(self._changes, error) from error
