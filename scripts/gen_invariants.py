"""docs/invariants.md: which test names which invariant.

A test names one by the word and its number in a docstring, a comment or a story, several by
commas, "and" and ranges.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.invariants import INVARIANTS  # noqa: E402

MENTION: Final = re.compile(r"invariants? (\d+(?:(?:-|, | and | to )\d+)*)", re.IGNORECASE)
HEAD: Final = """\
# Invariants

What must always hold, with the tests that name it. Numbers that no test names yet are left out.

| number | what holds | tests |
|---|---|---|
"""


def invariants() -> str:
    """The whole document."""
    found: dict[int, set[str]] = {}
    for path in files():
        for mention in MENTION.findall(path.read_text()):
            for number in numbers(mention):
                found.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    if unknown := found.keys() - INVARIANTS.keys():
        raise SystemExit(f"tests/invariants.py lacks {sorted(unknown)}")
    return HEAD + "".join(
        f"| {number} | {INVARIANTS[number]} | {', '.join(f'`{p}`' for p in sorted(paths))} |\n"
        for number, paths in sorted(found.items())
    )


def files() -> Iterator[Path]:
    for folder in ("tests", "compat_tests"):
        for pattern in ("*.py", "*.txt"):
            yield from (ROOT / folder).rglob(pattern)


def numbers(mention: str) -> Iterator[int]:
    """``13-15, 17`` as 13, 14, 15, 17."""
    for part in re.split(r", | and ", mention):
        first, _, last = part.replace(" to ", "-").partition("-")
        yield from range(int(first), int(last or first) + 1)
