"""The protocol's storage error for an error of the operating system."""

from typing import TYPE_CHECKING

from kwire.errors import KafkaStorageError

if TYPE_CHECKING:
    from kwire.log.partition_log import PartitionLog


def storage_error(log: "PartitionLog", error: OSError) -> KafkaStorageError:
    """Return the storage error of a log; ``log.changed`` makes its service check the disk."""
    log.changed(log)
    return KafkaStorageError(f"{log.partition}: {error}")


class storage_errors:
    """A context that turns an OSError inside into the protocol's storage error."""

    __slots__ = ("_log",)

    def __init__(self, log: "PartitionLog") -> None:
        self._log = log

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise storage_error(self._log, error) from error
