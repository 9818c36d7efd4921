"""The patterns by which clients select transactional ids, in linear time.

Rules: a pattern is a part of RE2's language, which Kafka uses, and matches the whole id.  It has
at most 256 characters: literals, escaped punctuation, ``.``, ``\\d``, ``\\w``, ``\\s`` (ASCII) and
classes such as ``[a-z_]`` and ``[^0-9]``, each with an optional ``*``, ``+`` or ``?``; ``|``
between alternatives, and ``^`` and ``$`` at their ends.  Groups and ``{n,m}`` are refused.  All
positions that a prefix of the pattern reaches are followed together, so no pattern takes
exponential time, as it can with :mod:`re`.
"""

from string import punctuation
from typing import Final, NamedTuple

from kwire.errors import InvalidRegularExpression

_MAX_LENGTH: Final = 256
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")
_CLASSES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "d": (("0", "9"),),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
}


class _Item(NamedTuple):
    """The characters of one place in a pattern, as inclusive ranges, and their repetition."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False
    repeat: str = ""
    """``*``, ``+``, ``?`` or nothing."""

    def accepts(self, character: str) -> bool:
        return self.is_negated != any(low <= character <= high for low, high in self.ranges)

    def advance(self, positions: set[int], text: str) -> set[int]:
        """Return the positions behind this item, from those before it."""
        after = {i + 1 for i in positions if i < len(text) and self.accepts(text[i])}
        if self.repeat in ("*", "+"):
            for start in list(after):
                end = start
                while end < len(text) and end + 1 not in after and self.accepts(text[end]):
                    end += 1
                    after.add(end)
        return after | positions if self.repeat in ("*", "?") else after


class IdPattern(NamedTuple):
    """A pattern: its alternatives."""

    alternatives: tuple[tuple[_Item, ...], ...]

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole text."""
        return any(_reaches_end(items, text) for items in self.alternatives)


def _reaches_end(items: tuple[_Item, ...], text: str) -> bool:
    positions = {0}
    for item in items:
        positions = item.advance(positions, text)
        if not positions:
            return False
    return len(text) in positions


def parse(text: str) -> IdPattern:
    """Return the pattern; raises InvalidRegularExpression."""
    if len(text) > _MAX_LENGTH:
        raise InvalidRegularExpression(f"a pattern has at most {_MAX_LENGTH} characters")
    alternatives: list[tuple[_Item, ...]] = []
    items: list[_Item] = []
    position = 1 if text.startswith("^") else 0
    while position < len(text):
        if text[position] == "|":
            alternatives.append(tuple(items))
            items = []
            position += 2 if text.startswith("^", position + 1) else 1
        elif text[position] == "$" and text[position + 1 : position + 2] in ("", "|"):
            position += 1
        else:
            item, position = _parse_item(text, position)
            items.append(item)
    return IdPattern((*alternatives, tuple(items)))


def _parse_item(text: str, position: int) -> tuple[_Item, int]:
    """Return the item at a position and the position after it."""
    character = text[position]
    if character == ".":
        item, position = _Item((("\n", "\n"),), is_negated=True), position + 1
    elif character == "[":
        item, position = _parse_class(text, position + 1)
    elif character == "\\":
        ranges, position = _parse_escape(text, position)
        item = _Item(ranges)
    elif character in _SPECIAL:
        raise InvalidRegularExpression(f"unsupported {character} at {position}")
    else:
        item, position = _Item(((character, character),)), position + 1
    if position < len(text) and text[position] in "*+?":
        return item._replace(repeat=text[position]), position + 1
    return item, position


def _parse_escape(text: str, position: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return the characters of an escape and the position after it."""
    character = text[position + 1 : position + 2]
    if character in _CLASSES:
        return _CLASSES[character], position + 2
    if not character or character not in punctuation:
        raise InvalidRegularExpression(f"unsupported escape at {position}")
    return ((character, character),), position + 2


def _parse_class(text: str, position: int) -> tuple[_Item, int]:
    """Return the class whose content begins at a position, and the position after it."""
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
    return _Item(tuple(ranges), is_negated), position + 1


def _parse_member(
    text: str, position: int, *, is_first: bool
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return the characters of one member of a class and the position after it."""
    character = text[position : position + 1]
    if character == "\\":
        return _parse_escape(text, position)
    is_dash = character == "-" and not (is_first or text.startswith("-]", position))
    if not character or character in "[]" or is_dash:
        raise InvalidRegularExpression(f"unsupported class at {position}")
    return ((character, character),), position + 1
