"""The transition from one image to the next, record by record.

An :class:`ImageChange` is used once: records are replayed into it in order, ``finish`` returns the
new image and the :class:`MetadataDelta`. Maps are opened for changing when first used and
closed at the end. A record that does not fit (a change of an unknown partition) is a sign of a
damaged log and raises :class:`ReplayError`; the image it started from is unchanged.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs
from immutables import Map

from kwire.codec.messages import metadata_records as r
from kwire.configs.resource_types import TOPIC
from kwire.raftmeta.metadata.image import (
    Applied,
    BrokerImage,
    ControllerImage,
    Endpoint,
    LevelRange,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    TopicImage,
)

KEEP_LEADER: Final = -2
"""The leader in a PartitionChangeRecord that does not change it."""
_MAPS: Final = (
    "features",
    "brokers",
    "controllers",
    "topics",
    "topic_ids",
    "configs",
    "quotas",
    "acls",
    "scram",
    "tokens",
)


class ReplayError(Exception):
    """The metadata log contradicts itself."""


@attrs.frozen(kw_only=True)
class MetadataDelta:
    """The differences between two images."""

    before: MetadataImage
    after: MetadataImage
    partitions: dict[bytes, set[int]]
    """New and changed partitions, by topic id; only of topics that exist afterwards."""
    created_topics: frozenset[bytes]
    deleted_topics: dict[bytes, TopicImage]
    """Deleted topics, as they were before."""
    configs: frozenset[tuple[int, str]]
    """The config resources that changed."""
    brokers: frozenset[int]
    controllers: frozenset[int]
    features: frozenset[str]
    quotas: frozenset[QuotaEntity]

    @property
    def is_empty(self) -> bool:
        """Whether only the offset moved."""
        return (
            self.before is self.after
            or attrs.evolve(self.before, applied=self.after.applied) == self.after
        )


class ImageChange:
    """An image being changed. See :func:`apply`."""

    def __init__(self, image: MetadataImage) -> None:
        self._before = image
        self._open: dict[str, Any] = {}
        self._topics: dict[bytes, tuple[TopicImage, Any]] = {}
        """Topics being changed: each as it is now, with its partitions opened for changing."""
        self._partitions: dict[bytes, set[int]] = {}
        self._created: set[bytes] = set()
        self._deleted: dict[bytes, TopicImage] = {}
        self._configs: set[tuple[int, str]] = set()
        self._brokers: set[int] = set()
        self._controllers: set[int] = set()
        self._features: set[str] = set()
        self._quotas: set[QuotaEntity] = set()
        self._next_producer_id = image.next_producer_id
        self._shared: dict[Any, Any] = {}
        """Ids and tuples that many partitions share, each kept once."""

    def replay(self, record: Any) -> None:
        """Apply one record."""
        apply_record = _REPLAY.get(type(record))
        if apply_record is None:
            raise ReplayError(f"unknown metadata record {type(record).__name__}")
        apply_record(self, record)

    def close(self) -> Iterator[None]:
        """Close what was opened for changing, a topic at a time; ``finish`` closes the rest."""
        while self._topics:
            topic_id, (topic, partitions) = self._topics.popitem()
            self._map("topics")[topic_id] = TopicImage(topic.name, topic.id, partitions.finish())
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
        )
        return after, delta

    def _map(self, name: str) -> Any:
        opened = self._open.get(name)
        if opened is None:
            opened = self._open[name] = getattr(self._before, name).mutate()
        return opened

    def _peek(self, name: str) -> Any:
        return self._open.get(name, getattr(self._before, name))

    # Topics and partitions

    def topic(self, record: r.TopicRecord) -> None:
        topic = TopicImage(record.name, record.topic_id)
        self._topics[topic.id] = (topic, topic.partitions.mutate())
        self._map("topics")[topic.id] = topic
        self._map("topic_ids")[topic.name] = topic.id
        self._created.add(topic.id)
        self._partitions[topic.id] = set()

    def remove_topic(self, record: r.RemoveTopicRecord) -> None:
        topic = self._map("topics").pop(record.topic_id, None)
        if topic is None:
            raise ReplayError("a topic that does not exist was removed")
        self._topics.pop(topic.id, None)
        self._partitions.pop(topic.id, None)
        if self._peek("topic_ids").get(topic.name) == topic.id:
            del self._map("topic_ids")[topic.name]
        if topic.id in self._created:
            self._created.discard(topic.id)
        else:
            self._deleted[topic.id] = self._before.topics[topic.id]
        resource = (TOPIC, topic.name)
        if resource in self._peek("configs"):
            del self._map("configs")[resource]
            self._configs.add(resource)

    def _opened_topic(self, topic_id: bytes) -> Any:
        opened = self._topics.get(topic_id)
        if opened is None:
            topic = self._peek("topics").get(topic_id)
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

    def _share(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Return a tuple of brokers or directory ids that is in memory once, however many share it.

        A directory's id is the same object as in its broker.
        """
        shared = self._shared
        if not shared:
            brokers = self._before.brokers.values()
            shared.update(
                (directory, directory) for broker in brokers for directory in broker.log_dirs
            )
        shared_tuple = tuple(shared.setdefault(value, value) for value in values)
        return shared.setdefault(shared_tuple, shared_tuple)  # type: ignore[no-any-return]

    def clear_elr(self, record: r.ClearElrRecord) -> None:
        if not record.topic_name:
            old = (i for i in self._before.topics if i not in self._deleted)
            named: list[bytes | None] = [*old, *self._created]
        else:
            named = [self._peek("topic_ids").get(record.topic_name)]
        for topic_id in named:
            if topic_id is None:
                raise ReplayError(f"ELR cleared of unknown topic {record.topic_name}")
            self._clear_elr(topic_id)

    def _clear_elr(self, topic_id: bytes) -> None:
        partitions = self._opened_topic(topic_id)
        for number in range(len(partitions)):
            partition = partitions[number]
            if partition.elr or partition.last_known_elr:
                cleared = r.PartitionChangeRecord(
                    topic_id=topic_id, eligible_leader_replicas=[], last_known_elr=[]
                )
                partitions[number] = apply_partition_change(partition, cleared)
                self._partitions.setdefault(topic_id, set()).add(number)

    # Nodes

    def register_broker(self, record: r.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._map("brokers")[record.broker_id] = BrokerImage(
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
        del self._map("brokers")[record.broker_id]
        self._brokers.add(record.broker_id)

    def change_registration(self, record: r.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker_of(record.broker_id, record.broker_epoch)
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["log_dirs"] = self._share(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
        self._change_broker(broker, **changes)

    def fence(self, record: r.FenceBrokerRecord) -> None:
        self._change_broker(self._broker_of(record.id, record.epoch), fenced=True)

    def unfence(self, record: r.UnfenceBrokerRecord) -> None:
        self._change_broker(self._broker_of(record.id, record.epoch), fenced=False)

    def _broker_of(self, broker_id: int, epoch: int) -> BrokerImage:
        broker: BrokerImage | None = self._peek("brokers").get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise ReplayError(f"broker {broker_id} is not registered with epoch {epoch}")
        return broker

    def _change_broker(self, broker: BrokerImage, **changes: Any) -> None:
        self._map("brokers")[broker.id] = attrs.evolve(broker, **changes)
        self._brokers.add(broker.id)

    def register_controller(self, record: r.RegisterControllerRecord) -> None:
        self._map("controllers")[record.controller_id] = ControllerImage(
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
            self._map("features")[record.name] = record.feature_level
        else:
            self._map("features").pop(record.name, None)

    def config(self, record: r.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        values = self._peek("configs").get(resource, Map())
        if record.value is None:
            values = values.delete(record.name) if record.name in values else values
        else:
            values = values.set(record.name, record.value)
        if values:
            self._map("configs")[resource] = values
        else:
            self._map("configs").pop(resource, None)
        self._configs.add(resource)

    def client_quota(self, record: r.ClientQuotaRecord) -> None:
        pairs = ((part.entity_type, part.entity_name) for part in record.entity)
        entity = tuple(sorted(pairs, key=lambda pair: pair[0]))
        values = self._peek("quotas").get(entity, Map())
        if not record.remove:
            values = values.set(record.key, record.value)
        elif record.key in values:
            values = values.delete(record.key)
        if values:
            self._map("quotas")[entity] = values
        else:
            self._map("quotas").pop(entity, None)
        self._quotas.add(entity)

    def producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    def acl(self, record: r.AccessControlEntryRecord) -> None:
        self._map("acls")[record.id] = record

    def remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        self._map("acls").pop(record.id, None)

    def scram(self, record: r.UserScramCredentialRecord) -> None:
        self._map("scram")[record.mechanism, record.name] = record

    def remove_scram(self, record: r.RemoveUserScramCredentialRecord) -> None:
        self._map("scram").pop((record.mechanism, record.name), None)

    def token(self, record: r.DelegationTokenRecord) -> None:
        self._map("tokens")[record.token_id] = record

    def remove_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        self._map("tokens").pop(record.token_id, None)

    def ignore(self, record: Any) -> None:
        """Ignore a record that is only for readers of the log, or of a migration from ZooKeeper."""


def partition_of(
    record: r.PartitionRecord, share: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple
) -> PartitionImage:
    """Convert a PartitionRecord to an image; ``share`` makes its tuples."""
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
    share: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple,
) -> PartitionImage:
    """Return a partition after a change. A named leader begins an epoch, even if it led before."""
    changes: dict[str, Any] = {
        attribute: share(value)
        for attribute, value in (
            ("replicas", record.replicas),
            ("directories", record.directories),
            ("isr", record.isr),
            ("removing", record.removing_replicas),
            ("adding", record.adding_replicas),
            ("elr", record.eligible_leader_replicas),
            ("last_known_elr", record.last_known_elr),
        )
        if value is not None
    }
    if record.leader != KEEP_LEADER:
        changes["leader"] = record.leader
        changes["leader_epoch"] = partition.leader_epoch + 1
    if record.leader_recovery_state >= 0:
        changes["recovering"] = record.leader_recovery_state == 1
    return attrs.evolve(partition, partition_epoch=partition.partition_epoch + 1, **changes)


def _endpoints(listed: list[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in listed)


def _features(listed: list[Any]) -> dict[str, LevelRange]:
    return {f.name: LevelRange(f.min_supported_version, f.max_supported_version) for f in listed}


_REPLAY: Final[dict[type, Callable[[ImageChange, Any], None]]] = {
    r.AbortTransactionRecord: ImageChange.ignore,
    r.AccessControlEntryRecord: ImageChange.acl,
    r.BeginTransactionRecord: ImageChange.ignore,
    r.BrokerRegistrationChangeRecord: ImageChange.change_registration,
    r.ClearElrRecord: ImageChange.clear_elr,
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
    image: MetadataImage, records: Iterable[Any], applied: Applied | None = None
) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image after ``records``, and the difference."""
    change = ImageChange(image)
    for record in records:
        change.replay(record)
    return change.finish(applied or image.applied)
