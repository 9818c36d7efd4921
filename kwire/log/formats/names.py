"""The names of a log's files and directories."""

from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
ABORTED: Final = ".aborted"
"""An empty file beside an index of aborted transactions: if the index is lost, it is rebuilt.

Without this file a missing index would look normal, because a segment without aborted transactions
has none in Kafka's format. Apache Kafka ignores the file.
"""
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX, ABORTED)
GROWING: Final = ".growing.tmp"
"""The end of the name of an index file whose segment is appended to and has not been synced yet.

At a start, such files are removed, like all files whose names end with ``.tmp``.
"""
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

DELETE_DIRECTORY: Final = "-delete"
FUTURE_DIRECTORY: Final = "-future"
STRAY_DIRECTORY: Final = "-stray"
NAME_MAX: Final = 255

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
NAMED_AGAIN: Final = "kwire-named-again"
"""A marker in a directory whose name an earlier log had: checkpoints may still refer to that log.
"""
MOVED_HERE: Final = "kwire-moved-here"
"""A file in the directory of a moved log; it names the log directory that the log was moved from.

While it exists, a directory of the same partition in that log directory is the outdated one.
"""
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"


def stem(offset: int) -> str:
    """Return a segment's name: its base offset in twenty digits."""
    return f"{offset:020d}"


def stem_offset(name: str) -> int | None:
    """Return the offset in a segment file's name; None if it does not start with one."""
    digits = name[:20]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def directory(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_directory(name: str) -> tuple[str, int] | None:
    """Return topic and partition of a live partition's directory; None for any other name."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        return None
    return topic, int(number)


def future_directory(topic: str, partition: int, unique: str) -> str:
    """Return the name of a future replica's directory, which may exceed :data:`NAME_MAX`."""
    return f"{topic}-{partition}.{unique}{FUTURE_DIRECTORY}"


def parse_future(name: str) -> tuple[str, int] | None:
    """Return topic and partition of a future replica's directory; None for any other name."""
    if not name.endswith(FUTURE_DIRECTORY):
        return None
    return parse_directory(name.removesuffix(FUTURE_DIRECTORY).rpartition(".")[0])


def marked_directory(topic: str, partition: int, unique: str, suffix: str) -> str:
    """Return the name of a deleted or stray directory; long topics are cut to fit."""
    tail = f"-{partition}.{unique}{suffix}"
    return topic[: NAME_MAX - len(tail)] + tail
