"""Reads Java's ``.properties`` files, the format of ``server.properties``.

The rules are those of java.util.Properties: ``#`` and ``!`` begin comments; the key ends at the
first unescaped ``=``, ``:`` or blank; a backslash at the end of a line joins it with the next
line; ``\\t \\n \\r \\f \\uXXXX`` stand for characters, and any other escaped character for itself.
"""

import re
from collections.abc import Iterator
from typing import Final

from kwire.configs.declare import ConfigError

_BLANK: Final = " \t\f"
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in the file; if a name is repeated, the last value counts."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None, "every part of the pattern may be empty"
        properties[_unescape(match.group(1))] = _unescape(line[match.end() :])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    pending: str | None = None
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(_BLANK)
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending = line[:-1]
            continue
        pending = None
        yield line
    if pending:
        yield pending


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    try:  # Java's escapes are units of UTF-16, so many characters take two.
        return plain.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError:
        raise ConfigError("a \\u with half a character; write both of its halves") from None


def _character(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16))
    if code == "u":
        raise ConfigError(
            "a \\u without four hexadecimal digits; write a backslash as two, or / in a path"
        )
    return _NAMED.get(code, code)
