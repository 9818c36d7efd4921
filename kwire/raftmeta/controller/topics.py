"""Creation, deletion and growth of topics; an error in one topic does not affect the others.

Deciders pause after each topic, and within a topic after every :data:`STEP_PARTITIONS` partitions.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from kwire.codec.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from kwire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError
from kwire.configs.describe import describe_new_topic
from kwire.configs.resource_types import TOPIC
from kwire.configs.topic import check_topic_config
from kwire.errors import KafkaError
from kwire.raftmeta.controller.configs import check_lengths
from kwire.raftmeta.controller.mutation_quota import Permit
from kwire.raftmeta.controller.placement import check_assignment, place_replicas
from kwire.raftmeta.controller.state import (
    USER_RECORDS_MAX,
    ControllerDecision,
    ControllerState,
    clear_elr,
)
from kwire.raftmeta.metadata.image import PartitionImage, TopicImage
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.metadata.image_records import partition_record
from kwire.raftmeta.metadata.topic_names import check_topic_name
from kwire.types import METADATA_TOPIC, NO_LEADER, ZERO_UUID

Creatable = CreateTopicsRequest.CreatableTopic
Created = CreateTopicsResponse.CreatableTopicResult
Deleted = DeleteTopicsResponse.DeletableTopicResult

Shown = dict[tuple[tuple[str, str], ...], list[Created.CreatableTopicConfigs]]
"""Requested settings to their form in the answer, cached because topics often share them."""

PARTITIONS_MAX: Final = 10_000
"""The number of partitions that one request may create, as in Kafka."""
STEP_PARTITIONS: Final = 8
"""Partitions of a topic between two pauses of a decision; making their records is fast."""
PLACED_AT_ONCE: Final = 128
"""Partitions placed between two pauses; each placement first sorts all brokers."""


def decide_create_topics(
    state: ControllerState,
    request: CreateTopicsRequest,
    *,
    permit: Permit | None = None,
) -> Steps[ControllerDecision[CreateTopicsResponse]]:
    """Create topics; reject them all if they have too many partitions in total."""
    _start_over(permit)
    _check_total(_asked_partitions(state, item) for item in request.topics)
    records: list[r.MetadataRecord] = []
    results: list[Created] = []
    shown: Shown = {}
    created_names: set[str] = set()
    placement = state.placement
    for item in request.topics:
        try:
            check_topic_name(item.name)
            if item.name == METADATA_TOPIC:
                raise errors.InvalidRequest(
                    f"Creation of internal topic {METADATA_TOPIC} is prohibited."
                )
            if item.name in state.image.topic_ids or item.name in created_names:
                raise errors.TopicAlreadyExists(f"Topic '{item.name}' already exists.")
            other = state.colliding(item.name)
            if other is not None:
                raise errors.InvalidTopicException(
                    f"Topic '{item.name}' collides with existing topic: {other}"
                )
            topic_records, result = yield from _create(state, item, shown, placement)
            placement += not item.assignments
            if permit is not None:
                permit.take(result.num_partitions)
        except KafkaError as error:
            result = Created(name=item.name, error_code=error.code, error_message=error.text)
        else:
            records += topic_records
            created_names.add(item.name)
        if len(records) > USER_RECORDS_MAX:
            raise errors.PolicyViolation("Unable to perform excessively large batch operation.")
        results.append(result)
        yield
    reply = CreateTopicsResponse(topics=results)
    effect = partial(state.place_from, placement)
    return ControllerDecision(
        () if request.validate_only else tuple(records), reply, effects=(effect,)
    )


def _start_over(permit: Permit | None) -> None:
    """Return the tokens of a decision that was not written, so that its changes count once."""
    if permit is not None:
        permit.start_over()


def _asked_partitions(state: ControllerState, item: Creatable) -> int:
    if item.assignments:
        return len(item.assignments)
    if item.num_partitions == -1:
        return state.cluster_config().num_partitions
    return max(item.num_partitions, 0)


def _check_total(counts: Iterable[int]) -> None:
    """Reject a request that would occupy the controller for too long."""
    if sum(counts) > PARTITIONS_MAX:
        raise errors.PolicyViolation("Excessively large number of partitions per request.")


def _create(
    state: ControllerState, item: Creatable, shown: Shown, placement: int
) -> Steps[tuple[list[r.MetadataRecord], Created]]:
    configs = _creation_configs(state, item)
    if item.assignments:
        partitions = yield from _assign(state, item)
    else:
        partitions = yield from _place_partitions(state, item, placement)
    topic_id = state.new_id()
    settings = [
        r.ConfigRecord(resource_type=TOPIC, resource_name=item.name, name=name, value=value)
        for name, value in configs.items()
    ]
    records: list[r.MetadataRecord] = [
        r.TopicRecord(name=item.name, topic_id=topic_id),
        *settings,
    ]
    records += yield from clear_elr(state, settings)
    records += yield from _partition_records(topic_id, 0, partitions)
    key = tuple(sorted(configs.items()))
    if key not in shown:
        shown[key] = _describe_configs(configs, state.cluster_config())
    result = Created(
        name=item.name,
        topic_id=topic_id,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=shown[key],
    )
    return records, result


def _partition_records(
    topic_id: bytes, first: int, partitions: list[PartitionImage]
) -> Steps[list[r.PartitionRecord]]:
    records = []
    for number, partition in enumerate(partitions, first):
        records.append(partition_record(topic_id, number, partition))
        if not number % STEP_PARTITIONS:
            yield
    return records


def _describe_configs(
    configs: dict[str, str], broker: BrokerConfig
) -> list[Created.CreatableTopicConfigs]:
    return [
        Created.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in describe_new_topic(configs, broker)
    ]


def _creation_configs(state: ControllerState, item: Creatable) -> dict[str, str]:
    nulls = [config.name for config in item.configs if config.value is None]
    if nulls:
        raise errors.InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    configs = {c.name: c.value for c in item.configs if c.value is not None}
    try:
        check_lengths(configs)
        check_topic_config(configs, state.cluster_config())
    except ConfigError as error:
        raise errors.InvalidConfig(str(error)) from None
    return configs


def _assign(state: ControllerState, item: Creatable) -> Steps[list[PartitionImage]]:
    """Return the partitions that the request assigns to brokers."""
    prefix = "A manual partition assignment was specified, but"
    if item.replication_factor != -1:
        raise errors.InvalidRequest(f"{prefix} replication factor was not set to -1.")
    if item.num_partitions != -1:
        raise errors.InvalidRequest(f"{prefix} numPartitions was not set to -1.")
    partitions: dict[int, PartitionImage] = {}
    factor: int | None = None
    for assignment in item.assignments:
        number, brokers = assignment.partition_index, assignment.broker_ids
        if number in partitions:
            raise errors.InvalidReplicaAssignment(
                f"Found multiple manual partition assignments for partition {number}"
            )
        check_assignment(state.image.brokers, brokers, factor)
        factor = len(brokers)
        partitions[number] = assigned_partition(state, number, brokers)
        if not len(partitions) % STEP_PARTITIONS:
            yield
    if sorted(partitions) != list(range(len(partitions))):
        raise errors.InvalidReplicaAssignment(
            "partitions should be a consecutive 0-based integer sequence"
        )
    return [partitions[number] for number in range(len(partitions))]


def assigned_partition(state: ControllerState, number: int, brokers: list[int]) -> PartitionImage:
    """Return a new partition on the given brokers."""
    partition = new_partition(state, brokers)
    if not partition.isr:
        raise errors.InvalidReplicaAssignment(
            "All brokers specified in the manual partition assignment for partition "
            f"{number} are fenced or in controlled shutdown."
        )
    return partition


def new_partition(state: ControllerState, brokers: Iterable[int]) -> PartitionImage:
    """Return a new partition: its active brokers are in sync, and the first of them leads."""
    replicas = tuple(brokers)
    isr = tuple(broker for broker in replicas if state.is_active(broker))
    return PartitionImage(
        replicas=replicas,
        directories=tuple(map(state.default_directory, replicas)),
        isr=isr,
        leader=isr[0] if isr else NO_LEADER,
    )


def _place_partitions(
    state: ControllerState, item: Creatable, placement: int
) -> Steps[list[PartitionImage]]:
    """Return the partitions, placed on brokers that the controller chooses."""
    count, factor = item.num_partitions, item.replication_factor
    if factor < -1 or factor == 0:
        raise errors.InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if count < -1 or count == 0:
        raise errors.InvalidPartitions(
            "Number of partitions was set to an invalid non-positive value."
        )
    config = state.cluster_config()
    count = config.num_partitions if count == -1 else count
    factor = config.default_replication_factor if factor == -1 else factor
    try:
        partitions = yield from _striped_partitions(state, placement, 0, count, factor)
    except errors.InvalidReplicationFactor as error:
        raise _placement_error(factor, error.text or "") from None
    _check_led(partitions, factor)
    return partitions


def _placement_error(factor: int, reason: str) -> KafkaError:
    text = f"Unable to replicate the partition {factor} time(s): {reason}"
    return errors.InvalidReplicationFactor(text)


def _check_led(partitions: list[PartitionImage], factor: int) -> None:
    """Reject partitions that only stopping and fenced brokers would have."""
    if not all(partition.isr for partition in partitions):
        raise _placement_error(
            factor, "All brokers are currently fenced or in controlled shutdown."
        )


def _striped_partitions(
    state: ControllerState, start: int, first: int, count: int, factor: int
) -> Steps[list[PartitionImage]]:
    """Return new partitions, striped over the brokers; raises InvalidReplicationFactor."""
    partitions: list[PartitionImage] = []
    by_replicas: dict[tuple[int, ...], PartitionImage] = {}
    for placed in range(0, count, PLACED_AT_ONCE):
        replica_lists = place_replicas(
            state.image.brokers.values(),
            start=start,
            first=first + placed,
            count=min(PLACED_AT_ONCE, count - placed),
            replicas=factor,
        )
        for replicas in map(tuple, replica_lists):
            if replicas not in by_replicas:
                by_replicas[replicas] = new_partition(state, replicas)
            partitions.append(by_replicas[replicas])
        yield
    return partitions


def decide_delete_topics(
    state: ControllerState,
    request: DeleteTopicsRequest,
    *,
    permit: Permit | None = None,
) -> Steps[ControllerDecision[DeleteTopicsResponse]]:
    """Delete topics, given by name or by id; a topic given by both is kept, with one error."""
    _start_over(permit)
    if not state.config.delete_topic_enable:
        raise errors.TopicDeletionDisabled
    keys: Counter[tuple[str | None, bytes]] = Counter()
    records = []
    responses = []
    for item in request.topics:
        error_text = _naming_error(item)
        if error_text is None:
            keys[item.name, item.topic_id] += 1
        else:
            responses.append(_refuse(item, error_text))
        yield
    for (name, topic_id), count in keys.items():
        topic, error = _deletable(state, name, topic_id)
        if count > 1:
            key_name = "id" if name is None else "name"
            topic, error = None, errors.InvalidRequest(f"Duplicate topic {key_name}.")
        elif topic is not None and name is None and keys[topic.name, ZERO_UUID] == 1:
            continue  # The result for the name has the id, too.
        elif topic is not None and name is not None and (None, topic.id) in keys:
            error = errors.InvalidRequest(
                "The provided topic name maps to an ID that was already supplied."
            )
        elif topic is not None:
            error = _refusal(permit, len(topic.partitions))
        if error is None and topic is not None:
            records.append(r.RemoveTopicRecord(topic_id=topic.id))
        responses.append(
            Deleted(
                name=name if topic is None else topic.name,
                topic_id=topic_id if topic is None else topic.id,
                error_code=errors.NONE if error is None else error.code,
                error_message=None if error is None else error.text,
            )
        )
        yield
    return ControllerDecision(tuple(records), DeleteTopicsResponse(responses=responses))


def _refusal(permit: Permit | None, partitions: int) -> KafkaError | None:
    try:
        if permit is not None:
            permit.take(partitions)
    except KafkaError as error:
        return error
    return None


def _naming_error(item: DeleteTopicsRequest.DeleteTopicState) -> str | None:
    """Return the error if a topic is given by both name and id, or by neither."""
    if item.name is None and item.topic_id == ZERO_UUID:
        return "Neither topic name nor id were specified."
    if item.name is not None and item.topic_id != ZERO_UUID:
        return "You may not specify both topic name and topic id."
    return None


def _refuse(item: DeleteTopicsRequest.DeleteTopicState, error_text: str) -> Deleted:
    return Deleted(
        name=item.name,
        topic_id=item.topic_id,
        error_code=errors.InvalidRequest.code,
        error_message=error_text,
    )


def _deletable(
    state: ControllerState, name: str | None, topic_id: bytes
) -> tuple[TopicImage | None, KafkaError | None]:
    if name is not None:
        topic = state.image.topic(name)
        return topic, _unknown_name() if topic is None else None
    topic = state.image.topics.get(topic_id)
    return topic, errors.UnknownTopicId(_UNKNOWN_ID) if topic is None else None


_UNKNOWN_ID: Final = "This server does not host this topic ID."


def _unknown_name() -> KafkaError:
    return errors.UnknownTopicOrPartition("This server does not host this topic-partition.")


def decide_create_partitions(
    state: ControllerState,
    request: CreatePartitionsRequest,
    *,
    permit: Permit | None = None,
) -> Steps[ControllerDecision[CreatePartitionsResponse]]:
    """Add partitions to topics."""
    _start_over(permit)
    names = Counter(item.name for item in request.topics)
    _check_total(_more_partitions(state, item) for item in request.topics)
    records: list[r.MetadataRecord] = []
    results = []
    for item in {item.name: item for item in request.topics}.values():
        code, text = errors.NONE, None
        try:
            if names[item.name] > 1:
                raise errors.InvalidRequest("Duplicate topic name.")
            topic_records = yield from _grow(state, item)
            if permit is not None:
                permit.take(len(topic_records))
            records += topic_records
        except KafkaError as error:
            code, text = error.code, error.text
        results.append(
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=item.name, error_code=code, error_message=text
            )
        )
        yield
    reply = CreatePartitionsResponse(results=results)
    return ControllerDecision(() if request.validate_only else tuple(records), reply)


def _more_partitions(
    state: ControllerState, item: CreatePartitionsRequest.CreatePartitionsTopic
) -> int:
    topic = state.image.topic(item.name)
    return 0 if topic is None else max(item.count - len(topic.partitions), 0)


def _grow(
    state: ControllerState, item: CreatePartitionsRequest.CreatePartitionsTopic
) -> Steps[list[r.PartitionRecord]]:
    topic = state.image.topic(item.name)
    if topic is None:
        raise errors.UnknownTopicOrPartition
    partition_count = len(topic.partitions)
    if item.count == partition_count:
        raise errors.InvalidPartitions(f"Topic already has {partition_count} partition(s).")
    if item.count < partition_count:
        raise errors.InvalidPartitions(
            f"The topic {item.name} currently has {partition_count} partition(s); {item.count} "
            "would not be an increase."
        )
    additional_count = item.count - partition_count
    first = topic.partitions[0]
    factor = len(first.replicas) - len(first.removing)  # Of the target, during a reassignment.
    if item.assignments is None:
        partitions = yield from _striped_partitions(
            state, state.stripe_of(first), partition_count, additional_count, factor
        )
        _check_led(partitions, factor)
    else:
        if len(item.assignments) != additional_count:
            raise errors.InvalidReplicaAssignment(
                f"Attempted to add {additional_count} additional partition(s), but only "
                f"{len(item.assignments)} assignment(s) were specified."
            )
        partitions = []
        for index, assignment in enumerate(item.assignments):
            check_assignment(state.image.brokers, assignment.broker_ids, factor)
            partitions.append(
                assigned_partition(state, partition_count + index, assignment.broker_ids)
            )
            if not index % STEP_PARTITIONS:
                yield
    return (yield from _partition_records(topic.id, partition_count, partitions))
