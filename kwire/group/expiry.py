"""Which committed offsets are kept no longer, and which groups with them (KIP-211).

An offset goes when it was not needed for ``offsets.retention.minutes``: for a group that
subscribes, since the group became empty, or since the commit if it no longer reads the topic;
for a consumer that only commits, since the commit.  Each call removes a bounded number and
asks to be called again for the rest.
"""

from collections.abc import Callable
from typing import Final

from kwire.group.model import CONSUMER, ClassicGroup, State
from kwire.group.offsets import Committed, Offsets
from kwire.group.records import group_tombstone, offset_tombstone, subscribed_topics
from kwire.group.turn import Turn

PIECE: Final = 1_000
"""How many tombstones one decision writes at most."""

Since = Callable[[Committed], int]


def _rule(group: ClassicGroup) -> tuple[Since, frozenset[str]] | None:
    """From when an offset's age counts, and the topics in use; None if nothing may expire."""
    if group.protocol_type is None:
        return _commit_time, frozenset()
    if group.state is State.EMPTY:
        since_ms = group.since_ms
        return (_commit_time if since_ms < 0 else lambda _: since_ms), frozenset()
    if group.protocol_type == CONSUMER and group.state is State.STABLE:
        topics = subscribed_topics(group)
        return None if topics is None else (_commit_time, topics)
    return None


def _commit_time(committed: Committed) -> int:
    return committed.commit_ms


def expire(turn: Turn, group: ClassicGroup, offsets: Offsets) -> None:
    """Remove a group's outdated offsets, and the group when it is empty and has none left."""
    rule = _rule(group)
    if rule is None:
        return
    since, in_use = rule
    group_id, now_ms = group.group_id, turn.moment.wall_ms
    retention_ms = turn.settings.offsets_retention_ms
    kept = False
    for topic, partitions in offsets.of(group_id).items():
        if topic in in_use:
            kept = True
            continue
        for partition, committed in partitions.items():
            old = committed.expired(since(committed), now_ms, retention_ms)
            if not old or offsets.unstable(group_id, topic, partition):
                kept = True
            elif len(turn.records) == PIECE:
                turn.timers.append((("expire", group_id), turn.moment.now))
                return
            else:
                turn.records.append(offset_tombstone(group_id, topic, partition))
    unused = group.state is State.EMPTY and not group.pending
    if unused and not kept and not offsets.has_open(group_id):
        turn.records.append(group_tombstone(group_id))


def forget_topic(turn: Turn, offsets: Offsets, topic: str, topic_id: bytes) -> None:
    """Remove what groups committed for a topic that was deleted, not for a later namesake."""
    for group_id in offsets.groups():
        for partition, committed in offsets.of(group_id).get(topic, {}).items():
            if committed.topic_id not in (topic_id, bytes(16)):
                continue
            if len(turn.records) == PIECE:
                turn.timers.append((("forget", topic, topic_id), turn.moment.now))
                return
            turn.records.append(offset_tombstone(group_id, topic, partition))
