"""Responses that name brokers, with the proxy's addresses in place of theirs. Pure.

Rules: only the responses in :data:`REWRITTEN` are decoded, and only those that name a broker are
encoded again. APIs and versions that this codec does not have are removed from ApiVersions
responses, because the proxy could not find the addresses in their responses.
"""

from collections.abc import Mapping
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from kwire.codec.apis import BY_KEY, BY_NAME
from kwire.codec.frame import Body, RequestHead, read_header, read_response, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.primitives import MalformedError, read_uvarint
from kwire.codec.schema import spec_of
from kwire.errors import UnsupportedVersion
from kwire.net.listener import Address
from kwire.testing.request_bodies import messages_in

API_VERSIONS: Final = BY_NAME["ApiVersions"].key
PRODUCE: Final = BY_NAME["Produce"].key
_FETCH: Final = BY_NAME["Fetch"].key
_ALWAYS: Final = 0
REWRITTEN: Final[Mapping[int, int]] = {
    API_VERSIONS: _ALWAYS,
    BY_NAME["Metadata"].key: _ALWAYS,
    BY_NAME["FindCoordinator"].key: _ALWAYS,
    BY_NAME["DescribeCluster"].key: _ALWAYS,
    BY_NAME["DescribeTopicPartitions"].key: _ALWAYS,
    BY_NAME["CreateTopics"].key: _ALWAYS,
    PRODUCE: 10,
    _FETCH: 16,
    BY_NAME["ShareFetch"].key: _ALWAYS,
    BY_NAME["ShareAcknowledge"].key: _ALWAYS,
}
"""The APIs whose responses name brokers or topic ids, each with the first version that does."""
_CONTROLLERS: Final = 2
"""In DescribeCluster, the endpoint type that asks for controllers."""
_INT16: Final = Struct(">h")
_NO_ACKNOWLEDGEMENT: Final = 0
_ERROR_AT: Final = 4
"""The position of the error code in a response to ApiVersions."""


class Names(NamedTuple):
    """The brokers and topics in a response that the proxy remembers."""

    brokers: dict[int, Address]
    topics: dict[bytes, str]


def is_rewritten(head: RequestHead) -> bool:
    """Return whether the response to a request may name brokers or topics."""
    first = REWRITTEN.get(head.api_key)
    return first is not None and head.api_version >= first


def decode(head: RequestHead, answer: memoryview) -> Body:
    """Decode a response; raise MalformedError if the codec does not have its version."""
    version = head.api_version
    if head.api_key == API_VERSIONS and len(answer) > _ERROR_AT + 1:
        (error,) = _INT16.unpack_from(answer, _ERROR_AT)
        version = 0 if error == UnsupportedVersion.code else version
    if version not in spec_of(BY_KEY[head.api_key].request).versions:
        raise MalformedError(f"version {version} of {BY_KEY[head.api_key].name}")
    return read_response(head.api_key, version, answer)[1]


def names_in(response: Body) -> Names:
    """Return the brokers and the topics with ids that a response names."""
    names = Names({}, {})
    if getattr(response, "endpoint_type", None) == _CONTROLLERS:
        return names
    for message in _messages(response):
        node = _node_of(message)
        if node is not None and node >= 0 and message.host:
            names.brokers[node] = Address(message.host, message.port)
        topic_id = getattr(message, "topic_id", None)
        if topic_id is not None and getattr(message, "name", None):
            names.topics[topic_id] = message.name
    return names


def rewrite(head: RequestHead, response: Body, addresses: Mapping[int, Address]) -> bytes:
    """Return a response as bytes, with these broker addresses and only versions known here."""
    for message in _messages(response):
        node = _node_of(message)
        if node is not None and node in addresses:
            message.host, message.port = addresses[node]
    version = head.api_version
    if isinstance(response, ApiVersionsResponse):
        version = 0 if response.error_code == UnsupportedVersion.code else version
        _clamp(response)
    parts = response_parts(head.api_key, version, head.correlation_id, response)
    return b"".join(map(bytes, parts))


def _messages(response: Body) -> list[Body]:
    """Return the structures that may name a broker or a topic.

    The topics of Produce and Fetch responses are left out, because they contain no such names and
    there may be many of them.
    """
    if hasattr(response, "node_endpoints"):
        return list(response.node_endpoints)
    return list(messages_in(response))


def _node_of(message: Body) -> int | None:
    """Return the id of the broker whose address a structure contains; None without one."""
    if not hasattr(message, "host"):
        return None
    node: int | None = getattr(message, "node_id", getattr(message, "broker_id", None))
    return node


def _clamp(response: ApiVersionsResponse) -> None:
    versions = []
    for each in response.api_keys:
        api = BY_KEY.get(each.api_key)
        if api is None:
            continue
        own = spec_of(api.request).versions
        each.min_version = max(each.min_version, own.first)
        each.max_version = min(each.max_version, own.last)
        if each.min_version <= each.max_version:
            versions.append(each)
    response.api_keys = versions


def expects_answer(frame: memoryview) -> bool:
    """Return whether a request gets a response; the beginning of its frame is enough."""
    head, position = read_header(frame)
    if head.api_key != PRODUCE:
        return True
    try:
        if head.api_version >= spec_of(BY_KEY[PRODUCE].request).flexible.first:
            length, position = read_uvarint(frame, position)
            length -= 1
        else:
            (length,) = _INT16.unpack_from(frame, position)
            position += _INT16.size
        (acks,) = _INT16.unpack_from(frame, position + max(length, 0))
    except (struct_error, IndexError) as error:
        raise MalformedError(f"Produce: {error}") from error
    return bool(acks != _NO_ACKNOWLEDGEMENT)
