"""OffsetFetch (API key 9): the committed offsets of groups, for some partitions or for all.

Each group fails alone. A topic is given by name, or from version 10 on by id.
"""

from kwire.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kwire.drive import Slices
from kwire.errors import (
    KafkaError,
    UnknownTopicId,
)
from kwire.group.requests import no_offset
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.types import ZERO_UUID

AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
AskedTopic = AskedGroup.OffsetFetchRequestTopics
Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topic = Group.OffsetFetchResponseTopics


def _refused(topic: AskedTopic, error: KafkaError) -> Topic:
    return Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[no_offset(index, error.code) for index in topic.partition_indexes],
    )


def failed(request: OffsetFetchRequest, error: KafkaError) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[Group(group_id=g.group_id, error_code=error.code) for g in request.groups]
    )


@handles(OffsetFetchRequest, failed=failed)
async def offset_fetch(context: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    async def answer(group: AskedGroup) -> Group:
        try:
            context.check_allowed("Describe", "Group", group.group_id)
            if group.topics is None:
                topics = await _all(context, group.group_id, request.require_stable)
            else:
                topics = await _some(context, group, group.topics, request.require_stable)
        except KafkaError as error:
            return Group(group_id=group.group_id, error_code=error.code)
        return Group(group_id=group.group_id, topics=topics)

    response = OffsetFetchResponse(groups=[])
    slices = Slices()
    for group in request.groups:
        response.groups.append(await answer(group))
        await slices.pause()
    return response


async def _all(context: Context, group_id: str, require_stable: bool) -> list[Topic]:
    """Return all offsets of a group, of the topics that the client may describe."""
    topics = await context.groups.fetch(group_id, None, require_stable=require_stable)
    ids = context.image.topic_ids
    for topic in topics:
        topic.topic_id = ids.get(topic.name, ZERO_UUID)
    return [topic for topic in topics if context.is_allowed("Describe", "Topic", topic.name)]


async def _some(
    context: Context, group: AskedGroup, asked: list[AskedTopic], require_stable: bool
) -> list[Topic]:
    """Return the offsets of the requested topics, in the request's order."""
    answers: list[Topic | None] = []
    known: list[tuple[str, list[int]]] = []
    for topic in asked:
        try:
            known.append((_name(context, topic), topic.partition_indexes))
        except KafkaError as error:
            answers.append(_refused(topic, error))
        else:
            answers.append(None)
    found = iter(await context.groups.fetch(group.group_id, known, require_stable=require_stable))
    topics = [answer or next(found) for answer in answers]
    for told, wanted in zip(topics, asked, strict=True):
        told.topic_id = wanted.topic_id
    return topics


def _name(context: Context, topic: AskedTopic) -> str:
    """Return the topic's name; a given name need not exist, for deleted topics may have offsets."""
    name = topic.name
    if topic.topic_id != ZERO_UUID:
        found = context.image.topics.get(topic.topic_id)
        if found is None:
            raise UnknownTopicId
        name = found.name
    context.check_allowed("Describe", "Topic", name)
    return name
