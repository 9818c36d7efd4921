"""The replica from which a consumer should read: ``replica.selector.class`` (KIP-392).

Pure decisions. Rules, as in Kafka: only replicas that are in sync, serve on the consumer's listener
and have the offset are candidates. A consumer in the leader's rack, or in a rack without a replica,
reads from the leader. Any other consumer reads from the replica in its rack with the largest log
end offset or, among equals, from the replica that was caught up most recently.
"""

from collections.abc import Iterable
from typing import NamedTuple


class ReadReplica(NamedTuple):
    """A follower that a consumer could read from."""

    log_end: int
    caught_up_at: float
    broker: int
    rack: str | None


def select(rack: str, leader_rack: str | None, followers: Iterable[ReadReplica]) -> int | None:
    """Return the broker id of the follower to read from, None for the leader."""
    if rack == leader_rack:
        return None
    near = max((follower for follower in followers if follower.rack == rack), default=None)
    return None if near is None else near.broker
