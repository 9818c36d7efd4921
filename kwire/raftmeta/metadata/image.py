"""The cluster's metadata as one value: the result of all records in the metadata log.

An image never changes; :func:`kwire.raftmeta.metadata.image_change.apply` returns a new one that
shares everything except what changed. A change therefore costs the same with a hundred topics and a
hundred thousand, and a reader that holds an image sees one consistent moment. The active controller
decides on an image, brokers publish images, and a snapshot is an image written as records
(:mod:`kwire.raftmeta.metadata.image_records`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import attrs
from immutables import Map

from kwire.codec.messages.metadata_records import (
    DelegationTokenRecord,
    UserScramCredentialRecord,
)
from kwire.security.acls import Acl
from kwire.types import NO_LEADER, DirectoryId


class NodeEndpoint(NamedTuple):
    """An address that a node registered."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


def _of_listener(endpoints: tuple[NodeEndpoint, ...], listener: str) -> NodeEndpoint | None:
    return next((endpoint for endpoint in endpoints if endpoint.name == listener), None)


class LevelRange(NamedTuple):
    """The range of a feature's levels that a node supports."""

    lowest: int
    highest: int


@attrs.frozen(kw_only=True)
class BrokerImage:
    """A registered broker."""

    id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[NodeEndpoint, ...] = ()
    features: Mapping[str, LevelRange] = attrs.field(factory=dict)
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    cordoned_log_dirs: tuple[bytes, ...] | None = None
    is_migrating_zk_broker: bool = False

    @property
    def is_active(self) -> bool:
        """True if the broker may lead partitions and join ISRs."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online(self, directory: bytes) -> bool:
        """Return whether a directory is online, or might be, because it is still undecided."""
        if directory in (DirectoryId.MIGRATING, DirectoryId.UNASSIGNED) or not self.log_dirs:
            return directory != DirectoryId.LOST
        return directory in self.log_dirs

    def endpoint(self, listener: str) -> NodeEndpoint | None:
        """Return the broker's address on a listener."""
        return _of_listener(self.endpoints, listener)


@attrs.frozen(kw_only=True, repr=False)
class ControllerImage:
    """A registered controller."""

    id: int
    incarnation_id: bytes
    zk_migration_ready: bool = False
    endpoints: tuple[NodeEndpoint, ...] = ()
    features: Mapping[str, LevelRange] = attrs.field(factory=dict)

    def endpoint(self, listener: str) -> NodeEndpoint | None:
        """Return the controller's address on a listener."""
        return _of_listener(self.endpoints, listener)


@attrs.frozen(kw_only=True)
class PartitionImage:
    """A partition: its replicas, ISR and leader. ``directories`` are in the order of replicas."""

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...] = ()
    isr: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    recovering: bool = False
    """True if the leader was elected uncleanly and has not finished recovering."""

    @property
    def preferred_leader(self) -> int:
        """The first replica, which leads when all replicas are in sync."""
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        """True if replicas are being added or removed."""
        return bool(self.adding or self.removing)

    @property
    def is_under_replicated(self) -> bool:
        """True if fewer replicas are in sync than the partition had before its reassignment."""
        return len(self.isr) < len(self.replicas) - len(self.adding)

    def directory(self, broker: int) -> bytes | None:
        """Return the log directory of a replica."""
        if broker in self.replicas and len(self.directories) == len(self.replicas):
            return self.directories[self.replicas.index(broker)]
        return None


@attrs.frozen(repr=False)
class TopicImage:
    """A topic and its partitions."""

    name: str
    id: bytes
    partitions: "Map[int, PartitionImage]" = attrs.field(factory=Map)


class Applied(NamedTuple):
    """The position of an image in the log: the offset, epoch and time of its last record."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Entity types and names, sorted by type; the name None means the default entity."""


@attrs.frozen(kw_only=True, repr=False)
class MetadataImage:
    """The state of the metadata log up to ``applied``."""

    applied: Applied = attrs.field(factory=Applied)
    features: "Map[str, int]" = attrs.field(factory=Map)
    brokers: "Map[int, BrokerImage]" = attrs.field(factory=Map)
    controllers: "Map[int, ControllerImage]" = attrs.field(factory=Map)
    topics: "Map[bytes, TopicImage]" = attrs.field(factory=Map)
    topic_ids: "Map[str, bytes]" = attrs.field(factory=Map)
    configs: "Map[tuple[int, str], Map[str, str]]" = attrs.field(factory=Map)
    quotas: "Map[QuotaEntity, Map[str, float]]" = attrs.field(factory=Map)
    next_producer_id: int = -1
    """The first producer id of the next block; -1 if none has been allocated."""
    acls: "Map[bytes, Acl]" = attrs.field(factory=Map)
    acl_ids: "Map[Acl, bytes]" = attrs.field(factory=Map)
    scram: "Map[tuple[int, str], UserScramCredentialRecord]" = attrs.field(factory=Map)
    tokens: "Map[str, DelegationTokenRecord]" = attrs.field(factory=Map)

    def topic(self, name: str) -> TopicImage | None:
        """Return a topic by name."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics.get(topic_id)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic that has this id."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.name

    def partition(self, name: str, partition: int) -> PartitionImage | None:
        """Return a partition by its topic's name."""
        topic = self.topic(name)
        return None if topic is None else topic.partitions.get(partition)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Return the settings of a resource that were set at run time."""
        settings: Mapping[str, str] | None = self.configs.get((resource_type, name))
        return {} if settings is None else settings

    def live_brokers(self) -> list[BrokerImage]:
        """Return the unfenced brokers, sorted by id."""
        brokers = self.brokers.values()
        return sorted((b for b in brokers if not b.fenced), key=lambda broker: broker.id)
