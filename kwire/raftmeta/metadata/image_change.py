"""The transition from one image to the next, record by record.

An :class:`ImageChange` is used once: replay records into it in order, then ``finish`` returns the
new image and the :class:`MetadataDelta`. A map is opened for changes when first used and closed at
the end. A record that cannot be applied, such as a change to an unknown partition, means that the
log is damaged and raises :class:`ReplayError`; the original image is unchanged.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import attrs
from immutables import Map, MapMutation

from kwire.codec.messages import metadata_records as r
from kwire.configs.resource_types import TOPIC
from kwire.raftmeta.metadata.image import (
    Applied,
    BrokerImage,
    ControllerImage,
    LevelRange,
    MetadataImage,
    NodeEndpoint,
    PartitionImage,
    QuotaEntity,
    TopicImage,
)
from kwire.security.acls import Acl

KEEP_LEADER: Final = -2
"""The leader value in a PartitionChangeRecord that keeps the leader."""
CLEARED_AT_ONCE: Final = 32
"""Partitions whose ELR is cleared, or found to be empty, in one step."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# Any: an image's maps differ in their types; a MapName restores the types of each map.
OpenMap: TypeAlias = "MapMutation[Any, Any]"
# Any: the keys are broker ids, directory ids and tuples of either; each value is its own key.
Interned: TypeAlias = dict[Any, Any]
# Any: each method takes the record class under which _REPLAY lists it.
Replay: TypeAlias = "Callable[[ImageChange, Any], None]"


@attrs.frozen(eq=False, repr=False)
class MapName(Generic[K, V]):
    """The name of one of an image's maps, with the types of its keys and values."""

    attribute: str


FEATURES: Final = MapName[str, int]("features")
BROKERS: Final = MapName[int, BrokerImage]("brokers")
CONTROLLERS: Final = MapName[int, ControllerImage]("controllers")
TOPICS: Final = MapName[bytes, TopicImage]("topics")
TOPIC_IDS: Final = MapName[str, bytes]("topic_ids")
CONFIGS: Final = MapName[tuple[int, str], "Map[str, str]"]("configs")
QUOTAS: Final = MapName[QuotaEntity, "Map[str, float]"]("quotas")
ACLS: Final = MapName[bytes, Acl]("acls")
ACL_IDS: Final = MapName[Acl, bytes]("acl_ids")
SCRAM: Final = MapName[tuple[int, str], r.UserScramCredentialRecord]("scram")
TOKENS: Final = MapName[str, r.DelegationTokenRecord]("tokens")


class Share(Protocol):
    """Returns the values as a tuple, possibly one that already exists."""

    def __call__(self, values: Iterable[T], /) -> tuple[T, ...]: ...


class ReplayError(Exception):
    """The metadata log contradicts itself."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MetadataDelta:
    """The differences between two images."""

    before: MetadataImage
    after: MetadataImage
    partitions: dict[bytes, set[int]]
    """New and changed partitions, by topic id; only of topics that still exist."""
    created_topics: frozenset[bytes]
    deleted_topics: dict[bytes, TopicImage]
    """Deleted topics, as they were before deletion."""
    configs: frozenset[tuple[int, str]]
    """The config resources that changed."""
    brokers: frozenset[int]
    controllers: frozenset[int]
    features: frozenset[str]
    quotas: frozenset[QuotaEntity]
    acls: frozenset[bytes]
    """The ids of new and deleted ACLs."""


class ImageChange:
    """An image while it is being changed. See :func:`apply`."""

    def __init__(self, image: MetadataImage) -> None:
        self._before = image
        self._open: dict[str, OpenMap] = {}
        self._topics: dict[bytes, tuple[TopicImage, MapMutation[int, PartitionImage]]] = {}
        """Topics being changed: each with its partitions opened for changes."""
        self._partitions: dict[bytes, set[int]] = {}
        self._created: set[bytes] = set()
        self._deleted: dict[bytes, TopicImage] = {}
        self._configs: set[tuple[int, str]] = set()
        self._brokers: set[int] = set()
        self._controllers: set[int] = set()
        self._features: set[str] = set()
        self._quotas: set[QuotaEntity] = set()
        self._acls: set[bytes] = set()
        self._next_producer_id = image.next_producer_id
        self._shared: Interned = {}
        """Ids and tuples that many partitions share, each stored once."""
        self._has_directories = False

    def replay(self, record: r.MetadataRecord) -> None:
        """Apply one record."""
        apply_record = _REPLAY.get(type(record))
        if apply_record is None:
            raise ReplayError(f"unknown metadata record {type(record).__name__}")
        apply_record(self, record)

    def close(self) -> Iterator[None]:
        """Close the opened topics, yielding after each one; ``finish`` closes the rest."""
        while self._topics:
            topic_id, (topic, partitions) = self._topics.popitem()
            self._map(TOPICS)[topic_id] = TopicImage(topic.name, topic.id, partitions.finish())
            yield

    def finish(self, applied: Applied) -> tuple[MetadataImage, MetadataDelta]:
        """Return the new image and the delta. The change must not be used afterwards."""
        for _ in self.close():
            pass
        after = attrs.evolve(
            self._before,
            applied=applied,
            next_producer_id=self._next_producer_id,
            **{name: opened.finish() for name, opened in self._open.items()},
        )
        delta = MetadataDelta(
            before=self._before,
            after=after,
            partitions=self._partitions,
            created_topics=frozenset(self._created),
            deleted_topics=self._deleted,
            configs=frozenset(self._configs),
            brokers=frozenset(self._brokers),
            controllers=frozenset(self._controllers),
            features=frozenset(self._features),
            quotas=frozenset(self._quotas),
            acls=frozenset(self._acls),
        )
        return after, delta

    def _map(self, name: MapName[K, V]) -> "MapMutation[K, V]":
        """Return the map with this name, in the form that can be changed."""
        attribute = name.attribute
        opened: MapMutation[K, V] | None = self._open.get(attribute)
        if opened is None:
            opened = self._open[attribute] = getattr(self._before, attribute).mutate()
        return opened

    def _peek(self, name: MapName[K, V]) -> "Map[K, V] | MapMutation[K, V]":
        """Return a map for reading, opened or not."""
        opened: MapMutation[K, V] | None = self._open.get(name.attribute)
        if opened is not None:
            return opened
        unchanged: Map[K, V] = getattr(self._before, name.attribute)
        return unchanged

    # Topics and partitions

    def topic(self, record: r.TopicRecord) -> None:
        topic = TopicImage(record.name, record.topic_id)
        self._topics[topic.id] = (topic, topic.partitions.mutate())
        self._map(TOPICS)[topic.id] = topic
        self._map(TOPIC_IDS)[topic.name] = topic.id
        self._created.add(topic.id)
        self._partitions[topic.id] = set()

    def remove_topic(self, record: r.RemoveTopicRecord) -> None:
        topic = self._map(TOPICS).pop(record.topic_id, None)
        if topic is None:
            raise ReplayError("a topic that does not exist was removed")
        self._topics.pop(topic.id, None)
        self._partitions.pop(topic.id, None)
        if self._peek(TOPIC_IDS).get(topic.name) == topic.id:
            del self._map(TOPIC_IDS)[topic.name]
        if topic.id in self._created:
            self._created.discard(topic.id)
        else:
            self._deleted[topic.id] = self._before.topics[topic.id]
        resource = (TOPIC, topic.name)
        if resource in self._peek(CONFIGS):
            del self._map(CONFIGS)[resource]
            self._configs.add(resource)

    def _opened_topic(self, topic_id: bytes) -> "MapMutation[int, PartitionImage]":
        opened = self._topics.get(topic_id)
        if opened is None:
            topic = self._peek(TOPICS).get(topic_id)
            if topic is None:
                raise ReplayError("a partition of a topic that does not exist")
            opened = self._topics[topic_id] = (topic, topic.partitions.mutate())
        return opened[1]

    def partition(self, record: r.PartitionRecord) -> None:
        partitions = self._opened_topic(record.topic_id)
        partitions[record.partition_id] = partition_of(record, self._share)
        self._partitions.setdefault(record.topic_id, set()).add(record.partition_id)

    def partition_change(self, record: r.PartitionChangeRecord) -> None:
        partitions = self._opened_topic(record.topic_id)
        partition = partitions.get(record.partition_id)
        if partition is None:
            raise ReplayError(f"a change of partition {record.partition_id} that does not exist")
        partitions[record.partition_id] = apply_partition_change(partition, record, self._share)
        self._partitions.setdefault(record.topic_id, set()).add(record.partition_id)

    def _share(self, values: Iterable[T], /) -> tuple[T, ...]:
        """Return a tuple of broker or directory ids that is shared by all its users.

        A directory id becomes the same object as in its broker's image.
        """
        values_tuple, shared = tuple(values), self._shared
        # Most changes name only brokers.
        if values_tuple and isinstance(values_tuple[0], bytes) and not self._has_directories:
            self._has_directories = True
            directories = (d for broker in self._before.brokers.values() for d in broker.log_dirs)
            shared.update((directory, directory) for directory in directories)
        values_tuple = tuple([shared.setdefault(value, value) for value in values_tuple])
        shared_tuple: tuple[T, ...] = shared.setdefault(values_tuple, values_tuple)
        return shared_tuple

    def clearing_elr(self, record: r.ClearElrRecord) -> Iterator[None]:
        """Apply a record that clears the ELR, yielding after every few partitions."""
        if not record.topic_name:
            old = (i for i in self._before.topics if i not in self._deleted)
            named: list[bytes | None] = [*old, *self._created]
        else:
            named = [self._peek(TOPIC_IDS).get(record.topic_name)]
        count = 0
        for topic_id in named:
            if topic_id is None:
                raise ReplayError(f"ELR cleared of unknown topic {record.topic_name}")
            opened = self._topics.get(topic_id)
            topic = self._peek(TOPICS)[topic_id]
            partitions = topic.partitions if opened is None else opened[1]
            for number in range(len(partitions)):
                if partitions[number].elr or partitions[number].last_known_elr:
                    self.partition_change(_without_elr(topic_id, number))
                count += 1
                if count % CLEARED_AT_ONCE == 0:
                    yield

    # Nodes

    def register_broker(self, record: r.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._map(BROKERS)[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=self._share(record.log_dirs),
            cordoned_log_dirs=None if cordoned is None else tuple(cordoned),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        )
        self._brokers.add(record.broker_id)

    def unregister_broker(self, record: r.UnregisterBrokerRecord) -> None:
        self._broker_of(record.broker_id, record.broker_epoch)
        del self._map(BROKERS)[record.broker_id]
        self._brokers.add(record.broker_id)

    def change_registration(self, record: r.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker_of(record.broker_id, record.broker_epoch)
        fenced, shutdown = record.fenced, record.in_controlled_shutdown
        directories, cordoned = record.log_dirs, record.cordoned_log_dirs
        self._replace_broker(
            attrs.evolve(
                broker,
                fenced=fenced > 0 if fenced else broker.fenced,
                in_controlled_shutdown=shutdown > 0 if shutdown else broker.in_controlled_shutdown,
                log_dirs=self._share(directories) if directories else broker.log_dirs,
                cordoned_log_dirs=broker.cordoned_log_dirs if cordoned is None else tuple(cordoned),
            )
        )

    def fence(self, record: r.FenceBrokerRecord) -> None:
        broker = self._broker_of(record.id, record.epoch)
        self._replace_broker(attrs.evolve(broker, fenced=True))

    def unfence(self, record: r.UnfenceBrokerRecord) -> None:
        broker = self._broker_of(record.id, record.epoch)
        self._replace_broker(attrs.evolve(broker, fenced=False))

    def _broker_of(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._peek(BROKERS).get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise ReplayError(f"broker {broker_id} is not registered with epoch {epoch}")
        return broker

    def _replace_broker(self, broker: BrokerImage) -> None:
        self._map(BROKERS)[broker.id] = broker
        self._brokers.add(broker.id)

    def register_controller(self, record: r.RegisterControllerRecord) -> None:
        self._map(CONTROLLERS)[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )
        self._controllers.add(record.controller_id)

    # Everything else

    def feature_level(self, record: r.FeatureLevelRecord) -> None:
        self._features.add(record.name)
        if record.feature_level:
            self._map(FEATURES)[record.name] = record.feature_level
        else:
            self._map(FEATURES).pop(record.name, None)

    def config(self, record: r.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        values = self._peek(CONFIGS).get(resource, Map())
        if record.value is None:
            values = values.delete(record.name) if record.name in values else values
        else:
            values = values.set(record.name, record.value)
        if values:
            self._map(CONFIGS)[resource] = values
        else:
            self._map(CONFIGS).pop(resource, None)
        self._configs.add(resource)

    def client_quota(self, record: r.ClientQuotaRecord) -> None:
        pairs = ((part.entity_type, part.entity_name) for part in record.entity)
        entity = tuple(sorted(pairs, key=lambda pair: pair[0]))
        values = self._peek(QUOTAS).get(entity, Map())
        if not record.remove:
            values = values.set(record.key, record.value)
        elif record.key in values:
            values = values.delete(record.key)
        if values:
            self._map(QUOTAS)[entity] = values
        else:
            self._map(QUOTAS).pop(entity, None)
        self._quotas.add(entity)

    def producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    def acl(self, record: r.AccessControlEntryRecord) -> None:
        self._forget_acl(record.id)
        acl = _acl(record)
        self._map(ACLS)[record.id] = acl
        self._map(ACL_IDS)[acl] = record.id
        self._acls.add(record.id)

    def remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        self._forget_acl(record.id)
        self._acls.add(record.id)

    def _forget_acl(self, acl_id: bytes) -> None:
        acl = self._map(ACLS).pop(acl_id, None)
        if acl is not None and self._peek(ACL_IDS).get(acl) == acl_id:
            del self._map(ACL_IDS)[acl]

    def scram(self, record: r.UserScramCredentialRecord) -> None:
        self._map(SCRAM)[record.mechanism, record.name] = record

    def remove_scram(self, record: r.RemoveUserScramCredentialRecord) -> None:
        self._map(SCRAM).pop((record.mechanism, record.name), None)

    def token(self, record: r.DelegationTokenRecord) -> None:
        self._map(TOKENS)[record.token_id] = record

    def remove_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        self._map(TOKENS).pop(record.token_id, None)

    def ignore(self, record: object) -> None:
        """Ignore a record that only matters to readers of the log or to a ZooKeeper migration."""


def _clear_elr(change: ImageChange, record: r.ClearElrRecord) -> None:
    for _ in change.clearing_elr(record):
        pass


def _without_elr(topic_id: bytes, number: int) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(
        topic_id=topic_id, partition_id=number, eligible_leader_replicas=[], last_known_elr=[]
    )


def changes_all_topics(record: r.MetadataRecord) -> bool:
    """True if a record's application visits all topics, so that it needs more than one turn."""
    return isinstance(record, r.ClearElrRecord) and not record.topic_name


def partition_of(record: r.PartitionRecord, share: Share = tuple) -> PartitionImage:
    """Convert a PartitionRecord to an image; ``share`` builds its tuples."""
    return PartitionImage(
        replicas=share(record.replicas),
        directories=share(record.directories),
        isr=share(record.isr),
        removing=tuple(record.removing_replicas),
        adding=tuple(record.adding_replicas),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        recovering=record.leader_recovery_state == 1,
    )


def apply_partition_change(
    partition: PartitionImage,
    record: r.PartitionChangeRecord,
    share: Share = tuple,
) -> PartitionImage:
    """Return a partition after a change; naming a leader, even the same one, begins an epoch."""
    replicas, directories, isr = record.replicas, record.directories, record.isr
    removing, adding = record.removing_replicas, record.adding_replicas
    elr, last_known_elr = record.eligible_leader_replicas, record.last_known_elr
    has_leader, recovery = record.leader != KEEP_LEADER, record.leader_recovery_state
    return attrs.evolve(
        partition,
        replicas=partition.replicas if replicas is None else share(replicas),
        directories=partition.directories if directories is None else share(directories),
        isr=partition.isr if isr is None else share(isr),
        removing=partition.removing if removing is None else share(removing),
        adding=partition.adding if adding is None else share(adding),
        leader=record.leader if has_leader else partition.leader,
        leader_epoch=partition.leader_epoch + 1 if has_leader else partition.leader_epoch,
        partition_epoch=partition.partition_epoch + 1,
        elr=partition.elr if elr is None else share(elr),
        last_known_elr=(
            partition.last_known_elr if last_known_elr is None else share(last_known_elr)
        ),
        recovering=recovery == 1 if recovery >= 0 else partition.recovering,
    )


def _endpoints(
    endpoints: Iterable[
        r.RegisterBrokerRecord.BrokerEndpoint | r.RegisterControllerRecord.ControllerEndpoint
    ],
) -> tuple[NodeEndpoint, ...]:
    return tuple(NodeEndpoint(e.name, e.host, e.port, e.security_protocol) for e in endpoints)


def _acl(record: r.AccessControlEntryRecord) -> Acl:
    return Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


def _features(
    features: Iterable[
        r.RegisterBrokerRecord.BrokerFeature | r.RegisterControllerRecord.ControllerFeature
    ],
) -> dict[str, LevelRange]:
    return {f.name: LevelRange(f.min_supported_version, f.max_supported_version) for f in features}


_REPLAY: Final[dict[type, Replay]] = {
    r.AbortTransactionRecord: ImageChange.ignore,
    r.AccessControlEntryRecord: ImageChange.acl,
    r.BeginTransactionRecord: ImageChange.ignore,
    r.BrokerRegistrationChangeRecord: ImageChange.change_registration,
    r.ClearElrRecord: _clear_elr,
    r.ClientQuotaRecord: ImageChange.client_quota,
    r.ConfigRecord: ImageChange.config,
    r.DelegationTokenRecord: ImageChange.token,
    r.EndTransactionRecord: ImageChange.ignore,
    r.FeatureLevelRecord: ImageChange.feature_level,
    r.FenceBrokerRecord: ImageChange.fence,
    r.NoOpRecord: ImageChange.ignore,
    r.PartitionChangeRecord: ImageChange.partition_change,
    r.PartitionRecord: ImageChange.partition,
    r.ProducerIdsRecord: ImageChange.producer_ids,
    r.RegisterBrokerRecord: ImageChange.register_broker,
    r.RegisterControllerRecord: ImageChange.register_controller,
    r.RemoveAccessControlEntryRecord: ImageChange.remove_acl,
    r.RemoveDelegationTokenRecord: ImageChange.remove_token,
    r.RemoveTopicRecord: ImageChange.remove_topic,
    r.RemoveUserScramCredentialRecord: ImageChange.remove_scram,
    r.TopicRecord: ImageChange.topic,
    r.UnfenceBrokerRecord: ImageChange.unfence,
    r.UnregisterBrokerRecord: ImageChange.unregister_broker,
    r.UserScramCredentialRecord: ImageChange.scram,
    r.ZkMigrationStateRecord: ImageChange.ignore,
}


def apply(
    image: MetadataImage, records: Iterable[r.MetadataRecord], applied: Applied | None = None
) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image after ``records``, and its difference from ``image``."""
    change = ImageChange(image)
    for record in records:
        change.replay(record)
    return change.finish(applied or image.applied)
