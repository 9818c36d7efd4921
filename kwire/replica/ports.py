"""What the replica layer needs of others: the seams to metadata and log directories.

Protocols, so that tests stand in for both with a few lines.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol

from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.partition_log import PartitionLog
from kwire.types import TopicPartition


class PartitionState(Protocol):
    """A partition as the metadata has it."""

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
    """A topic as the metadata has it."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> bytes: ...

    @property
    def partitions(self) -> Mapping[int, PartitionState]: ...


class Metadata(Protocol):
    """The published metadata, as far as the replica layer looks."""

    @property
    def topics(self) -> Mapping[bytes, TopicState]: ...

    @property
    def topic_ids(self) -> Mapping[str, bytes]: ...


class Delta(Protocol):
    """What a publication changes."""

    @property
    def after(self) -> Metadata: ...

    @property
    def partitions(self) -> Mapping[bytes, Set[int]]: ...

    @property
    def deleted_topics(self) -> Mapping[bytes, TopicState]: ...

    @property
    def configs(self) -> Set[tuple[int, str]]: ...


class Directory(Protocol):
    """One log directory, for who describes it."""

    @property
    def name(self) -> str:
        """Its path, which is how Kafka's tools name it."""

    @property
    def disk(self) -> Disk: ...

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...


class Logs(Protocol):
    """The broker's log directories: what a ``LogManager`` is to the replica layer."""

    @property
    def directories(self) -> Sequence[Directory]: ...

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition, if it is here."""

    async def flush(self, opened: PartitionLog, end_offset: int | None = None) -> None:
        """Return when everything below is durable; one fsync serves every waiter."""

    async def keep_starts(self, moved: Iterable[PartitionLog]) -> None:
        """Return once it is written down where these logs start."""

    def create(
        self, topic: str, topic_id: bytes, partition: int, config: LogConfig
    ) -> PartitionLog: ...

    async def delete(self, topic: str, partition: int) -> None: ...
