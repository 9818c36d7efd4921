"""The parts of one decision about groups, collected until it is complete."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Never, TypeAlias

import attrs

from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.codec.messages.sync_group import SyncGroupResponse
from kwire.coordinator.decision import Answer, Decision, LateAnswer, Moment, Record, Step, Timer
from kwire.errors import KafkaError
from kwire.group.model import ClassicGroup, Member
from kwire.group.settings import GroupSettings

if TYPE_CHECKING:
    from kwire.coordinator.draft import Draft
    from kwire.group.offsets import GroupChange

Adoption: TypeAlias = Callable[[], None]
"""Adopts changes of a group in memory, once their decision's records are written and applied."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Client:
    """The client that sent a request."""

    client_id: str = ""
    client_host: str = "/127.0.0.1"
    """The client's address in Java's form, which Kafka's tools show."""
    may_describe: Callable[[str], bool] = lambda _: True
    """Returns whether the client may see a topic, by its name."""


@attrs.define(eq=False, repr=False)
class DecisionBuilder:
    """One unfinished decision."""

    moment: Moment
    settings: GroupSettings
    ticket: int = -1
    """The ticket of the request; -1 for the decision on a deadline."""
    records: list[Record] = attrs.field(factory=list)
    answers: list[Answer | LateAnswer] = attrs.field(factory=list)
    timers: list[Timer] = attrs.field(factory=list)
    draft: "Draft[GroupChange] | None" = None
    """The records, if they were encoded before the decision."""

    def build(self, *changes: ClassicGroup | Adoption, steps: Iterable[Step] = ()) -> Decision:
        """Return the decision, with the changed groups or the changes to adopt as its state."""
        return Decision(
            records=tuple(self.records),
            answers=tuple(self.answers),
            timers=tuple(self.timers),
            draft=self.draft,
            state=changes,
            steps=steps,
        )

    def answer(self, ticket: int | None, reply: object) -> None:
        if ticket is not None:
            self.answers.append(Answer(ticket, reply))

    def answer_late(self, ticket: int | None, make: Callable[[], object]) -> None:
        """Answer a request whose own task builds the response: a group may have many of them."""
        if ticket is not None:
            self.answers.append(LateAnswer(ticket, make))

    def refuse(self, error: KafkaError) -> None:
        """Reject the request; its task raises the error."""
        self.answer_late(self.ticket, partial(_raise, error))

    def restart_session(self, group: ClassicGroup, member: Member) -> None:
        """Restart the member's session after a request from it."""
        self.start_session(group, member.member_id, member.session_timeout_ms)

    def start_session(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        self.start_timer(("session", group.group_id, member_id), timeout_ms)

    def start_join_timeout(self, group: ClassicGroup, timeout_ms: int) -> None:
        """Set the deadline after which the rebalance completes without missing members."""
        self.start_timer(("join", group.group_id), timeout_ms)

    def start_sync_timeout(self, group: ClassicGroup, timeout_ms: int) -> None:
        self.start_timer(("sync", group.group_id), timeout_ms)

    def end_session(self, group: ClassicGroup, member_id: str) -> None:
        self.timers.append((("session", group.group_id, member_id), None))

    def end_join_timeout(self, group: ClassicGroup) -> None:
        self.timers.append((("join", group.group_id), None))

    def end_sync_timeout(self, group: ClassicGroup) -> None:
        self.timers.append((("sync", group.group_id), None))

    def start_timer(self, name: tuple[str, ...], timeout_ms: int) -> None:
        """Set a deadline, or move it."""
        self.timers.append((name, self.moment.now + timeout_ms / 1000))


def _raise(error: KafkaError) -> Never:
    raise error


def join_response(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """Return a member's JoinGroup response; only the leader's response lists the members."""
    leads = group.leader == member.member_id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=join_response_members(group) if leads else [],
    )


def join_response_members(group: ClassicGroup) -> list[JoinGroupResponse.JoinGroupResponseMember]:
    """Return all members with their metadata, for the leader."""
    return [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in group.members_by_arrival()
    ]


def join_error(error: type[KafkaError], member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error.code, protocol_name=None, leader="", member_id=member_id
    )


def sync_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """Return a member's SyncGroup response with its assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def sync_error(error: type[KafkaError]) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.code, assignment=b"")


def answer_removed_member(
    builder: DecisionBuilder, member: Member, error: type[KafkaError], member_id: str = ""
) -> None:
    """Answer the waiting requests of a removed member with an error.

    ``member_id``: the id that the client keeps, if it does.
    """
    for ticket in member.join_tickets:
        builder.answer(ticket, join_error(error, member_id))
    if member.sync_ticket is not None:
        builder.answer(member.sync_ticket, sync_error(error))
