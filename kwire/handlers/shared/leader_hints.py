"""Who leads instead (KIP-951): what Produce and Fetch add to an error so that clients need not ask.

Only errors that mean "not here" or "not any more" carry a hint, and only a leader that this
listener has an address of is named.
"""

from typing import NamedTuple

from kwire.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower
from kwire.handlers.dispatch import Context


class Hint(NamedTuple):
    """A partition's leader, and where it is."""

    leader_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def leader_hint(
    context: Context, error: KafkaError, topic: str, topic_id: bytes, partition: int
) -> Hint | None:
    """The leader to try, if the error is about that and the metadata knows one."""
    if not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
        return None
    image = context.image
    found = image.topic(topic) if topic else image.topics.get(topic_id)
    state = None if found is None else found.partitions.get(partition)
    if state is None or state.leader < 0:
        return None
    broker = image.brokers.get(state.leader)
    endpoint = None if broker is None else broker.endpoint(context.listener)
    if broker is None or endpoint is None:
        return None
    return Hint(state.leader, state.leader_epoch, endpoint.host, endpoint.port, broker.rack)
