"""Reads a certificate (X.509, DER): its expiry and its names, the subject as Java prints it.

Java uses the format of RFC 2253, which begins with the last part of the name. An attribute without
a keyword in the RFC is written as its object identifier, followed by ``#`` and the value's DER
bytes. Pure; raises ValueError for bytes that are not a certificate. The bytes come from OpenSSL,
which has already parsed them.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
}
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # TeletexString
    0x16: "ascii",  # IA5String
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = ',=+<>#;"\\'
_SEQUENCE: Final = 0x30
_OPTIONAL_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_EXTENSIONS: Final = 0xA3
_ALTERNATIVES: Final = b"\x55\x1d\x11"
"""The extension subjectAltName (RFC 5280, section 4.2.1.6)."""
_DNS_NAME: Final = 0x82
_ADDRESS: Final = 0x87


class _Element(NamedTuple):
    """A DER element."""

    tag: int
    value: bytes
    whole: bytes
    """The element with its tag and length."""


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the consecutive elements in ``data``."""
    position = 0
    while position < len(data):
        start, tag, size = position, data[position], data[position + 1]
        position += 2
        if size & 0x80:
            width = size & 0x7F
            size = int.from_bytes(data[position : position + width], "big")
            position += width
        end = position + size
        if end > len(data):
            raise ValueError("a DER element beyond the end")
        yield _Element(tag, data[position:end], data[start:end])
        position = end


def _fields(certificate: bytes) -> list[_Element]:
    """Return the fields of the certificate's signed part, without the optional version."""
    try:
        (outer,) = _elements(certificate)
        signed = next(_elements(outer.value))
        fields = [field for field in _elements(signed.value) if field.tag != _OPTIONAL_VERSION]
    except (IndexError, StopIteration) as error:
        raise ValueError("not a certificate") from error
    if outer.tag != _SEQUENCE or len(fields) < 5:
        raise ValueError("not a certificate")
    return fields


def subject(certificate: bytes) -> str:
    """Return the subject's distinguished name, as X500Principal.getName() prints it."""
    name = _fields(certificate)[4]
    return ",".join(reversed([_relative_name(part) for part in _elements(name.value)]))


def alternative_names(certificate: bytes) -> frozenset[str]:
    """Return the entries of ``subjectAltName``, such as ``DNS:host1`` and ``IP:127.0.0.1``.

    An entry of another kind is returned as its DER bytes in hexadecimal.
    """
    names: set[str] = set()
    for field in _fields(certificate)[6:]:
        if field.tag != _EXTENSIONS:
            continue
        (extensions,) = _elements(field.value)
        for extension in _elements(extensions.value):
            kind, *_, value = _elements(extension.value)
            if kind.value == _ALTERNATIVES:
                (entries,) = _elements(value.value)
                names.update(map(_alternative_name, _elements(entries.value)))
    return frozenset(names)


def _alternative_name(entry: _Element) -> str:
    if entry.tag == _DNS_NAME:
        return f"DNS:{entry.value.decode('ascii', 'replace')}"
    if entry.tag == _ADDRESS and len(entry.value) in (4, 16):
        return f"IP:{ip_address(entry.value)}"
    return entry.whole.hex()


def _relative_name(part: _Element) -> str:
    return "+".join(_attribute(*_elements(pair.value)) for pair in _elements(part.value))


def _attribute(kind: _Element, value: _Element) -> str:
    keyword, encoding = _KEYWORDS.get(kind.value), _ENCODINGS.get(value.tag)
    if keyword is None:
        return f"{_number(kind.value)}=#{value.whole.hex()}"
    if encoding is None:
        return f"{keyword}=#{value.whole.hex()}"
    return f"{keyword}={_escape(value.value.decode(encoding, 'replace'))}"


def _number(identifier: bytes) -> str:
    """Return an object identifier in dotted form."""
    numbers, number = [], 0
    for byte in identifier:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escape(text: str) -> str:
    body = "".join(f"\\{character}" if character in _ESCAPED else character for character in text)
    end = len(body.rstrip(" "))
    start = min(len(body) - len(body.lstrip(" ")), end)
    return "\\ " * start + body[start:end] + "\\ " * (len(body) - end)


def in_order(own: bytes, others: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return a certificate followed by those of its issuers that are in ``others``."""
    by_subject = {_fields(other)[4].whole: other for other in others}
    chain = [own]
    while issuer := by_subject.pop(_fields(chain[-1])[2].whole, None):
        if issuer not in chain:
            chain.append(issuer)
    return tuple(chain)


def expiry_ms(certificate: bytes) -> int:
    """Return the time until which a certificate is valid, in milliseconds since 1970."""
    _, end = _elements(_fields(certificate)[3].value)
    text = end.value.decode("ascii").rstrip("Z")
    if end.tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    when = datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)
