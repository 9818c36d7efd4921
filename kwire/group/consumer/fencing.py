"""The deadlines of members of consumer groups, and the removal of members."""

from collections.abc import Collection

from kwire.coordinator.decision import Timer
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember
from kwire.group.consumer.records import epoch_record, member_tombstones, regex_tombstone
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.topics import Topics, group_hash
from kwire.group.decision_builder import DecisionBuilder


def start_session(
    builder: DecisionBuilder, group_id: str, member: ConsumerMember, settings: ConsumerSettings
) -> None:
    """Restart the member's session."""
    classic = member.classic
    timeout_ms = settings.session_timeout_ms if classic is None else classic.session_timeout_ms
    builder.start_timer(("consumer-session", group_id, member.member_id), timeout_ms)


def start_revocation(builder: DecisionBuilder, group_id: str, member: ConsumerMember) -> None:
    """Set the deadline by which the member has to give up its partitions."""
    name = ("revocation", group_id, member.member_id)
    builder.start_timer(name, member.rebalance_timeout_ms)


def start_sync(builder: DecisionBuilder, group_id: str, member: ConsumerMember) -> None:
    """Set the deadline by which a member of the classic protocol has to send a SyncGroup."""
    builder.start_timer(("consumer-sync", group_id, member.member_id), member.rebalance_timeout_ms)


def end_sync(builder: DecisionBuilder, group_id: str, member: ConsumerMember) -> None:
    builder.timers.append((("consumer-sync", group_id, member.member_id), None))


def start_rejoin(builder: DecisionBuilder, group_id: str, member: ConsumerMember) -> None:
    """Set the deadline by which a member of the classic protocol has to rejoin."""
    name = ("consumer-rejoin", group_id, member.member_id)
    builder.start_timer(name, member.rebalance_timeout_ms)


def end_rejoin(builder: DecisionBuilder, group_id: str, member: ConsumerMember) -> None:
    builder.timers.append((("consumer-rejoin", group_id, member.member_id), None))


def end_timers(builder: DecisionBuilder, group_id: str, member: ConsumerMember) -> None:
    """Cancel all deadlines of a member that leaves."""
    builder.timers += ended_timers(group_id, member)


def ended_timers(group_id: str, member: ConsumerMember) -> list[Timer]:
    """Return the timers that cancel all deadlines of a member."""
    kinds = ("consumer-session", "revocation", "consumer-sync", "consumer-rejoin")
    return [((kind, group_id, member.member_id), None) for kind in kinds]


def remove_members(
    builder: DecisionBuilder,
    group: ConsumerGroup,
    members: Collection[ConsumerMember],
    topics: Topics,
) -> None:
    """Remove members and the regular expressions that only they use; bump the group epoch."""
    names = dict(group.by_name)
    regexes: dict[str, int] = {}
    for member in members:
        builder.records.extend(member_tombstones(group.group_id, member.member_id))
        end_timers(builder, group.group_id, member)
        for name in member.topics:
            names[name] -= 1
        if member.regex:
            regexes[member.regex] = regexes.get(member.regex, 0) + 1
    matched = dict(group.by_regex)
    for regex, count in regexes.items():
        if group.regex_members.get(regex) == count:
            builder.records.append(regex_tombstone(group.group_id, regex))
            for name in group.regexes[regex].topics if regex in group.regexes else ():
                matched[name] -= 1
    remaining = {name for counts in (names, matched) for name, count in counts.items() if count}
    builder.records.append(
        epoch_record(group.group_id, group.epoch + 1, group_hash(topics, remaining))
    )
