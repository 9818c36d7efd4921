"""The protocols through which the replica layer uses metadata and log directories.

They are protocols so that tests can replace both with a few lines.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol

from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.partition_log import PartitionLog
from kwire.types import TopicPartition


class PartitionState(Protocol):
    """A partition in the metadata."""

    @property
    def replicas(self) -> Sequence[int]: ...

    @property
    def isr(self) -> Sequence[int]: ...

    @property
    def leader(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def partition_epoch(self) -> int: ...


class TopicState(Protocol):
    """A topic in the metadata."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> bytes: ...

    @property
    def partitions(self) -> Mapping[int, PartitionState]: ...


class Metadata(Protocol):
    """The part of the published metadata that the replica layer reads."""

    @property
    def topics(self) -> Mapping[bytes, TopicState]: ...

    @property
    def topic_ids(self) -> Mapping[str, bytes]: ...


class Delta(Protocol):
    """The changes of one metadata publication."""

    @property
    def after(self) -> Metadata: ...

    @property
    def partitions(self) -> Mapping[bytes, Set[int]]: ...

    @property
    def deleted_topics(self) -> Mapping[bytes, TopicState]: ...

    @property
    def configs(self) -> Set[tuple[int, str]]: ...


class Directory(Protocol):
    """One log directory, for DescribeLogDirs and for failures."""

    @property
    def name(self) -> str:
        """The directory's path, by which Kafka's tools name it."""

    @property
    def disk(self) -> Disk: ...

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...


class Logs(Protocol):
    """The broker's log directories: the part of ``LogManager`` that the replica layer uses."""

    @property
    def directories(self) -> Sequence[Directory]: ...

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition, None if it is not here."""

    async def flush(self, opened: PartitionLog, end_offset: int | None = None) -> None:
        """Return when everything below ``end_offset`` is durable; one fsync serves every waiter."""

    async def keep_starts(self, moved: Iterable[PartitionLog]) -> None:
        """Return once the start offsets of these logs are on disk."""

    def create(
        self, topic: str, topic_id: bytes, partition: int, config: LogConfig
    ) -> PartitionLog: ...

    def delete_soon(self, opened: PartitionLog) -> None:
        """Take a log away, as soon as no thread works on it."""
