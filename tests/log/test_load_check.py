"""The check of the kill tests notices what it is for."""

import pytest

from compat_tests.durability import load


def stored(first: int, end: int) -> dict[tuple[int, int], bytes]:
    return {(0, offset): b"x" * 20 for offset in range(first, end)}


@pytest.mark.parametrize(
    ("asked", "start", "end", "fine"),
    [
        (10, 10, 20, True),
        (10, 9, 20, False),  # what was deleted is back
        (10, 15, 20, False),  # more is gone than anybody asked for
        (10, 15, 400, True),  # retention may have done it
        (0, 5, 20, False),
    ],
)
def test_deletions_must_be_explained(asked: int, start: int, end: int, fine: bool) -> None:
    deletions = load.Deletions([asked], retention_bytes=90_000)
    if fine:
        deletions.check([start], stored(start, end))
        return
    with pytest.raises(AssertionError):
        deletions.check([start], stored(start, end))
