"""The user name of a client with a certificate: ``ssl.principal.mapping.rules``.

A rule is ``RULE:pattern/replacement/`` with an optional ``L`` (lower case) or ``U`` (upper case) at
its end, or ``DEFAULT``, which keeps the distinguished name unchanged. The first rule whose pattern
matches the whole name applies. Patterns are Java's; those that Python's ``re`` cannot read, or
reads differently, are rejected. As in Java, ``\\w`` and the like stand for ASCII characters only,
and ``(?i)`` ignores the case of ASCII letters only: no other character stands for one of them.
"""

import re
import warnings
from typing import Final

import attrs

from kwire.configs.declare import ConfigError

_RULE: Final = r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)"
_SPLIT: Final = re.compile(rf"\s*(DEFAULT|{_RULE}.*?|.*?)\s*(?:,\s*|$)")
_PARSED: Final = re.compile(_RULE)
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|(\$)", re.DOTALL)


class Rule:
    """One rule with a pattern."""

    __slots__ = ("_case", "_parts", "_pattern")

    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        """Raise ConfigError if the pattern or the replacement is invalid."""
        try:
            self._pattern = _compile(pattern)
        except (re.error, ValueError, FutureWarning) as error:
            raise ConfigError(f"the pattern {pattern!r} is invalid: {error}") from None
        self._parts = _replacement_parts(replacement, self._pattern.groups)
        self._case = case

    def apply(self, name: str) -> str | None:
        """Return the user name for a distinguished name; None if the rule does not match it."""
        if self._pattern.fullmatch(name) is None:
            return None
        user = self._pattern.sub(self._expand, name)
        if self._case == "L":
            return user.lower()
        return user.upper() if self._case == "U" else user

    def _expand(self, match: re.Match[str]) -> str:
        """Return the replacement; an absent group is empty, as in Java."""
        return "".join(
            part if isinstance(part, str) else match.group(part) or "" for part in self._parts
        )


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile one of Java's patterns; raise an error if it would match other names here."""
    with warnings.catch_warnings():
        # Java's sets within sets, such as [a-z&&[^x]], are other sets in Python, which warns.
        warnings.simplefilter("error", FutureWarning)
        return re.compile(_NAMED_GROUP.sub("(?P<", pattern), re.ASCII)


def _replacement_parts(text: str, group_count: int) -> list[str | int]:
    """Return the literal strings and group numbers of a replacement, in Java's notation.

    Raises ConfigError for a reference that Java rejects.
    """
    parts: list[str | int] = []
    position = 0
    for match in _REFERENCE.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        escaped, digits, _ = match.groups()
        if escaped is not None:
            parts.append(escaped)
        elif digits is None or (not group_count and digits[0] != "0"):
            raise ConfigError(f"the replacement {text!r} refers to a group that does not exist")
        else:
            parts += _reference_parts(digits, group_count)
    return [*parts, text[position:]]


def _reference_parts(digits: str, group_count: int) -> list[str | int]:
    """Return the parts of ``$digits``: Java takes as many digits as name an existing group."""
    number = int(digits[0])
    if number > group_count:
        return [f"${digits}"]
    end = 1
    while end < len(digits) and 10 * number + int(digits[end]) <= group_count:
        number, end = 10 * number + int(digits[end]), end + 1
    return [number, digits[end:]]


@attrs.frozen(eq=False, repr=False)
class PrincipalRules:
    """The rules in order; None represents ``DEFAULT``."""

    rules: tuple[Rule | None, ...]

    @classmethod
    def parse(cls, text: str) -> "PrincipalRules":
        """Return the rules in a setting's text; raise ConfigError if one is invalid."""
        rules: list[Rule | None] = []
        for match in _SPLIT.finditer(text.strip()):
            rule = match[1]
            if not rule:
                continue
            parsed = _PARSED.fullmatch(rule)
            if rule == "DEFAULT":
                rules.append(None)
            elif parsed is None:
                raise ConfigError(f"invalid rule {rule!r}; write RULE:pattern/replacement/[LU]")
            else:
                rules.append(Rule(*parsed.groups()))
        return cls(tuple(rules))

    def user(self, name: str) -> str | None:
        """Return the user name for a distinguished name; None if no rule applies."""
        for rule in self.rules:
            user = name if rule is None else rule.apply(name)
            if user is not None:
                return user
        return None


def check_rules(text: str) -> str | None:
    """Return an error text if the rules are invalid."""
    try:
        PrincipalRules.parse(text)
    except ConfigError as error:
        return str(error)
    return None
