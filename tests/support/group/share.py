"""Members of share groups, on the shard of a :class:`~tests.support.group.sim.Sim`."""

from collections.abc import Sequence
from typing import NamedTuple

from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.group.decision_builder import Client
from kwire.group.share import requests
from kwire.group.share.model import ShareGroup
from kwire.group.share.shard import Initialization
from tests.support.group.sim import Sim


class Shared(NamedTuple):
    """A response to a ShareGroupHeartbeat."""

    epoch: int
    assigned: dict[str, list[int]] | None
    """Partitions by topic; None if the response has no assignment."""


def beat(
    sim: Sim, member_id: str, epoch: int = 0, topics: Sequence[str] | None = None, group: str = "g"
) -> tuple[Shared, Initialization | None]:
    """Send a heartbeat; return the response, and what has to be initialized."""
    if epoch == 0 and topics is None:
        topics = ["t"]
    request = ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        subscribed_topic_names=None if topics is None else list(topics),
    )
    client = Client(client_id="c")
    ticket = sim.send(
        member_id, lambda shard, *when: requests.heartbeat(shard, request, client, *when)
    )
    beaten = sim.reply(ticket)
    assigned = None
    if beaten.response.assignment is not None:
        assigned = {
            str(sim.topics.name_of(each.topic_id)): each.partitions
            for each in beaten.response.assignment.topic_partitions
        }
    return Shared(beaten.response.member_epoch, assigned), beaten.initialization


def share(sim: Sim, member_id: str, epoch: int = 0, topics: Sequence[str] | None = None) -> Shared:
    """Send a heartbeat, and initialize what has to be; return the response."""
    response, work = beat(sim, member_id, epoch, topics)
    if work is not None:
        finish(sim, work)
    return response


def finish(sim: Sim, work: Initialization) -> None:
    """Report that share partitions are initialized."""
    sim.send(
        "persister",
        lambda shard, *when: requests.finish_initialization(
            shard, work.group_id, work.numbers, *when
        ),
    )


def group(sim: Sim, group_id: str = "g") -> ShareGroup:
    share_group = sim.groups.share_group(group_id)
    assert share_group is not None
    return share_group
