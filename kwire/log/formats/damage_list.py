"""The list of known damage: the damaged ranges of a log directory, one on each line.

The file is a hint that tells a start where to look, so a file that cannot be read counts as empty.
Its first two lines are a version and the number of ranges. Each range has topic, partition, the
segment's base offset, position and end position, first and end offset, and the reason.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kwire.types import TopicPartition

VERSION: Final = "0"
_FIELDS: Final = 8


class ListedRange(NamedTuple):
    """A range of a segment's file without a readable batch; ends are exclusive."""

    partition: TopicPartition
    base_offset: int
    """The segment's base offset."""
    position: int
    end_position: int
    first_offset: int
    end_offset: int
    reason: str

    def line(self) -> str:
        """Return the range's line of the file."""
        numbers = " ".join(map(str, self[1:-1]))
        return f"{self.partition.topic} {self.partition.partition} {numbers} {self.reason}\n"


def pack(lines: Iterable[str]) -> bytes:
    """Return the content of the file."""
    lines = list(lines)
    return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def parse(data: bytes) -> list[ListedRange]:
    """Return the listed ranges; raises ValueError if anything in the file is wrong."""
    lines = data.decode().split("\n")
    if len(lines) < 3 or lines[0] != VERSION or lines[-1]:
        raise ValueError("not a list of damage")
    if len(lines) - 3 != int(lines[1]):
        raise ValueError("the list of damage is cut off")
    return [_parse_line(line) for line in lines[2:-1]]


def _parse_line(line: str) -> ListedRange:
    topic, partition, *numbers, reason = line.split(" ", _FIELDS - 1)
    base_offset, position, end_position, first_offset, end_offset = map(int, numbers)
    if not (base_offset <= first_offset <= end_offset and 0 <= position < end_position):
        raise ValueError(f"not a damaged range: {line}")
    return ListedRange(
        TopicPartition(topic, int(partition)),
        base_offset,
        position,
        end_position,
        first_offset,
        end_offset,
        reason,
    )
