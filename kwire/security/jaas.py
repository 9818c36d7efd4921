"""Parses the value of ``sasl.jaas.config``: one login module with its options.

The syntax is that of Java's login configuration: ``CLASS FLAG name="value" ...;`` with quoted
values, and with comments. Kafka's parser treats a value that begins with a digit as a number and
rejects it, so such a value needs quotes here, too. Errors never show a value.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"(?P<skipped>\s+|/\*.*?\*/|//[^\n]*)"
    r'|"(?P<double>(?:\\.|[^"\\\n])*)"'
    r"|'(?P<single>(?:\\.|[^'\\\n])*)'"
    r"|(?P<word>[A-Za-z_$\u00a0-\U0010ffff][\w.$\u00a0-\U0010ffff-]*)"
    r"|(?P<sign>[=;])",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_NAMED: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


class LoginModule(NamedTuple):
    """A login module and its options."""

    name: str
    options: Mapping[str, str]


class _Token(NamedTuple):
    text: str
    is_sign: bool


_END: Final = _Token("", True)


def parse_login_module(text: str) -> LoginModule:
    """Return the login module; raise ValueError if ``text`` is not exactly one."""
    tokens = _tokens(text)
    name, flag = next(tokens, _END), next(tokens, _END)
    if name.is_sign:
        raise ValueError("it names no login module")
    if flag.is_sign or flag.text.lower() not in _FLAGS:
        raise ValueError(f"its second word must be one of {', '.join(_FLAGS)}")
    options = {}
    while (key := next(tokens, _END)) != (";", True):
        if key is _END:
            raise ValueError("the semicolon at its end is missing")
        equals, value = next(tokens, _END), next(tokens, _END)
        if key.is_sign or equals != ("=", True) or value.is_sign:
            raise ValueError('its options must be written as name="value"')
        options[key.text] = value.text
    if next(tokens, _END) is not _END:
        raise ValueError("it must be one login module")
    return LoginModule(name.text, options)


def _tokens(text: str) -> Iterator[_Token]:
    pos = 0
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise ValueError(f"character {pos + 1} fits neither a name nor a quoted value")
        pos = match.end()
        kind = match.lastgroup
        assert kind is not None, "every alternative of the pattern is a group"
        if kind in ("double", "single"):
            yield _Token(_ESCAPE.sub(_character, match[kind]), False)
        elif kind != "skipped":
            yield _Token(match[kind], kind == "sign")


def _character(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code.isdigit() and code < "8" else _NAMED.get(code, code)
