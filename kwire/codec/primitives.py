"""The functions that generated code calls, and the errors that they raise.

They cover only rare paths: a varint of more than one byte, an unknown tag, an error. The common
paths are inlined in the generated code.
"""

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

Buffer = bytes | bytearray | memoryview

MAX_STRING_BYTES: Final = 32767
UVARINT_BYTE: Final = tuple(bytes([value]) for value in range(128))


class MalformedError(ValueError):
    """The bytes are not a valid message; the text names the field that failed."""


class EncodeError(ValueError):
    """The message cannot be written in this version; the text names the field."""


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Return an unsigned varint of up to 32 bits and its end; IndexError past the buffer's end."""
    first = buf[pos]
    return (first, pos + 1) if first < 128 else uvarint_rest(buf, pos + 1, first)


def uvarint_rest(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Return a varint and its end, given its ``first`` byte, which is the one before ``pos``."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFF, pos
    raise MalformedError("varint of more than five bytes")


def uvarint(value: int) -> bytes:
    """Return ``value`` as an unsigned varint."""
    if value < 128:
        return UVARINT_BYTE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tag(buf: Buffer, pos: int) -> tuple[int, int, int]:
    """Return the number and size of a tagged field and the position of its content."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    return tag, size, pos


def unknown_tag(buf: Buffer, pos: int, tag: int, size: int) -> tuple[tuple[int, bytes], int]:
    """Return the number and content of an unknown tagged field, and its end."""
    end = pos + size
    if end > len(buf):
        raise MalformedError(f"tagged field {tag} has {size} bytes, {len(buf) - pos} are left")
    return (tag, bytes(buf[pos:end])), end


def unknown_tags(buf: Buffer, pos: int, count: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Return ``count`` unknown tagged fields, and their end."""
    tags = []
    for _ in range(count):
        tag, size, pos = read_tag(buf, pos)
        field, pos = unknown_tag(buf, pos, tag, size)
        tags.append(field)
    return tuple(tags), pos


def write_tags(add: Callable[[bytes], object], tags: list[tuple[int, bytes]]) -> None:
    """Write the number of tagged fields, then the fields in ascending order of their tags."""
    tags.sort(key=lambda item: item[0])
    add(uvarint(len(tags)))
    last = -1
    for tag, data in tags:
        if tag == last:
            raise EncodeError(f"tag {tag} appears twice")
        last = tag
        add(uvarint(tag) + uvarint(len(data)))
        add(data)


def _field(error: BaseException, paths: Sequence[str]) -> str:
    """Return the field that was being processed when generated code raised ``error``."""
    trace = error.__traceback__
    return paths[trace.tb_lineno] if trace and trace.tb_lineno < len(paths) else ""


def decode_error(title: str, paths: Sequence[str], error: Exception) -> MalformedError:
    """Return the MalformedError for an exception that a generated decoder raised."""
    return MalformedError(f"{title}: {_field(error, paths) or 'message'}: {error}")


def encode_error(title: str, paths: Sequence[str], error: Exception) -> EncodeError:
    """Return the EncodeError for an exception that a generated encoder raised."""
    return EncodeError(f"{title}: {_field(error, paths) or 'message'}: {error}")


def too_long(length: int, remaining: int) -> NoReturn:
    raise MalformedError(f"{length} bytes or elements announced, {remaining} bytes left")


def is_null() -> NoReturn:
    raise MalformedError("null is not allowed here")


def null_given() -> NoReturn:
    raise EncodeError("null is not allowed here")


def too_long_to_write(length: int) -> NoReturn:
    raise EncodeError(f"text has {length} bytes, the limit is {MAX_STRING_BYTES}")


def not_in_version() -> NoReturn:
    raise EncodeError("this version has no such field, and its value would be lost")
