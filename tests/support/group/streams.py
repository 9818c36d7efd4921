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
