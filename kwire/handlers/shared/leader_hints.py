"""The current leader, which Produce and Fetch add to errors so that clients need not ask: KIP-951.

Only errors that mean "not here" or "not any more" carry a hint, and it names only a leader with
an address on this listener.
"""

from typing import NamedTuple

from kwire.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower
from kwire.handlers.dispatch import Context


class Hint(NamedTuple):
    """A partition's leader and its address."""

    leader_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def leader_hint(
    context: Context, error: KafkaError, topic: str, topic_id: bytes, partition: int
) -> Hint | None:
    """Return the leader to try, or None if the error is another or no leader can be reached."""
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
