"""Members of streams groups, on the shard of a :class:`~tests.support.group.sim.Sim`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kwire.codec.messages.streams_group_heartbeat import (
    Endpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TopicInfo,
)
from kwire.group.decision_builder import Client
from kwire.group.streams import requests
from kwire.group.streams.configuration import StatusCode
from kwire.group.streams.model import StreamsGroup
from kwire.group.streams.shard import Beaten
from tests.support.group.sim import Sim

Topology = StreamsGroupHeartbeatRequest.Topology
Subtopology = Topology.Subtopology
Tasks = Mapping[str, Sequence[int]]

STATELESS: Final = Topology(
    epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=["t"])]
)
STATEFUL: Final = Topology(
    epoch=0,
    subtopologies=[
        Subtopology(
            subtopology_id="0",
            source_topics=["t"],
            state_changelog_topics=[
                TopicInfo(name="changelog", partitions=0, replication_factor=0)
            ],
        )
    ],
)


class Streamed(NamedTuple):
    """A response to a StreamsGroupHeartbeat."""

    epoch: int
    active: dict[str, list[int]] | None
    """Tasks by subtopology; None if the response has no assignment."""
    standby: dict[str, list[int]] | None
    statuses: list[StatusCode]


def request(
    member_id: str,
    epoch: int = 0,
    *,
    active: Tasks | None = None,
    standby: Tasks | None = None,
    group: str = "g",
    process: str | None = None,
    endpoint: tuple[str, int] | None = None,
    **fields: Any,
) -> StreamsGroupHeartbeatRequest:
    """Return a heartbeat; a join brings the topology :data:`STATELESS`, unless it has another."""
    if epoch == 0:
        active, standby = active or {}, standby or {}
        fields = {"topology": STATELESS, "rebalance_timeout_ms": 60_000, **fields}
        process = process or f"process-of-{member_id}"
    address = None if endpoint is None else Endpoint(host=endpoint[0], port=endpoint[1])
    says = active is not None or standby is not None
    return StreamsGroupHeartbeatRequest(
        **{
            "group_id": group,
            "member_id": member_id,
            "member_epoch": epoch,
            "endpoint_information_epoch": -1,
            "active_tasks": _task_ids(active) if says else None,
            "standby_tasks": _task_ids(standby) if says else None,
            "warmup_tasks": [] if says else None,
            "process_id": process,
            "user_endpoint": address,
            **fields,
        }
    )


def _task_ids(tasks: Tasks | None) -> list[TaskIds]:
    return [TaskIds(subtopology_id=i, partitions=list(n)) for i, n in (tasks or {}).items()]


def beat(sim: Sim, member_id: str, epoch: int = 0, **fields: Any) -> Beaten:
    """Send a heartbeat; return its result."""
    sent = request(member_id, epoch, **fields)
    client = Client(client_id="c")
    ticket = sim.send(
        member_id, lambda shard, *when: requests.heartbeat(shard, sent, client, *when)
    )
    beaten: Beaten = sim.reply(ticket)
    return beaten


def stream(sim: Sim, member_id: str, epoch: int = 0, **fields: Any) -> Streamed:
    """Send a heartbeat; return the response."""
    return read(beat(sim, member_id, epoch, **fields).response)


def read(response: StreamsGroupHeartbeatResponse) -> Streamed:
    def tasks(ids: Sequence[TaskIds] | None) -> dict[str, list[int]] | None:
        return None if ids is None else {each.subtopology_id: each.partitions for each in ids}

    return Streamed(
        response.member_epoch,
        tasks(response.active_tasks),
        tasks(response.standby_tasks),
        [StatusCode(each.status_code) for each in response.status or ()],
    )


def group(sim: Sim, group_id: str = "g") -> StreamsGroup:
    streams_group = sim.groups.streams_group(group_id)
    assert streams_group is not None
    return streams_group


# Recorded conversations


def request_from(sent: Mapping[str, Any]) -> StreamsGroupHeartbeatRequest:
    """Return a recorded request."""
    topology = sent.get("topology")
    fields: dict[str, Any] = {"rebalance_timeout_ms": -1, "topology": None}
    if topology is not None:
        subtopologies = [_subtopology(each) for each in topology]
        fields = {
            "rebalance_timeout_ms": 300_000,
            "topology": Topology(epoch=0, subtopologies=subtopologies),
        }
    endpoint = sent.get("endpoint")
    return request(
        sent["member"],
        sent["epoch"],
        active=sent.get("active"),
        standby=sent.get("standby"),
        group=sent["group"],
        process=sent.get("process"),
        endpoint=None if endpoint is None else (endpoint[0], endpoint[1]),
        endpoint_information_epoch=sent["endpoint_epoch"],
        **fields,
    )


def _subtopology(each: Mapping[str, Any]) -> Subtopology:
    def topics(kind: str) -> list[TopicInfo]:
        return [
            TopicInfo(name=name, partitions=0, replication_factor=0) for name in each.get(kind, ())
        ]

    return Subtopology(
        subtopology_id=each["id"],
        source_topics=each.get("sources", []),
        repartition_sink_topics=each.get("sinks", []),
        repartition_source_topics=topics("repartition"),
        state_changelog_topics=topics("changelogs"),
    )


def streams_form(
    answer: StreamsGroupHeartbeatResponse, endpoints: Sequence[tuple[str, int]] | None = None
) -> dict[str, Any]:
    """Return a response as it is recorded; ``endpoints`` are those that it does not have yet."""
    if answer.partitions_by_user_endpoint is not None:
        named = [each.user_endpoint for each in answer.partitions_by_user_endpoint]
        endpoints = [(each.host, each.port) for each in named]
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "active": _recorded_tasks(answer.active_tasks),
        "standby": _recorded_tasks(answer.standby_tasks),
        "warmup": _recorded_tasks(answer.warmup_tasks),
        "statuses": [[each.status_code, each.status_detail] for each in answer.status or ()],
        "endpoint_epoch": answer.endpoint_information_epoch,
        "endpoints": None if endpoints is None else sorted(map(list, endpoints)),
    }


def _recorded_tasks(ids: Sequence[TaskIds] | None) -> dict[str, list[int]] | None:
    return None if ids is None else {each.subtopology_id: sorted(each.partitions) for each in ids}
