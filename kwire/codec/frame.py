"""Frames: a size, a header, and a body.

Here a frame excludes its four bytes of size, except in functions that return bytes to send. The
header's version follows from the message table: from the first flexible version of the message
onwards it is the flexible one. The response to ApiVersions always has the first header version,
because the client does not know the server's versions yet (KIP-511).
"""

from collections.abc import Generator
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple, TypeAlias

from kwire.codec.apis import BY_KEY
from kwire.codec.compile import Encoder, Part, decoder, encoder, encoder_in_steps
from kwire.codec.primitives import Buffer, MalformedError, read_uvarint, unknown_tags
from kwire.codec.schema import spec_of

API_VERSIONS: Final = 18

_NEVER: Final = 1 << 15
"""A number above every version; versions are int16."""
_REQUEST: Final = Struct(">hhih")
_RESPONSE_HEADS: Final = (Struct(">ii"), Struct(">iix"))
"""The size and the header of a response, by the header's version. The flexible one ends with the
number of tagged fields, which is 0."""
_INT32: Final = Struct(">i")


# Any: the API key of a frame determines the class of its body.
Body: TypeAlias = Any
"""A request or a response whose API is known only at run time."""


class RequestHead(NamedTuple):
    """The fields of a request's header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


@cache
def _first_flexible(api_key: int) -> int:
    """Return the first flexible version of an API; :data:`_NEVER` if it has none."""
    api = BY_KEY.get(api_key)
    if api is None:
        raise MalformedError(f"there is no API with key {api_key}")
    flexible = spec_of(api.request).flexible
    return flexible.first if flexible else _NEVER


def request_header_version(api_key: int, version: int) -> int:
    """Return 2 if the request is flexible, else 1."""
    return 2 if version >= _first_flexible(api_key) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return 1 if the response is flexible, else 0."""
    return 1 if version >= _first_flexible(api_key) and api_key != API_VERSIONS else 0


@cache
def response_head(api_key: int, version: int) -> Struct:
    """Return the layout of the size and the header of a response."""
    return _RESPONSE_HEADS[response_header_version(api_key, version)]


def read_header(frame: Buffer) -> tuple[RequestHead, int]:
    """Parse a request's header; return it and the position of the body.

    The version is not checked: the dispatcher does that. Raises MalformedError.
    """
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(frame)
        pos = _REQUEST.size
        client_id = None
        if length >= 0:
            if pos + length > len(frame):
                raise MalformedError(f"client id of {length} bytes exceeds the frame")
            client_id = str(frame[pos : pos + length], "utf-8")
            pos += length
        if version >= _first_flexible(key):
            count, pos = read_uvarint(frame, pos)
            if count:
                _, pos = unknown_tags(frame, pos, count)
    except (struct_error, IndexError, UnicodeError) as error:
        raise MalformedError(f"request header: {error}") from error
    return RequestHead(key, version, correlation_id, client_id), pos


def response_parts(api_key: int, version: int, correlation_id: int, response: object) -> list[Part]:
    """Return the parts of a response, starting with its size; record batches are separate parts."""
    encode = encoder(type(response), version)
    return encode_response(encode, response_head(api_key, version), correlation_id, response)


def encode_response(
    encode: Encoder[Body], head: Struct, correlation_id: int, response: Body
) -> list[Part]:
    """Return the same parts as :func:`response_parts`, for a known encoder and head."""
    parts: list[Part] = []
    encode(response, parts)
    if len(parts) == 1 and type(parts[0]) is bytes:  # the usual case
        body = parts[0]
        return [head.pack(head.size - _INT32.size + len(body), correlation_id) + body]
    _add_head(parts, head, correlation_id)
    return parts


def response_parts_in_steps(
    api_key: int, version: int, correlation_id: int, response: object
) -> Generator[None, None, list[Part]]:
    """Build the parts of a large response in small steps, which the caller runs in slices."""
    parts: list[Part] = []
    yield from encoder_in_steps(type(response), version)(response, parts)
    _add_head(parts, response_head(api_key, version), correlation_id)
    return parts


def _add_head(parts: list[Part], head: Struct, correlation_id: int) -> None:
    """Insert the size and the header before the parts of a body."""
    size = sum(map(len, parts)) + head.size - _INT32.size
    body = parts[0] if parts else None
    if type(body) is bytes:  # A small answer is one part, which is sent with one call.
        parts[0] = head.pack(size, correlation_id) + body
    else:
        parts.insert(0, head.pack(size, correlation_id))


def request_frame(
    api_key: int, version: int, correlation_id: int, client_id: str | None, request: object
) -> bytes:
    """Return the bytes of a request, starting with its size."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    parts: list[Part] = [b"", name]
    if version >= _first_flexible(api_key):
        parts.append(b"\0")
    encoder(type(request), version)(request, parts)
    parts[0] = _REQUEST.pack(api_key, version, correlation_id, length)
    return b"".join([_INT32.pack(sum(map(len, parts))), *parts])


def read_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Body]:
    """Return the correlation id and the body of a response."""
    correlation_id, pos = _response_header(api_key, version, frame)
    return correlation_id, decoder(BY_KEY[api_key].response, version)(frame, pos)[0]


def leading_int32(api_key: int, version: int, frame: Buffer) -> int:
    """Return the first field of a response that starts with an int32, such as the throttle time."""
    _, pos = _response_header(api_key, version, frame)
    try:
        (value,) = _INT32.unpack_from(frame, pos)
    except struct_error as error:
        raise MalformedError(f"response: {error}") from error
    return int(value)


def _response_header(api_key: int, version: int, frame: Buffer) -> tuple[int, int]:
    """Return the correlation id and the position of the body."""
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        pos = 4
        if response_header_version(api_key, version):
            count, pos = read_uvarint(frame, pos)
            if count:
                _, pos = unknown_tags(frame, pos, count)
    except (struct_error, IndexError) as error:
        raise MalformedError(f"response header: {error}") from error
    return correlation_id, pos


def response_to(frame: Buffer, answer: Buffer) -> Body:
    """Return the body of the response to a request frame that was received."""
    head, _ = read_header(frame)
    return read_response(head.api_key, head.api_version, answer)[1]
