"""The decisions on requests about partitions: ISR, elections, reassignments, directories.

Rules: each partition is decided on its own, so an error fails only its own answer. All partitions
of a request are decided from the same state, so a partition that is named twice is rejected.
Deciders set the requested values on a :class:`PartitionChangeBuilder`, which chooses the leader.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kwire import errors
from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kwire.codec.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kwire.codec.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from kwire.codec.messages.metadata_records import MetadataRecord, PartitionChangeRecord
from kwire.errors import KafkaError
from kwire.raftmeta.controller.leader_updates import elect_for_leaderless
from kwire.raftmeta.controller.partition_change_builder import Election, PartitionChangeBuilder
from kwire.raftmeta.controller.placement import check_assignment
from kwire.raftmeta.controller.state import (
    ControllerDecision,
    ControllerState,
    Effect,
    Outcome,
    check_bound,
    outcome,
)
from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.raftmeta.metadata.image_change import KEEP_LEADER, apply_partition_change
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.types import NO_LEADER, DirectoryId, TopicIdPartition, is_directory

IsrData = AlterPartitionRequest.TopicData.PartitionData
IsrTopic = AlterPartitionResponse.TopicData
IsrAnswer = AlterPartitionResponse.TopicData.PartitionData
ElectedTopic = ElectLeadersResponse.ReplicaElectionResult
Reassigned = AlterPartitionReassignmentsResponse.ReassignableTopicResponse

PREFERRED: Final = 0
UNCLEAN: Final = 1
ELECTED_MAX: Final = 1000
"""Preferred leaders elected by one decision of the periodic task."""


def decide_alter_partition(
    state: ControllerState, request: AlterPartitionRequest
) -> Steps[ControllerDecision[AlterPartitionResponse]]:
    """Change the ISR of partitions as their leader requests."""
    state.broker(request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics = []
    decided_keys: set[TopicIdPartition] = set()
    for item in request.topics:
        answers = []
        for data in item.partitions:
            key = (item.topic_id, data.partition_index)
            if key in decided_keys:
                answers.append(_isr_refused(data, errors.InvalidRequest.code))
            else:
                answers.append(_alter_isr(state, request.broker_id, item.topic_id, data, records))
            decided_keys.add(key)
            yield
        topics.append(IsrTopic(topic_id=item.topic_id, partitions=answers))
    return ControllerDecision(tuple(records), AlterPartitionResponse(topics=topics))


def _isr_refused(data: IsrData, code: int) -> IsrAnswer:
    return IsrAnswer(
        partition_index=data.partition_index,
        error_code=code,
        leader_id=0,
        leader_epoch=0,
        partition_epoch=0,
    )


def _alter_isr(
    state: ControllerState,
    broker: int,
    topic_id: bytes,
    data: IsrData,
    records: list[MetadataRecord],
) -> IsrAnswer:
    try:
        topic = state.image.topics.get(topic_id)
        if topic is None:
            raise errors.UnknownTopicId
        partition = topic.partitions.get(data.partition_index)
        _check_isr(state, broker, partition, data)
        assert partition is not None
        change = state.change(topic_id, data.partition_index)
        change.isr = [member.broker_id for member in data.new_isr_with_epochs]
        change.recovering = data.leader_recovery_state == 1
        change.allow_unclean()
        record = change.build()
        if record is not None:
            records.append(record)
            partition = apply_partition_change(partition, record)
            if record.leader not in (broker, KEEP_LEADER):
                raise errors.NewLeaderElected
    except KafkaError as error:
        return _isr_refused(data, error.code)
    return IsrAnswer(
        partition_index=data.partition_index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=int(partition.recovering),
        partition_epoch=partition.partition_epoch,
    )


def _check_isr(
    state: ControllerState, broker: int, partition: PartitionImage | None, data: IsrData
) -> None:
    """Validate a leader's ISR in Kafka's order; raise NotController if it has newer epochs."""
    if partition is None:
        raise errors.UnknownTopicOrPartition
    if data.leader_epoch > partition.leader_epoch:
        raise errors.NotController
    if data.partition_epoch > partition.partition_epoch:
        raise errors.NotController
    if data.leader_epoch < partition.leader_epoch:
        raise errors.FencedLeaderEpoch
    if broker != partition.leader:
        raise errors.InvalidRequest
    if data.partition_epoch < partition.partition_epoch:
        raise errors.InvalidUpdateVersion
    members = [member.broker_id for member in data.new_isr_with_epochs]
    if not set(members) <= set(partition.replicas) or len(set(members)) != len(members):
        raise errors.InvalidRequest
    recovering = data.leader_recovery_state == 1
    if broker not in members or (recovering and (len(members) > 1 or not partition.recovering)):
        raise errors.InvalidRequest
    for member in data.new_isr_with_epochs:
        broker_image = state.image.brokers.get(member.broker_id)
        if broker_image is None or not broker_image.is_active:
            raise errors.IneligibleReplica
        if member.broker_epoch not in (-1, broker_image.epoch):
            raise errors.IneligibleReplica
    _check_directories(state, partition, set(members) - set(partition.isr))


def _check_directories(
    state: ControllerState, partition: PartitionImage, joining: Iterable[int]
) -> None:
    """Reject a replica that could not lead, until its broker has reported its new directory.

    Otherwise it might become the last in-sync replica, and lead with an old log once the directory
    that the metadata have is back.
    """
    for replica in joining:
        directory = partition.directory(replica)
        if directory is not None and not state.has_online(replica, directory):
            raise errors.IneligibleReplica


def decide_elect_leaders(
    state: ControllerState, request: ElectLeadersRequest
) -> Steps[ControllerDecision[ElectLeadersResponse]]:
    """Elect leaders on request; for all partitions if none are named."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise errors.InvalidRequest(f"Unknown election type {request.election_type}")
    is_for_all = request.topic_partitions is None
    named = request.topic_partitions or ()
    requested: Iterable[tuple[str, Iterable[int]]] = (
        ((t.name, range(len(t.partitions))) for t in state.image.topics.values())
        if is_for_all
        else ((topic.topic, topic.partitions) for topic in named)
    )
    records: list[MetadataRecord] = []
    results = []
    counts = Counter((topic.topic, number) for topic in named for number in topic.partitions)
    for name, numbers in requested:
        partitions = []
        for number in numbers:
            if counts[name, number] > 1:
                result = _TWICE
            else:
                result = _elect(state, name, number, request.election_type, records)
            yield
            if is_for_all and result.code == errors.ElectionNotNeeded.code:
                continue
            partitions.append(
                ElectedTopic.PartitionResult(
                    partition_id=number, error_code=result.code, error_message=result.text
                )
            )
        results.append(ElectedTopic(topic=name, partition_result=partitions))
    check_bound(records)
    return ControllerDecision(
        tuple(records), ElectLeadersResponse(replica_election_results=results)
    )


def _elect(
    state: ControllerState,
    name: str,
    number: int,
    election_type: int,
    records: list[MetadataRecord],
) -> Outcome:
    topic = state.image.topic(name)
    if topic is None:
        return outcome(errors.UnknownTopicOrPartition(f"No such topic as {name}"))
    partition = topic.partitions.get(number)
    if partition is None:
        return outcome(errors.UnknownTopicOrPartition(f"No such partition as {name}-{number}"))
    if election_type == PREFERRED and partition.leader == partition.preferred_leader:
        return Outcome(errors.ElectionNotNeeded.code, _NOT_NEEDED)
    if election_type == UNCLEAN and partition.leader != NO_LEADER:
        return Outcome(errors.ElectionNotNeeded.code, _NOT_NEEDED)
    change = state.change(topic.id, number)
    change.election = Election.PREFERRED if election_type == PREFERRED else Election.UNCLEAN
    record = change.build()
    if record is None and election_type == PREFERRED:
        return Outcome(errors.PreferredLeaderNotAvailable.code, _NO_PREFERRED)
    if record is None:
        return Outcome(errors.EligibleLeadersNotAvailable.code, _NO_ELIGIBLE)
    records.append(record)
    return Outcome()


_NOT_NEEDED: Final = "Leader election not needed for topic partition."
_NO_PREFERRED: Final = "The preferred leader was not available."
_NO_ELIGIBLE: Final = "Eligible topic partition leaders are not available."


def decide_rebalance_leaders(
    state: ControllerState, request: None
) -> Steps[ControllerDecision[bool]]:
    """Move leadership back to preferred leaders; the reply says whether more remain."""
    del request
    records: list[MetadataRecord] = []
    for broker_id, broker in sorted(state.image.brokers.items()):
        if not broker.is_active:
            continue
        for topic_id, number in state.index.led_by_others(broker_id):
            yield
            partition = state.image.topics[topic_id].partitions[number]
            if broker_id not in partition.isr and broker_id not in partition.elr:
                continue
            if len(records) >= ELECTED_MAX:
                return ControllerDecision(tuple(records), True)
            change = state.change(topic_id, number)
            change.election = Election.PREFERRED
            if (record := change.build()) is not None:
                records.append(record)
    return ControllerDecision(tuple(records), False)


def decide_elect_unclean(state: ControllerState, request: None) -> ControllerDecision[bool]:
    """Elect leaders for leaderless partitions, whose topics may now allow unclean leaders.

    The first slice of partitions is decided at once; the rest are queued.
    """
    del request
    effects: list[Effect] = []
    records = elect_for_leaderless(state, effects)
    return ControllerDecision(tuple(records), False, effects=tuple(effects))


def decide_reassign(
    state: ControllerState, request: AlterPartitionReassignmentsRequest
) -> Steps[ControllerDecision[AlterPartitionReassignmentsResponse]]:
    """Begin or cancel reassignments of partitions."""
    if not request.topics:
        return ControllerDecision((), AlterPartitionReassignmentsResponse(error_message=""))
    records: list[MetadataRecord] = []
    responses = []
    counts = Counter((t.name, p.partition_index) for t in request.topics for p in t.partitions)
    for topic in request.topics:
        answers = []
        for item in topic.partitions:
            if counts[topic.name, item.partition_index] > 1:
                result = _TWICE
            else:
                result = _reassign(state, request, topic.name, item, records)
            yield
            answers.append(
                Reassigned.ReassignablePartitionResponse(
                    partition_index=item.partition_index,
                    error_code=result.code,
                    error_message=result.text,
                )
            )
        responses.append(Reassigned(name=topic.name, partitions=answers))
    check_bound(records)
    reply = AlterPartitionReassignmentsResponse(
        responses=responses,
        allow_replication_factor_change=request.allow_replication_factor_change,
    )
    return ControllerDecision(tuple(records), reply)


def _reassign(
    state: ControllerState,
    request: AlterPartitionReassignmentsRequest,
    name: str,
    item: AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition,
    records: list[MetadataRecord],
) -> Outcome:
    try:
        topic = state.image.topic(name)
        if topic is None:
            raise errors.UnknownTopicOrPartition(f"Unable to find a topic named {name}.")
        number = item.partition_index
        partition = topic.partitions.get(number)
        if partition is None:
            raise errors.UnknownTopicOrPartition(f"Unable to find partition {name}:{number}.")
        change = state.change(topic.id, number)
        if item.replicas is None:
            _revert(change, name)
        else:
            check_assignment(state.image.brokers, item.replicas)
            target_count = len(set(partition.replicas) - set(partition.removing))
            if not request.allow_replication_factor_change and len(item.replicas) != target_count:
                raise errors.InvalidReplicationFactor(
                    f"The replication factor is changed from {target_count} to {len(item.replicas)}"
                )
            _retarget(change, item.replicas)
        if (record := change.build()) is not None:
            records.append(record)
    except KafkaError as error:
        return outcome(error)
    return Outcome()


_TWICE: Final = Outcome(errors.InvalidRequest.code, "The partition is named more than once.")
"""Rejected because all changes are decided from the same state, so two changes would conflict."""


def _retarget(change: PartitionChangeBuilder, target: list[int]) -> None:
    """Keep old and new replicas side by side until the new ones are in sync.

    Replicas that an earlier reassignment was adding also stay until the end: they may be the only
    ones in sync.
    """
    current = set(change.partition.replicas)
    change.adding = sorted(set(target) - (current - set(change.partition.adding)))
    change.removing = sorted(current - set(target))
    change.replicas = target + change.removing


def _revert(change: PartitionChangeBuilder, name: str) -> None:
    """Restore the replicas from before the reassignment began."""
    old = change.partition
    if not old.is_reassigning:
        raise errors.NoReassignmentInProgress
    change.adding, change.removing = [], []
    change.replicas = [replica for replica in old.replicas if replica not in old.adding]
    change.isr = [replica for replica in old.isr if replica not in old.adding]
    change.allow_unclean()
    # Without a leader, the records may be on eligible replicas only, or on the last known leader.
    candidates = {*old.isr, *old.elr} or {*old.last_known_elr}
    if not candidates or candidates - set(old.adding):
        return  # Another replica may lead, or none could before either.
    if not change.unclean:
        raise errors.InvalidReplicaAssignment(
            f"Unable to revert partition assignment for {name}:{change.number} because it would "
            "require an unclean leader election."
        )
    change.isr = [change.replicas[0]]
    change.recovering = True


def _assign_directory(
    change: PartitionChangeBuilder, broker: BrokerImage, directory: bytes
) -> list[PartitionChangeRecord]:
    """Return the record that moves a broker's replica to a directory; none if nothing changes."""
    partition = change.partition
    if _is_known_empty(partition, broker.id) or _may_return(change, broker, directory):
        return []
    change.directories[broker.id] = directory
    if _has_lost_log(partition, broker, directory):
        change.lost_log = broker.id
        change.allow_unclean()
    if not broker.has_online(directory):
        change.isr = [member for member in change.isr if member != broker.id]
    record = change.build()
    return [] if record is None else [record]


def _has_lost_log(partition: PartitionImage, broker: BrokerImage, directory: bytes) -> bool:
    """Return whether a replica starts with an empty log, because its former directory is gone.

    A replica keeps its log if its directory is online or was not recorded, or if the new directory
    ``directory`` is offline. If the old directory is LOST, only the broker can see whether the log
    was in another one; if it was not, the broker first reports the replica as UNASSIGNED.
    """
    old = partition.directory(broker.id)
    if old == DirectoryId.LOST:
        return directory == DirectoryId.UNASSIGNED
    if old is None or not is_directory(old) or broker.has_online(old):
        return False
    return broker.has_online(directory)


def _may_return(change: PartitionChangeBuilder, broker: BrokerImage, directory: bytes) -> bool:
    """Return whether the records in a missing directory are needed once it is back.

    While there is no leader, the replica keeps its place in that directory, so that it can lead
    again with its log. An unclean election ends that. The broker reports the new directory again
    when the replica's role changes.
    """
    old = change.partition.directory(broker.id)
    if change.partition.leader != NO_LEADER or change.unclean or directory == DirectoryId.LOST:
        return False
    return old is not None and is_directory(old) and not broker.has_online(old)


def _is_known_empty(partition: PartitionImage, broker: int) -> bool:
    """Return whether a replica has lost its log and, without a leader, copied nothing since.

    Its directory stays undecided until there is a leader, so that an unclean election prefers other
    replicas. The broker reports the directory again when the replica's role changes.
    """
    return (
        partition.leader == NO_LEADER
        and partition.directory(broker) == DirectoryId.UNASSIGNED
        and broker not in (*partition.isr, *partition.elr)
    )


def decide_assign_directories(
    state: ControllerState, request: AssignReplicasToDirsRequest
) -> Steps[ControllerDecision[AssignReplicasToDirsResponse]]:
    """Record the directories of a broker's replicas."""
    broker = state.broker(request.broker_id, request.broker_epoch)
    answer = AssignReplicasToDirsResponse.DirectoryData
    image = state.image
    records = []
    directories = []
    for directory in request.directories:
        topics = []
        for topic in directory.topics:
            partitions = []
            for assignment in topic.partitions:
                number, code = assignment.partition_index, errors.NONE
                topic_image = image.topics.get(topic.topic_id)
                partition = None if topic_image is None else topic_image.partitions.get(number)
                if topic_image is None:
                    code = errors.UnknownTopicId.code
                elif partition is None:
                    code = errors.UnknownTopicOrPartition.code
                elif broker.id not in partition.replicas:
                    code = errors.NotLeaderOrFollower.code
                else:
                    change = state.change(topic.topic_id, number)
                    records += _assign_directory(change, broker, directory.id)
                partitions.append(
                    answer.TopicData.PartitionData(partition_index=number, error_code=code)
                )
                yield
            topics.append(answer.TopicData(topic_id=topic.topic_id, partitions=partitions))
        directories.append(answer(id=directory.id, topics=topics))
    return ControllerDecision(tuple(records), AssignReplicasToDirsResponse(directories=directories))
