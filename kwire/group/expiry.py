"""The expiry of committed offsets, and of groups without offsets (KIP-211).

An offset is removed when its topic is deleted, or when it has been unused for
``offsets.retention.minutes``. This time starts when the group becomes empty or, for a topic that
the group no longer subscribes to and for a consumer that only commits, with the commit.

Every function yields steps; each step checks a bounded number of offsets, in the state at the time
of the step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from kwire.coordinator.decision import NOTHING, Decision, Moment, Step
from kwire.group.group_tables import GroupTables
from kwire.group.model import CONSUMER, ClassicGroup, ClassicGroupState
from kwire.group.offsets import Committed, is_of_deleted_topic
from kwire.group.records import group_tombstone, offset_tombstone, subscribed_topics
from kwire.types import ZERO_UUID

STEP_OFFSETS: Final = 100
"""The number of offsets per step, about 1 ms of work if all of them are removed."""

Since = Callable[[Committed], int]
IsOver = Callable[[Committed], bool]
"""Returns whether an offset must be removed."""


def expire(shard: GroupTables) -> Iterator[Step]:
    """Remove the expired offsets of all groups, and the empty groups without offsets."""
    for group_id in list(shard.groups):
        group = shard.groups.get(group_id)
        if group is None:
            continue
        rule = _rule(group)
        if rule is not None:
            since, topics_in_use = rule
            for topic in list(shard.offsets.of(group_id)):
                if topic not in topics_in_use:
                    for partitions in _chunks(shard, group_id, topic):
                        yield partial(_expire_offsets, shard, group, since, topic, partitions)
        yield partial(_expire_group, shard, group_id)
    group_ids = [group.group_id for group in shard.streams_groups]
    group_ids += [group.group_id for group in shard.consumer_groups]
    yield from _expire_subscribers(shard, group_ids)


def _expire_subscribers(shard: GroupTables, group_ids: Iterable[str]) -> Iterator[Step]:
    """Remove the expired offsets of consumer groups and streams groups, and the empty groups."""
    for group_id in group_ids:
        for topic in list(shard.offsets.of(group_id)):
            for partitions in _chunks(shard, group_id, topic):
                yield partial(_expire_subscriber_offsets, shard, group_id, topic, partitions)
        yield partial(_expire_subscriber, shard, group_id)


def _expire_subscriber_offsets(
    shard: GroupTables, group_id: str, topic: str, partitions: list[int], moment: Moment
) -> Decision:
    group = shard.committing_group(group_id)
    if group is None or group.is_subscribed_to(topic):
        return NOTHING
    retention_ms = shard.settings().offsets_retention_ms

    def is_over(committed: Committed) -> bool:
        return committed.is_expired(committed.commit_ms, moment.expiry_ms, retention_ms)

    return _remove(shard, group_id, topic, partitions, is_over)


def _expire_subscriber(shard: GroupTables, group_id: str, moment: Moment) -> Decision:
    group = shard.committing_group(group_id)
    if group is None or group.members or _has_offsets(shard, group_id):
        return NOTHING
    return Decision(records=tuple(shard.of_kind(group.kind).tombstones(group_id)))


def _has_offsets(shard: GroupTables, group_id: str) -> bool:
    return bool(shard.offsets.of(group_id)) or shard.offsets.has_pending(group_id)


def _rule(group: ClassicGroup) -> tuple[Since, frozenset[str]] | None:
    """Return when an offset's age starts, and the topics in use; None if nothing may expire."""
    if group.protocol_type is None:
        return _commit_time, frozenset()
    if group.state is ClassicGroupState.EMPTY:
        since_ms = group.since_ms
        return (_commit_time if since_ms < 0 else lambda _: since_ms), frozenset()
    if group.protocol_type == CONSUMER and group.state is ClassicGroupState.STABLE:
        topics = subscribed_topics(group)
        return None if topics is None else (_commit_time, topics)
    return None


def _commit_time(committed: Committed) -> int:
    return committed.commit_ms


def _expire_offsets(
    shard: GroupTables,
    group: ClassicGroup,
    since: Since,
    topic: str,
    partitions: list[int],
    moment: Moment,
) -> Decision:
    if shard.groups.get(group.group_id) is not group:
        return NOTHING  # State or subscriptions may have changed; the next expiry checks it.
    retention_ms = shard.settings().offsets_retention_ms

    def is_over(committed: Committed) -> bool:
        return committed.is_expired(since(committed), moment.expiry_ms, retention_ms)

    return _remove(shard, group.group_id, topic, partitions, is_over)


def _expire_group(shard: GroupTables, group_id: str, moment: Moment) -> Decision:
    group = shard.groups.get(group_id)
    if group is None or group.state is not ClassicGroupState.EMPTY or group.pending_join:
        return NOTHING
    if _has_offsets(shard, group_id):
        return NOTHING
    return Decision(records=(group_tombstone(group_id),))


def remove_deleted_topics(shard: GroupTables, names: Mapping[bytes, str]) -> Iterator[Step]:
    """Remove the offsets of deleted topics, but keep those of recreated topics."""
    for topic_id, topic in names.items():
        for group_id in shard.offsets.groups_of(topic):
            for partitions in _chunks(shard, group_id, topic):
                yield partial(_remove_deleted_topic, shard, topic_id, group_id, topic, partitions)


def _remove_deleted_topic(
    shard: GroupTables,
    topic_id: bytes,
    group_id: str,
    topic: str,
    partitions: list[int],
    moment: Moment,
) -> Decision:
    ids = (topic_id, ZERO_UUID)
    return _remove(shard, group_id, topic, partitions, lambda c: c.topic_id in ids)


def remove_missing_topics(shard: GroupTables) -> Iterator[Step]:
    """Remove the offsets of topics that are no longer in the metadata."""
    for group_id in shard.offsets.groups():
        for topic in list(shard.offsets.of(group_id)):
            for partitions in _chunks(shard, group_id, topic):
                yield partial(_remove_missing_topic, shard, group_id, topic, partitions)


def _remove_missing_topic(
    shard: GroupTables, group_id: str, topic: str, partitions: list[int], moment: Moment
) -> Decision:
    topic_ids = shard.topic_ids()

    def is_over(committed: Committed) -> bool:
        return is_of_deleted_topic(topic_ids, topic, committed)

    return _remove(shard, group_id, topic, partitions, is_over)


def _chunks(shard: GroupTables, group_id: str, topic: str) -> Iterator[list[int]]:
    partitions = list(shard.offsets.of(group_id).get(topic, ()))
    for start in range(0, len(partitions), STEP_OFFSETS):
        yield partitions[start : start + STEP_OFFSETS]


def _remove(
    shard: GroupTables, group_id: str, topic: str, partitions: list[int], is_over: IsOver
) -> Decision:
    """Return the decision to remove expired offsets, except those that a transaction may change.

    A tombstone would also discard the transaction's offset, which may belong to a recreated topic.
    """
    committed = shard.offsets.of(group_id).get(topic, {})
    unstable = shard.offsets.unstable_partitions(group_id)
    records = tuple(
        offset_tombstone(group_id, topic, partition)
        for partition in partitions
        if partition in committed
        and (topic, partition) not in unstable
        and is_over(Committed.unpack(committed[partition]))
    )
    return Decision(records=records, is_atomic=False) if records else NOTHING
