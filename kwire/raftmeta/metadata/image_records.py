"""An image as records: the content of a snapshot, in the order in which Kafka writes it.

Features come first, with ``metadata.version`` before the others because it decides how to read the
rest. Then come nodes, topics (each followed by its partitions), configs, quotas, producer ids,
ACLs, SCRAM credentials and tokens. Replaying the records into an empty image gives the same image.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.metadata.image import (
    BrokerImage,
    ControllerImage,
    LevelRange,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
)
from kwire.raftmeta.storage.levels import METADATA_VERSION
from kwire.security.acls import Acl

K = TypeVar("K")
E = TypeVar(
    "E", r.RegisterBrokerRecord.BrokerEndpoint, r.RegisterControllerRecord.ControllerEndpoint
)
F = TypeVar("F", r.RegisterBrokerRecord.BrokerFeature, r.RegisterControllerRecord.ControllerFeature)


class Address(Protocol):
    """An endpoint with its security protocol, from an image, a request or a record."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def security_protocol(self) -> int: ...


def image_records(image: MetadataImage) -> Iterator[r.MetadataRecord]:
    """Yield all records of an image."""
    yield from _features(image)
    for _, broker in sorted(image.brokers.items()):
        yield broker_record(broker)
    for _, controller in sorted(image.controllers.items()):
        yield controller_record(controller)
    for _, topic_id in sorted(image.topic_ids.items()):
        topic = image.topics[topic_id]
        yield r.TopicRecord(name=topic.name, topic_id=topic.id)
        for number, partition in sorted(topic.partitions.items()):
            yield partition_record(topic.id, number, partition)
    for (kind, resource), values in sorted(image.configs.items(), key=_key_of):
        for name, value in sorted(values.items()):
            yield r.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
    yield from _quotas(image)
    if image.next_producer_id >= 0:
        yield r.ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )
    for acl_id, acl in sorted(image.acls.items(), key=_key_of):
        yield acl_record(acl_id, acl)
    yield from (record for _, record in sorted(image.scram.items(), key=_key_of))
    yield from (record for _, record in sorted(image.tokens.items(), key=_key_of))


def _key_of(item: tuple[K, object]) -> K:
    """Return the sort key of a map's entry, so that equal images give equal snapshots."""
    return item[0]


def _named_parts(item: tuple[QuotaEntity, object]) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in item[0]]


def _features(image: MetadataImage) -> Iterator[r.FeatureLevelRecord]:
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield r.FeatureLevelRecord(name=name, feature_level=image.features[name])


def _quotas(image: MetadataImage) -> Iterator[r.ClientQuotaRecord]:
    for entity, values in sorted(image.quotas.items(), key=_named_parts):
        for key, value in sorted(values.items()):
            yield r.ClientQuotaRecord(
                entity=[
                    r.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ],
                key=key,
                value=value,
                remove=False,
            )


def partition_record(topic_id: bytes, number: int, partition: PartitionImage) -> r.PartitionRecord:
    """Return the record of a partition's whole state."""
    return r.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=int(partition.recovering),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def broker_record(broker: BrokerImage) -> r.RegisterBrokerRecord:
    """Return the record of a broker's whole state."""
    cordoned = broker.cordoned_log_dirs
    return r.RegisterBrokerRecord(
        broker_id=broker.id,
        is_migrating_zk_broker=broker.is_migrating_zk_broker,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=endpoint_structures(r.RegisterBrokerRecord.BrokerEndpoint, broker.endpoints),
        features=_levels(r.RegisterBrokerRecord.BrokerFeature, broker.features),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def controller_record(controller: ControllerImage) -> r.RegisterControllerRecord:
    """Return the record of a controller's whole state."""
    record = r.RegisterControllerRecord
    return record(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=endpoint_structures(record.ControllerEndpoint, controller.endpoints),
        features=_levels(record.ControllerFeature, controller.features),
    )


def acl_record(acl_id: bytes, acl: Acl) -> r.AccessControlEntryRecord:
    """Return the record of an ACL."""
    return r.AccessControlEntryRecord(id=acl_id, **acl._asdict())


def endpoint_structures(kind: type[E], endpoints: Iterable[Address]) -> list[E]:
    """Convert a node's endpoints to the structures of its record."""
    return [
        kind(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    ]


def _levels(kind: type[F], features: Mapping[str, LevelRange]) -> list[F]:
    return [
        kind(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in features.items()
    ]
