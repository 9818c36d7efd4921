"""The protocols through which the replica layer uses higher layers.

The metadata image, the session lease and the connections to other nodes are in layers that import
this one, so it cannot import their classes. Tests replace a fetcher's leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
    from kwire.codec.messages.fetch import FetchRequest, FetchResponse
    from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse


class PartitionState(Protocol):
    """A partition in the metadata."""

    @property
    def replicas(self) -> Sequence[int]: ...

    @property
    def isr(self) -> Sequence[int]: ...

    @property
    def elr(self) -> Sequence[int]: ...

    @property
    def leader(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def partition_epoch(self) -> int: ...

    def directory(self, broker: int) -> bytes | None:
        """Return the id of the log directory of a broker's replica, None if it is unknown."""


class TopicState(Protocol):
    """A topic in the metadata."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> bytes: ...

    @property
    def partitions(self) -> Mapping[int, PartitionState]: ...


class BrokerState(Protocol):
    """A registered broker in the metadata."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_active(self) -> bool:
        """True if the broker is neither fenced nor shutting down."""


class Metadata(Protocol):
    """The part of the published metadata that the replica layer reads."""

    @property
    def brokers(self) -> Mapping[int, BrokerState]: ...

    @property
    def topics(self) -> Mapping[bytes, TopicState]: ...

    @property
    def topic_ids(self) -> Mapping[str, bytes]: ...

    def config(self, kind: int, name: str) -> Mapping[str, str]:
        """Return the settings that override a resource's defaults; empty if none do."""


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

    @property
    def brokers(self) -> Set[int]: ...


class Lease(Protocol):
    """The time until which this broker may act as leader; after it, another broker may lead."""

    def is_over(self, now: float) -> bool:
        """Return whether the lease is over; ``now`` is in monotonic seconds."""

    def left_s(self, now: float) -> float:
        """Return the seconds until the lease ends if it is not extended; at least 0."""

    def over_s(self, now: float) -> float:
        """Return the seconds for which the broker has been without its lease, in total."""


class LeaderBroker(Protocol):
    """A connection to a broker that leads partitions; its calls raise LeaderUnreachable."""

    async def fetch(self, request: FetchRequest) -> FetchResponse: ...

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse: ...

    def drop(self) -> None:
        """Close the connection; the next call reconnects."""


class LeaderUnreachable(Exception):
    """A broker that leads partitions did not answer."""


class OtherBrokers(Protocol):
    """The other nodes of the cluster, as replication needs them."""

    def broker_epoch(self) -> int:
        """Return the broker epoch that the controller assigned at the last registration."""

    def now_ms(self) -> int: ...

    def connect(self, node: int) -> LeaderBroker:
        """Return the connection to a broker; the first call on it connects."""

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Send a request to the active controller; raises KafkaError."""
