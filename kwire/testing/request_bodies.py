"""The bodies of requests, as faults need them: what a request names, and how it fails. Pure."""

from collections.abc import Iterator
from importlib import import_module
from typing import Final

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.compile import Part, decoder
from kwire.codec.frame import Body, RequestHead, read_header, response_parts
from kwire.codec.primitives import MalformedError
from kwire.codec.schema import Message
from kwire.errors import KafkaError
from kwire.handlers.dispatch import handler_of
from kwire.net.framing import Disconnect
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.testing.faults import Subjects

_TOPIC_FIELDS: Final = ("topic", "name", "topic_name")
_PARTITION_FIELDS: Final = ("partition", "index", "partition_index")
_GROUP_KEYS: Final = 0
"""The kind of the keys of FindCoordinator that are groups."""


def read_request(frame: memoryview, head: RequestHead, body: int) -> Body:
    """Return a request in its newest shape; ``body`` is the position behind its header.

    Raises Disconnect for one that the node would not answer either.
    """
    api = BY_KEY[head.api_key]
    widen = getattr(import_module(f"kwire.codec.messages.{api.module}"), "widen_request", None)
    try:
        request, _ = decoder(api.request, head.api_version)(frame, body)
        return request if widen is None else widen(request, head.api_version)
    except MalformedError as error:
        raise Disconnect(f"malformed {api.name}: {error}") from error


def refuse(frame: memoryview, error: KafkaError) -> list[Part] | None:
    """Return the response to a request that fails as a whole; None if it expects none."""
    head, body = read_header(frame)
    api = BY_KEY[head.api_key]
    request = read_request(frame, head, body)
    if api.name == "Fetch" and request.topics:
        response: Body = _refuse_fetch(request, error)
    else:
        response = handler_of(api, ListenerType.BROKER).refuse(request, error)
    if response is None:
        return None
    narrow = getattr(import_module(f"kwire.codec.messages.{api.module}"), "narrow_response", None)
    if narrow is not None:
        response = narrow(response, head.api_version, request)
    return response_parts(head.api_key, head.api_version, head.correlation_id, response)


def _refuse_fetch(request: Body, error: KafkaError) -> Body:
    """Return a response whose partitions have the error, as a broker answers that lost them.

    The handler's response to an error has only the code of the whole fetch, which clients take for
    one of their session.
    """
    from kwire.codec.messages.fetch import FetchResponse

    shape = FetchResponse.FetchableTopicResponse
    return FetchResponse(
        session_id=request.session_id,
        responses=[
            shape(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    shape.PartitionData(
                        partition_index=partition.partition,
                        error_code=error.code,
                        high_watermark=-1,
                        records=b"",
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def subjects_of(request: Body, image: MetadataImage) -> Subjects:
    """Return the partitions and groups that a request names, in whatever fields."""
    partitions: set[tuple[str, int | None]] = set()
    groups: set[str] = set()
    for message in _messages(request):
        group = getattr(message, "group_id", None)
        if group:
            groups.add(group)
        topic = next((t for n in _TOPIC_FIELDS if (t := getattr(message, n, None))), None)
        if topic is None and getattr(message, "topic_id", None) in image.topics:
            topic = image.topics[message.topic_id].name
        if isinstance(topic, str):
            partitions |= {(topic, index) for index in _indexes(message)}
    if getattr(request, "key_type", None) == _GROUP_KEYS:
        groups |= set(request.coordinator_keys)
    names = getattr(request, "groups", ())
    groups |= {name for name in names if isinstance(name, str)}
    return Subjects(frozenset(partitions), frozenset(groups))


def _messages(message: Body) -> Iterator[Body]:
    """Yield a message and all structures in it."""
    yield message
    for name in message.__slots__:
        value = getattr(message, name)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Message):
                yield from _messages(item)


def _indexes(topic: Body) -> Iterator[int | None]:
    """Yield the indexes of the partitions in a structure about a topic; None if it has none."""
    has_any = False
    for name in topic.__slots__:
        value = getattr(topic, name)
        for item in value if isinstance(value, list) else ():
            index = item
            if isinstance(item, Message):
                index = next(
                    (getattr(item, n) for n in _PARTITION_FIELDS if hasattr(item, n)), None
                )
            if isinstance(index, int):
                has_any = True
                yield index
    if not has_any:
        yield None
