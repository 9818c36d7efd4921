"""The check of deletions in the durability tests: which outcomes it accepts."""

import pytest

from compat_tests.durability import load


def records_between(first: int, end: int) -> dict[tuple[int, int], bytes]:
    return {(0, offset): b"x" * 20 for offset in range(first, end)}


@pytest.mark.parametrize(
    ("requested_start", "start", "end", "is_accepted"),
    [
        (10, 10, 20, True),
        (10, 9, 20, False),  # Deleted records are back.
        (10, 15, 20, False),  # More records are gone than requested.
        (10, 15, 400, True),  # Retention may have removed them.
        (0, 5, 20, False),
    ],
)
def test_deletions_must_be_explained(
    requested_start: int, start: int, end: int, is_accepted: bool
) -> None:
    deletions = load.Deletions([requested_start], retention_bytes=90_000)
    if is_accepted:
        deletions.check([start], records_between(start, end))
        return
    with pytest.raises(AssertionError):
        deletions.check([start], records_between(start, end))
