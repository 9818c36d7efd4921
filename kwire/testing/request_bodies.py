"""The bodies of requests: the topics and groups in them, and their error responses. Pure."""

from collections.abc import Callable, Iterator
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
from kwire.testing.faults import Subjects

_TOPIC_FIELDS: Final = ("topic", "name", "topic_name")
_PARTITION_FIELDS: Final = ("partition", "index", "partition_index")
TopicName = Callable[[bytes], str | None]
"""Returns the name of a topic with an id; None if no topic has it."""
_GROUP_KEYS: Final = 0
"""The kind of the keys of FindCoordinator that are groups."""


def read_request(frame: memoryview, head: RequestHead, body: int) -> Body:
    """Return a request in its newest shape; ``body`` is the position behind its header.

    Raises Disconnect for a request that the node would not answer either.
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
    response = refusal(read_request(frame, head, body), head, error)
    if response is None:
        return None
    return response_parts(head.api_key, head.api_version, head.correlation_id, response)


def refusal(request: Body, head: RequestHead, error: KafkaError) -> Body | None:
    """Return the response that rejects the whole request."""
    api = BY_KEY[head.api_key]
    response = handler_of(api, ListenerType.BROKER).refuse(request, error)
    narrow = getattr(import_module(f"kwire.codec.messages.{api.module}"), "narrow_response", None)
    if response is None or narrow is None:
        return response
    return narrow(response, head.api_version, request)


def subjects_of(request: Body, topic_name: TopicName) -> Subjects:
    """Return the partitions and groups in a request, whichever fields contain them."""
    partitions: set[tuple[str, int | None]] = set()
    groups: set[str] = set()
    for message in messages_in(request):
        group = getattr(message, "group_id", None)
        if group:
            groups.add(group)
        topic = topic_of(message, topic_name)
        if topic is not None:
            partitions |= {(topic, index) for index in _indexes(message)}
    if getattr(request, "key_type", None) == _GROUP_KEYS:
        groups |= set(request.coordinator_keys)
    names = getattr(request, "groups", ())
    groups |= {name for name in names if isinstance(name, str)}
    return Subjects(frozenset(partitions), frozenset(groups))


def topic_of(message: Body, topic_name: TopicName) -> str | None:
    """Return the name of the topic that a structure describes; None if it describes none."""
    topic = next((t for n in _TOPIC_FIELDS if (t := getattr(message, n, None))), None)
    if topic is None and (topic_id := getattr(message, "topic_id", None)) is not None:
        topic = topic_name(topic_id)
    return topic if isinstance(topic, str) else None


def messages_in(message: Body) -> Iterator[Body]:
    """Yield a message and all structures in it."""
    yield message
    for name in message.__slots__:
        value = getattr(message, name)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Message):
                yield from messages_in(item)


def index_of(item: object) -> int | None:
    """Return the index of the partition that an element describes; None if it describes none."""
    if isinstance(item, Message):
        item = next((getattr(item, n) for n in _PARTITION_FIELDS if hasattr(item, n)), None)
    return item if isinstance(item, int) else None


def partition_lists(topic: Body) -> Iterator[list[Body]]:
    """Yield the lists of partitions in a structure about a topic."""
    for name in topic.__slots__:
        value = getattr(topic, name)
        if isinstance(value, list) and any(index_of(item) is not None for item in value):
            yield value


def _indexes(topic: Body) -> Iterator[int | None]:
    """Yield the indexes of the partitions in a structure about a topic; None if it has none."""
    has_any = False
    for partitions in partition_lists(topic):
        for item in partitions:
            if (index := index_of(item)) is not None:
                has_any = True
                yield index
    if not has_any:
        yield None
