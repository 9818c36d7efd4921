"""Checks of a StreamsGroupHeartbeat that need no state."""

from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest as Request,
)
from kwire.errors import InvalidRequest, StreamsInvalidTopology
from kwire.group.assigned import check_filled
from kwire.group.consumer.model import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from kwire.group.streams.heartbeat import JOIN_EPOCH


def check_heartbeat(request: Request) -> None:
    """Reject a heartbeat that contradicts itself or uses features that Kafka 4.3 lacks."""
    _check_supported(request)
    check_filled(request.member_id, "MemberId")
    check_filled(request.group_id, "GroupId")
    check_filled(request.rack_id, "RackId")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH:
        raise InvalidRequest("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest(
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2."
        )
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(each is not None for each in tasks) and any(each is None for each in tasks):
        raise InvalidRequest("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != JOIN_EPOCH and request.topology is not None:
        raise InvalidRequest("Topology can only be provided when (re-)joining.")
    tags = request.client_tags or ()
    if len({tag.key for tag in tags}) < len(tags):
        # Apache Kafka's coordinator could not load the record of such a member.
        raise InvalidRequest("There are two client tags with the same name.")


def _check_supported(request: Request) -> None:
    if request.instance_id is not None:
        raise InvalidRequest("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise InvalidRequest("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise InvalidRequest("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise InvalidRequest("WarmupTasks are not supported yet.")
    subtopologies = [] if request.topology is None else request.topology.subtopologies
    if any(each.source_topic_regex for each in subtopologies):
        raise InvalidRequest("Regular expressions for source topics are not supported yet.")


def _check_join(request: Request) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    for tasks, name in (
        (request.active_tasks, "ActiveTasks"),
        (request.standby_tasks, "StandbyTasks"),
        (request.warmup_tasks, "WarmupTasks"),
    ):
        if tasks is None or tasks:
            raise InvalidRequest(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise InvalidRequest("Topology must be non-null when (re-)joining.")
    for subtopology in request.topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise StreamsInvalidTopology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it "
                    f"is set to {topic.partitions}."
                )
