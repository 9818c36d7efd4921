"""Describes the groups of a request one by one; each fails alone.

A group is not described at all if its description names a topic that the client may not describe.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from kwire.drive import Slices
from kwire.errors import GroupIdNotFound, InvalidGroupId, KafkaError, TopicAuthorizationFailed
from kwire.handlers.shared.authorized_operations import authorized_operations
from kwire.handlers.shared.context import Context


class _Request(Protocol):
    group_ids: list[str]
    include_authorized_operations: bool


class _Group(Protocol):
    """A described group; each protocol has its own class."""

    # Any: and one for its members.
    members: list[Any]
    authorized_operations: int


G = TypeVar("G", bound=_Group)
R = TypeVar("R")

_REFUSAL: Final = "The group has described topic(s) that the client is not authorized to describe."


def refusing(
    new_response: Callable[..., R], new_group: Callable[..., _Group]
) -> Callable[[_Request, KafkaError], R]:
    """Return a function that gives each group of a request the same error."""

    def refuse(request: _Request, error: KafkaError) -> R:
        return new_response(groups=[_refuse_group(new_group, g, error) for g in request.group_ids])

    return refuse


def _refuse_group(new_group: Callable[..., G], group_id: str, error: KafkaError) -> G:
    """Return the error description of a group that cannot be described."""
    text = error.text if isinstance(error, (GroupIdNotFound, TopicAuthorizationFailed)) else None
    return new_group(
        error_code=error.code,
        error_message=text,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


async def describe_groups(
    context: Context,
    request: _Request,
    new_group: Callable[..., G],
    describe: Callable[[str], Awaitable[G]],
    topics_of: Callable[[G], Iterable[Iterable[str]]],
    refusal: str = _REFUSAL,
) -> list[G]:
    """Describe the groups of a request.

    ``topics_of`` returns the topics in a description; ``refusal`` is the error text if the client
    may not describe one of these topics.
    """

    async def answer(group_id: str) -> G:
        try:
            context.check_allowed("Describe", "Group", group_id)
            if not group_id:
                raise InvalidGroupId
            group = await describe(group_id)
            await _check_topics(context, topics_of(group), refusal)
        except KafkaError as error:
            return _refuse_group(new_group, group_id, error)
        if request.include_authorized_operations:
            group.authorized_operations = authorized_operations(context, "Group", group_id)
        return group

    groups = []
    slices = Slices()
    for group_id in request.group_ids:
        groups.append(await answer(group_id))
        await slices.pause()
    return groups


async def _check_topics(context: Context, named: Iterable[Iterable[str]], refusal: str) -> None:
    checked: set[str] = set()
    slices = Slices()
    for names in named:
        topics = set(names)
        for name in topics - checked:
            if not context.is_allowed("Describe", "Topic", name):
                raise TopicAuthorizationFailed(refusal)
        checked |= topics
        await slices.pause()
