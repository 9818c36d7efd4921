"""A change of a group that one member causes, before any of it is written.

It contains the steps of a heartbeat that both protocols share: write the member, bump the group
epoch, update the target, and move the member towards its target. Each step reads the group before
the change and the member after it, and adds records to the decision.
"""

import logging
from collections.abc import Mapping, Sequence

import attrs

from kwire.drive import run_steps
from kwire.group.consumer import fencing, records
from kwire.group.consumer.assignors import ASSIGNORS
from kwire.group.consumer.model import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
)
from kwire.group.consumer.reconciliation import OwnedTopic, reconcile
from kwire.group.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    partition_metadata_tombstone,
    regex_tombstone,
    target_record,
)
from kwire.group.consumer.regexes import compile_regex, needs_resolution
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.target import (
    ConsumerTables,
    computing,
    target_size,
    topic_ids_of,
)
from kwire.group.consumer.topics import group_hash
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.kind_tables import AT_ONCE, changed_targets

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class MemberUpdate:
    """The change of one member."""

    tables: ConsumerTables
    builder: DecisionBuilder
    group: ConsumerGroup
    """The group before the change."""
    settings: ConsumerSettings
    old: ConsumerMember
    """The member before the change; an empty one if it is new."""
    new: ConsumerMember
    former_id: str | None = None
    """The id of the static member that this member replaces."""
    epoch: int = attrs.field(init=False)
    """The group epoch after the change."""
    has_subscription_changed: bool = False
    bumps_epoch: bool = False
    """True if the change requires a new target at once."""
    expressions: tuple[str, ...] = ()
    """The regular expressions of the group, if they have to be resolved again."""
    starts_target: bool = False
    """True if the change starts to compute a large target."""

    def __attrs_post_init__(self) -> None:
        self.epoch = self.group.epoch

    def replace_static_member(self) -> None:
        """Write the records that give a static member its new id, together with all it owns."""
        assert self.former_id is not None
        group_id, records = self.group.group_id, self.builder.records
        records.extend(member_tombstones(group_id, self.former_id))
        records.append(member_record(group_id, self.old))
        target = self.group.target.get(self.former_id, {})
        records.append(target_record(group_id, self.old.member_id, target))
        records.append(current_record(group_id, self.old))

    def write_member(self) -> None:
        """Write the member if it has changed, and record whether its topics have changed."""
        if self.new != self.old:
            self.builder.records.append(member_record(self.group.group_id, self.new))
        self.has_subscription_changed = self.bumps_epoch = self.new.topics != self.old.topics

    def follow_regex(self) -> None:
        """Record whether the member's regular expression changed, and which must be resolved.

        Raises InvalidRegularExpression. An expression that is not resolved yet bumps the epoch
        later, with its topics.
        """
        group, old, new = self.group, self.old.regex or "", self.new.regex or ""
        if not (old or new or group.regex_members):
            return
        is_new = bool(new) and new not in group.regex_members
        if old != new:
            self.has_subscription_changed = True
            if self._drops_regex:
                self.builder.records.append(regex_tombstone(group.group_id, old))
            if is_new:
                compile_regex(new)
            self.bumps_epoch = self.bumps_epoch or not new or new in group.regexes
        counts = dict(group.regex_members)
        if new:
            counts[new] = counts.get(new, 0) + 1
        if old:
            counts[old] = counts.get(old, 0) - 1
        expressions = {text: count for text, count in counts.items() if count > 0}
        if needs_resolution(
            group,
            expressions,
            self.tables.topics(),
            self.builder.moment.wall_ms,
            self.settings.regex_refresh_interval_ms,
            is_new=is_new,
        ):
            self.expressions = tuple(expressions)

    @property
    def _drops_regex(self) -> bool:
        """True if the member was the last one with its former regular expression."""
        old = self.old.regex or ""
        return old != (self.new.regex or "") and self.group.regex_members.get(old) == 1

    def bump_epoch(self) -> None:
        """Bump the group epoch if the subscribed topics or their metadata have changed."""
        topics = self.tables.topics()
        self.bumps_epoch = self.bumps_epoch or self._outdates_large_target
        if not self.bumps_epoch and self.group.checked_version is topics.version:
            return
        metadata_hash = group_hash(topics, self._names())
        if self.bumps_epoch or metadata_hash != self.group.metadata_hash:
            self.epoch += 1
            record = epoch_record(self.group.group_id, self.epoch, metadata_hash)
            self.builder.records.append(record)
            logger.info("group epoch bumped group=%s epoch=%d", self.group.group_id, self.epoch)
        if self.group.has_partition_metadata:
            self.builder.records.append(partition_metadata_tombstone(self.group.group_id))

    @property
    def _outdates_large_target(self) -> bool:
        """True if a large target that is being computed has a static member by its former id."""
        has_new_id = self.former_id not in (None, self.new.member_id)
        return has_new_id and self.tables.is_computing(self.group.group_id)

    def _names(self) -> set[str]:
        """Return the topics to which the group subscribes after the change."""
        group = self.group
        dropped = {name for name in self.old.topics if group.by_name.get(name, 0) == 1}
        by_regex = dict(group.by_regex)
        if self._drops_regex and self.old.regex in group.regexes:
            for name in group.regexes[self.old.regex].topics:
                by_regex[name] -= 1
        matched = {name for name, count in by_regex.items() if count}
        return ((group.by_name.keys() - dropped) | self.new.topics) | matched

    def follow_epoch(self) -> tuple[int, Partitions]:
        """Compute the target if it is behind the group epoch; return its epoch and the member's.

        The last target stays in force while it is younger than the assignment interval, and while a
        large target is being computed.
        """
        group, moment = self.group, self.builder.moment
        former_id = group.instances.get(self.new.instance_id or "", self.new.member_id)
        last = group.assignment_epoch, group.target.get(former_id, {})
        if group.assignment_epoch >= self.epoch or group.has_recent_target(
            self.settings.assignment_interval_ms, moment.wall_ms
        ):
            return last
        topics = self.tables.topics()
        if target_size(group, self._names(), topics) > AT_ONCE:
            self.starts_target = not self.tables.is_computing(group.group_id)
            return last
        changes: dict[str, ConsumerMember | None] = {self.new.member_id: self.new}
        if former_id != self.new.member_id:
            changes[former_id] = None
        assignor = preferred_assignor(self._assignors(), self.settings)
        targets = run_steps(computing(group, changes, topics, assignor))
        self.builder.records.extend(
            changed_targets(records, group, targets, self.epoch, moment.wall_ms)
        )
        return self.epoch, targets.get(self.new.member_id, {})

    def _assignors(self) -> Mapping[str, int]:
        """Count the members that prefer each assignor, in the order of Kafka's hash table.

        An assignor that no other member has chosen comes first.
        """
        counts = dict(self.group.assignors)
        if self.old.assignor is not None:
            counts[self.old.assignor] -= 1
        chosen, name = rank_assignors(counts), self.new.assignor
        if name is None:
            return chosen
        if name not in chosen:
            return {name: 1, **chosen}
        chosen[name] += 1
        return chosen

    @property
    def waits_for_target(self) -> bool:
        """True if the group has no target that the member could move to."""
        is_computing = self.starts_target or self.tables.is_computing(self.group.group_id)
        return is_computing and not self.group.has_target

    def move(self, epoch: int, target: Partitions, owned: Sequence[OwnedTopic] | None) -> None:
        """Move the member towards its target of this epoch, and write what has changed."""
        if not self.has_subscription_changed and self.new.is_reconciled_to(epoch):
            return
        group_id, builder = self.group.group_id, self.builder
        moved = reconcile(
            self.group,
            self.new,
            epoch,
            target,
            topic_ids_of(self.group.subscriptions(self.new), self.tables.topics()),
            owned,
            has_subscription_changed=self.has_subscription_changed,
        )
        if moved != self.new:
            builder.records.append(current_record(group_id, moved))
            if moved.classic is None and moved.state == MemberState.UNREVOKED:
                fencing.start_revocation(builder, group_id, moved)
        self.new = moved


def rank_assignors(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of the chosen assignors in the order of :data:`ASSIGNORS`.

    The order in which members chose them must not count: the next coordinator does not know it.
    """
    return {name: counts[name] for name in ASSIGNORS if counts.get(name, 0) > 0}


def preferred_assignor(counts: Mapping[str, int], settings: ConsumerSettings) -> str:
    """Return the assignor that most members prefer, by default the broker's.

    Of several that equally many members prefer, the first in ``counts`` is returned.
    """
    return max(counts, key=lambda name: counts[name]) if counts else settings.assignors[0]
