"""What the protocol says of an error of the operating system."""

from typing import TYPE_CHECKING

from kwire.errors import KafkaStorageError

if TYPE_CHECKING:
    from kwire.log.partition_log import PartitionLog


def storage_error(log: "PartitionLog", error: OSError) -> KafkaStorageError:
    """Make the storage error of a log; its service looks whether the disk has failed."""
    log.changed(log)
    return KafkaStorageError(f"{log.partition}: {error}")


class storage_errors:
    """Turns what the operating system says inside into the protocol's storage error."""

    __slots__ = ("_log",)

    def __init__(self, log: "PartitionLog") -> None:
        self._log = log

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise storage_error(self._log, error) from error
