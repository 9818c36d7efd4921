"""Alterations of requests by faults: the frames to carry out, and the response to the client.

Pure, and used by a test broker and by the proxy in front of another cluster. Rules: only what the
fault needs is decoded. A fault about some partitions of a request does not affect the others: the
rest of the request is carried out, and the errors of the faulty partitions are added to its
response, as if the broker had found them. A Fetch is always carried out, because otherwise the
broker would lose track of the session; its response then has errors instead of records.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

import attrs

from kwire.codec.apis import BY_KEY
from kwire.codec.compile import decoder
from kwire.codec.frame import (
    Body,
    RequestHead,
    read_header,
    read_response,
    request_frame,
    response_parts,
)
from kwire.errors import KafkaError
from kwire.testing.faults import Fault
from kwire.testing.fetch_sessions import FetchedPartitions
from kwire.testing.request_bodies import (
    TopicName,
    index_of,
    messages_in,
    partition_lists,
    read_request,
    refusal,
    topic_of,
)

_BATCH_LENGTH: Final = Struct(">i")
_LENGTH_AT: Final = 8
"""The position of a batch's length field, which counts the bytes after the field."""


class Ending(NamedTuple):
    """The response that ends an altered request, if any, and whether the connection closes."""

    data: bytes | None
    """The bytes to send, starting with the size; None if there is no answer."""
    closes: bool = False
    """True if the connection is closed afterwards."""


@attrs.frozen(eq=False, repr=False)
class Alteration:
    """The steps by which a request with a fault is carried out and answered."""

    frames: tuple[memoryview, ...]
    """The frames to carry out: none, the request or the rest of it, or the request twice."""
    end: Callable[[memoryview | None], Ending]
    """Returns the ending, given the last response without its size (None if there was none)."""
    delay_s: float = 0.0
    """The seconds to wait before the first step."""
    muted_s: float = 0.0
    """The seconds for which the connection is not read afterwards."""


def alter(
    fault: Fault, frame: memoryview, fetched: FetchedPartitions, topic_name: TopicName
) -> Alteration:
    """Return how to carry out a request, given its frame; raise Disconnect if it is malformed.

    ``frame`` begins after the size. ``fetched`` are the partitions of the connection's fetch
    session.
    """
    head, _ = read_header(frame)
    match fault.action:
        case "fail":
            assert fault.error is not None
            return _fail(fault, fault.error(), frame, fetched, topic_name)
        case "delay":
            return Alteration((frame,), answer_as_is, delay_s=fault.seconds)
        case "drop":
            # A Fetch changes nothing, and might wait for long.
            is_carried_out = fault.after and BY_KEY[head.api_key].name != "Fetch"
            return Alteration(
                (frame,) if is_carried_out else (), lambda answer: Ending(None, closes=True)
            )
        case "cut":
            return Alteration((frame,), _cut)
        case "throttle":
            end = partial(_throttle, head, fault.seconds)
            return Alteration((frame,), end, muted_s=fault.seconds)
        case "duplicate":
            return Alteration((frame, frame), answer_as_is)
        case "corrupt" if BY_KEY[head.api_key].name == "Produce":
            return Alteration((_corrupt_request(fault, frame, topic_name),), answer_as_is)
        case "corrupt":
            return Alteration((frame,), partial(_corrupt_fetch, fault, head, topic_name))


def _with_size(answer: memoryview) -> bytes:
    return len(answer).to_bytes(4, "big") + answer


def answer_as_is(answer: memoryview | None) -> Ending:
    return Ending(None if answer is None else _with_size(answer))


def _cut(answer: memoryview | None) -> Ending:
    if answer is None:
        return Ending(None, closes=True)
    data = _with_size(answer)
    return Ending(data[: len(data) // 2], closes=True)


def _throttle(head: RequestHead, seconds: float, answer: memoryview | None) -> Ending:
    if answer is None:
        return Ending(None)
    _, response = read_response(head.api_key, head.api_version, answer)
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = int(seconds * 1000)
    return Ending(_encode(head, response))


def _encode(head: RequestHead, response: Body) -> bytes:
    parts = response_parts(head.api_key, head.api_version, head.correlation_id, response)
    return b"".join(map(bytes, parts))


# Errors -------------------------------------------------------------------------------------
def _fail(
    fault: Fault,
    error: KafkaError,
    frame: memoryview,
    fetched: FetchedPartitions,
    topic_name: TopicName,
) -> Alteration:
    head, body = read_header(frame)
    api = BY_KEY[head.api_key]
    if api.name == "Fetch" and (failed := _fetched_by(fault, fetched, topic_name)):
        request: Body
        request, _ = decoder(api.request, head.api_version)(frame, body)
        request.max_wait_ms = 0
        return Alteration(
            (_request(head, request),), partial(_fail_fetch, head, error, failed, topic_name)
        )
    request = read_request(frame, head, body)
    if fault.has_partitions:
        _keep(request, fault.picks, topic_name)
    refused = refusal(request, head, error)
    if fault.has_partitions and _has_topics(refused, topic_name):
        rest, _ = decoder(api.request, head.api_version)(frame, body)
        remaining = _keep(rest, lambda topic, i: not fault.picks(topic, i), topic_name)
        if remaining or (api.name == "Metadata" and head.api_version):
            return Alteration((_request(head, rest),), partial(_add, head, refused, topic_name))
    data = None if refused is None else _encode(head, refused)
    return Alteration((), lambda answer: Ending(data))


def _request(head: RequestHead, request: Body) -> memoryview:
    data = request_frame(*head, request)
    return memoryview(data)[4:]


def _keep(request: Body, is_kept: Callable[[str, int | None], bool], topic_name: TopicName) -> int:
    """Remove all other topics and partitions; return the number of remaining topics."""
    remaining = 0
    for message in list(messages_in(request)):
        for name in message.__slots__:
            items = getattr(message, name)
            if isinstance(items, list) and any(topic_of(i, topic_name) for i in items):
                items[:] = [item for item in items if _keep_in(item, is_kept, topic_name)]
                remaining += len(items)
    return remaining


def _keep_in(item: Body, is_kept: Callable[[str, int | None], bool], topic_name: TopicName) -> bool:
    """Remove all other partitions from a structure; return whether the topic is kept."""
    topic = topic_of(item, topic_name) or ""
    lists = list(partition_lists(item))
    for partitions in lists:
        partitions[:] = [p for p in partitions if is_kept(topic, index_of(p))]
    return any(lists) if lists else is_kept(topic, None)


def _has_topics(response: Body | None, topic_name: TopicName) -> bool:
    """Return whether a response can have an error for each topic or partition."""
    return response is not None and any(
        topic_of(item, topic_name) is not None for items in _lists(response) for item in items
    )


def _lists(message: Body) -> list[list[Body]]:
    values = (getattr(message, name) for name in message.__slots__)
    return [value for value in values if isinstance(value, list)]


def _add(
    head: RequestHead, refused: Body, topic_name: TopicName, answer: memoryview | None
) -> Ending:
    """Add the topics and partitions with errors to the response for the others."""
    if answer is None:
        return Ending(None)
    _, response = read_response(head.api_key, head.api_version, answer)
    for items, others in zip(_lists(response), _lists(refused), strict=True):
        for other in others:
            topic = topic_of(other, topic_name)
            if topic is None:
                continue
            same = next((i for i in items if topic_of(i, topic_name) == topic), None)
            if same is None:
                items.append(other)
                continue
            for partitions, more in zip(_lists(same), _lists(other), strict=True):
                partitions += more
    return Ending(_encode(head, response))


# Fetch --------------------------------------------------------------------------------------
def _fetched_by(
    fault: Fault, fetched: FetchedPartitions, topic_name: TopicName
) -> list[tuple[str | bytes, int]]:
    """Return the partitions of a session that a fault affects, by the client's topic names."""
    return [
        (topic, index)
        for topic, index in fetched.partitions
        if fault.picks(_text(topic, topic_name), index)
    ]


def _text(topic: str | bytes, topic_name: TopicName) -> str:
    return topic if isinstance(topic, str) else topic_name(topic) or ""


def _fail_fetch(
    head: RequestHead,
    error: KafkaError,
    failed: list[tuple[str | bytes, int]],
    topic_name: TopicName,
    answer: memoryview | None,
) -> Ending:
    """Replace the records of the failed partitions by the error."""
    assert answer is not None, "every Fetch is answered"
    from kwire.codec.messages.fetch import FetchResponse

    _, response = read_response(head.api_key, head.api_version, answer)
    if response.error_code:
        return Ending(_encode(head, response))
    shape = FetchResponse.FetchableTopicResponse
    rest = set(failed)
    for topic in response.responses:
        topic.partitions = [
            p
            for p in topic.partitions
            if not rest & {(topic.topic, p.partition_index), (topic.topic_id, p.partition_index)}
        ]
    topics = {topic.topic or topic.topic_id: topic for topic in response.responses}
    for name, index in failed:
        topic = topics.get(name)
        if topic is None:
            topic = shape(topic=name) if isinstance(name, str) else shape(topic_id=name)
            topics[name] = topic
            response.responses.append(topic)
        topic.partitions.append(
            shape.PartitionData(
                partition_index=index, error_code=error.code, high_watermark=-1, records=b""
            )
        )
    response.responses = [topic for topic in response.responses if topic.partitions]
    return Ending(_encode(head, response))


# Records ------------------------------------------------------------------------------------
def _corrupt_request(fault: Fault, frame: memoryview, topic_name: TopicName) -> memoryview:
    head, body = read_header(frame)
    request: Body
    request, _ = decoder(BY_KEY[head.api_key].request, head.api_version)(frame, body)
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records and fault.picks(topic_of(topic, topic_name) or "", data.index):
                data.records = _flip_bit(data.records)
    return _request(head, request)


def _corrupt_fetch(
    fault: Fault, head: RequestHead, topic_name: TopicName, answer: memoryview | None
) -> Ending:
    assert answer is not None, "every Fetch is answered"
    _, response = read_response(head.api_key, head.api_version, answer)
    is_damaged = False
    for topic in response.responses:
        for data in topic.partitions:
            picked = fault.picks(topic_of(topic, topic_name) or "", data.partition_index)
            if picked and data.records:
                data.records = _flip_bit(data.records)
                is_damaged = True
    if not is_damaged:
        fault.give_back()
    return Ending(_encode(head, response))


def _flip_bit(records: memoryview) -> bytes:
    """Return the records with one bit flipped in the last byte of the first batch."""
    data = bytearray(records)
    size = len(data)
    if size >= _LENGTH_AT + _BATCH_LENGTH.size:
        (length,) = _BATCH_LENGTH.unpack_from(data, _LENGTH_AT)
        size = min(max(_LENGTH_AT + _BATCH_LENGTH.size + length, 1), size)
    data[size - 1] ^= 1
    return bytes(data)
