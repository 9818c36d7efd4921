"""The deadlines of streams groups and their members."""

from kwire.group.decision_builder import DecisionBuilder
from kwire.group.streams.model import StreamsMember
from kwire.group.streams.settings import StreamsSettings


def start_session(
    builder: DecisionBuilder, group_id: str, member_id: str, settings: StreamsSettings
) -> None:
    """Restart the member's session."""
    builder.start_timer(("streams-session", group_id, member_id), settings.session_timeout_ms)


def start_revocation(builder: DecisionBuilder, group_id: str, member: StreamsMember) -> None:
    """Set the deadline by which the member has to give up its tasks."""
    name = ("streams-revocation", group_id, member.member_id)
    builder.start_timer(name, member.rebalance_timeout_ms)


def end_revocation(builder: DecisionBuilder, group_id: str, member_id: str) -> None:
    builder.timers.append((("streams-revocation", group_id, member_id), None))


def end_member_timers(builder: DecisionBuilder, group_id: str, member_id: str) -> None:
    """Cancel all deadlines of a member that leaves."""
    builder.timers.append((("streams-session", group_id, member_id), None))
    end_revocation(builder, group_id, member_id)


def start_delay(builder: DecisionBuilder, group_id: str, delay_ms: int) -> None:
    """Set the time of a group's first assignment."""
    builder.start_timer(("streams-delay", group_id), delay_ms)
