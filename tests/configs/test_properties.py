"""The forms a Java properties file may take."""

import pytest

from kwire.configs.declare import ConfigError
from kwire.configs.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb=2", {"a": "1", "b": "2"}),
        ("a : 1\r\nb 2\rc\t=\t3", {"a": "1", "b": "2", "c": "3"}),  # any separator, any line end
        ("# no\n! no\n\n  a = 1 ", {"a": "1 "}),  # blanks at the end belong to the value
        ("a=1\\\n   2\\\n\t3", {"a": "123"}),  # a joined line loses its indent
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),  # an escaped backslash joins nothing
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        (r"a\=b\:c\ d=x", {"a=b:c d": "x"}),
        (r"a=\u0041\t\q", {"a": "A\tq"}),
        (r"a=\ud83d\ude00 \\ud83d", {"a": "\U0001f600 \\ud83d"}),  # a character in two halves
        ("a==b", {"a": "=b"}),
        ("a=\nb", {"a": "", "b": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ("", {}),
    ],
)
def test_parse(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\ud83d", r"a=\ude00\ud83d"])
def test_broken_escape(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_properties(text)
