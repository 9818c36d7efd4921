"""The patterns with which clients select transactional ids, matched in linear time.

Rules: a pattern is a subset of RE2's syntax, which Kafka uses, and must match the whole id. It has
at most 256 characters and consists of literals, escaped punctuation, ``.``, ``\\d``, ``\\w``,
``\\s`` (ASCII), classes such as ``[a-z_]`` and ``[^0-9]``, and groups ``(...)`` and ``(?:...)``,
each with an optional ``*``, ``+`` or ``?``. Alternatives are separated by ``|``; those outside
groups may start with ``^`` and end with ``$``. ``{n,m}`` is rejected. The pattern becomes an
automaton without backtracking (Thompson, 1968), which follows all states that a prefix of the id
can reach at once. So no pattern takes exponential time, as it can with :mod:`re`.
"""

from string import punctuation
from typing import Final, NamedTuple, TypeAlias

import attrs

from kwire.errors import InvalidRegularExpression

_MAX_LENGTH: Final = 256
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")
_CLASSES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "d": (("0", "9"),),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
}
_END: Final = 0
"""The accepting state: the pattern is matched to its end."""


class _Characters(NamedTuple):
    """The characters that match at one place of a pattern, as inclusive ranges."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False

    def accepts(self, character: str) -> bool:
        return self.is_negated != any(low <= character <= high for low, high in self.ranges)


class _Item(NamedTuple):
    """Characters or a group, with their repetition."""

    atom: "_Characters | _Group"
    repeat: str = ""
    """``*``, ``+``, ``?``, or empty."""


_Sequence: TypeAlias = list[_Item]


class _Group(NamedTuple):
    """The alternatives of a group, or of the whole pattern."""

    alternatives: list[_Sequence]


class _State(NamedTuple):
    """A state of the automaton: it reads one character, or none if ``characters`` is None."""

    characters: _Characters | None
    following: list[int]


@attrs.define(eq=False, repr=False)
class IdPattern:
    """The automaton of a pattern."""

    states: list[_State]
    start: int

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        reached = self._reachable({self.start})
        for character in text:
            after = {
                self.states[index].following[0]
                for index in reached
                if (characters := self.states[index].characters) is not None
                and characters.accepts(character)
            }
            if not after:
                return False
            reached = self._reachable(after)
        return _END in reached

    def _reachable(self, indexes: set[int]) -> set[int]:
        """Return these states and all that can be reached from them without reading a character."""
        reached, pending = set(indexes), list(indexes)
        while pending:
            state = self.states[pending.pop()]
            if state.characters is None:
                new = [index for index in state.following if index not in reached]
                reached.update(new)
                pending += new
        return reached


def parse(text: str) -> IdPattern:
    """Parse a pattern into its automaton; raises InvalidRegularExpression."""
    if len(text) > _MAX_LENGTH:
        raise InvalidRegularExpression(f"a pattern has at most {_MAX_LENGTH} characters")
    group, position = _parse_group(text, 0, is_whole=True)
    if position < len(text):
        raise InvalidRegularExpression(f"unsupported {text[position]} at {position}")
    states = [_State(None, [])]
    return IdPattern(states, _add_group(states, group, _END))


# The automaton, built from its end.


def _add(states: list[_State], characters: _Characters | None, following: list[int]) -> int:
    states.append(_State(characters, following))
    return len(states) - 1


def _add_group(states: list[_State], group: _Group, following: int) -> int:
    starts = []
    for sequence in group.alternatives:
        start = following
        for item in reversed(sequence):
            start = _add_item(states, item, start)
        starts.append(start)
    return starts[0] if len(starts) == 1 else _add(states, None, starts)


def _add_item(states: list[_State], item: _Item, following: int) -> int:
    if item.repeat in ("", "?"):
        start = _add_atom(states, item.atom, following)
        return start if not item.repeat else _add(states, None, [start, following])
    loop = _add(states, None, [following])
    start = _add_atom(states, item.atom, loop)
    states[loop].following.append(start)
    return loop if item.repeat == "*" else start


def _add_atom(states: list[_State], atom: _Characters | _Group, following: int) -> int:
    if isinstance(atom, _Group):
        return _add_group(states, atom, following)
    return _add(states, atom, [following])


# The syntax.


def _parse_group(text: str, position: int, *, is_whole: bool = False) -> tuple[_Group, int]:
    """Parse a group from its first alternative; return it and the position of its end."""
    group = _Group([[]])
    position += is_whole and text.startswith("^", position)
    while position < len(text) and text[position] != ")":
        if text[position] == "|":
            group.alternatives.append([])
            position += 2 if is_whole and text.startswith("^", position + 1) else 1
        elif is_whole and text[position] == "$" and text[position + 1 : position + 2] in ("", "|"):
            position += 1
        else:
            item, position = _parse_item(text, position)
            group.alternatives[-1].append(item)
    return group, position


def _parse_item(text: str, position: int) -> tuple[_Item, int]:
    """Parse the item at a position; return it and the position after it."""
    character = text[position]
    atom: _Characters | _Group
    if character == ".":
        atom, position = _Characters((("\n", "\n"),), is_negated=True), position + 1
    elif character == "[":
        atom, position = _parse_class(text, position + 1)
    elif character == "\\":
        ranges, position = _parse_escape(text, position)
        atom = _Characters(ranges)
    elif character == "(":
        start = position + 3 if text.startswith("(?:", position) else position + 1
        atom, position = _parse_group(text, start)
        if position == len(text):
            raise InvalidRegularExpression("missing )")
        position += 1
    elif character in _SPECIAL:
        raise InvalidRegularExpression(f"unsupported {character} at {position}")
    else:
        atom, position = _Characters(((character, character),)), position + 1
    if position < len(text) and text[position] in "*+?":
        return _Item(atom, text[position]), position + 1
    return _Item(atom), position


def _parse_escape(text: str, position: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """Parse the escape at a position; return its characters and the position after it."""
    character = text[position + 1 : position + 2]
    if character in _CLASSES:
        return _CLASSES[character], position + 2
    if not character or character not in punctuation:
        raise InvalidRegularExpression(f"unsupported escape at {position}")
    return ((character, character),), position + 2


def _parse_class(text: str, position: int) -> tuple[_Characters, int]:
    """Parse the class whose content starts at a position; return it and the position after it."""
    is_negated = text.startswith("^", position)
    position += is_negated
    ranges: list[tuple[str, str]] = []
    start = position
    while not text.startswith("]", position) or position == start:
        low, position = _parse_member(text, position, is_first=position == start)
        is_range = text.startswith("-", position) and not text.startswith("-]", position)
        if not is_range:
            ranges += low
            continue
        high, position = _parse_member(text, position + 1, is_first=False)
        if len(low) != 1 or low[0][0] != low[0][1] or len(high) != 1 or high[0][0] != high[0][1]:
            raise InvalidRegularExpression(f"invalid range before {position}")
        if low > high:
            raise InvalidRegularExpression(f"invalid range before {position}")
        ranges.append((low[0][0], high[0][0]))
    return _Characters(tuple(ranges), is_negated), position + 1


def _parse_member(
    text: str, position: int, *, is_first: bool
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Parse one member of a class; return its characters and the position after it."""
    character = text[position : position + 1]
    if character == "\\":
        return _parse_escape(text, position)
    is_dash = character == "-" and not (is_first or text.startswith("-]", position))
    if not character or character in "[]" or is_dash:
        raise InvalidRegularExpression(f"unsupported class at {position}")
    return ((character, character),), position + 1
