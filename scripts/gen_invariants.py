"""The generator of docs/invariants.md: each invariant with its tests, mutations and missing parts.

A test names an invariant by the word and its number in a docstring, a comment or a ``.txt`` file;
several numbers are joined by commas, "and" and ranges, also across lines.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simulation.controller.mutations import MUTATIONS as CONTROLLER  # noqa: E402
from simulation.raft.mutations import MUTATIONS as RAFT  # noqa: E402
from simulation.replication.mutations.table import MUTATIONS as REPLICATION  # noqa: E402
from tests.invariants import INVARIANTS, WAITS_FOR  # noqa: E402
from tests.mutations.table import mutations  # noqa: E402

SPACE: Final = r"[ \n#]+"
LIST: Final = rf"\d+(?:(?:-|,{SPACE}|{SPACE}and{SPACE}|{SPACE}to{SPACE})\d+)*"
MENTION: Final = re.compile(rf"invariants?{SPACE}({LIST})", re.IGNORECASE)
HEAD: Final = """\
# Invariants

What must always hold, with the tests that name it, the mistakes in the product that a test is
known to catch (`scripts/mutants.py` and the simulations make them), and what a number, or a part
of it, still waits for.

| number | what holds | tests | mutations | waits for |
|---|---|---|---|---|
"""


def invariants() -> str:
    """Return the whole document."""
    return HEAD + "".join(
        f"| {number} | {text} | {code(tests().get(number))} | {code(mistakes().get(number))} "
        f"| {WAITS_FOR.get(number, '')} |\n"
        for number, text in INVARIANTS.items()
    )


@cache
def tests() -> dict[int, set[str]]:
    """Return the files that name an invariant, by its number."""
    named: dict[int, set[str]] = {}
    for path in files():
        for mention in MENTION.findall(path.read_text()):
            for number in numbers(mention):
                named.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    if unknown := named.keys() - INVARIANTS.keys():
        raise SystemExit(f"tests/invariants.py lacks {sorted(unknown)}")
    return named


class Named(Protocol):
    """A mutation of any kind."""

    @property
    def name(self) -> str: ...


@cache
def mistakes() -> dict[int, set[str]]:
    """Return the names of the mutations that break an invariant, by its number."""
    broken: dict[int, set[str]] = {}
    all_mutations: Sequence[Named] = (*mutations(), *RAFT, *CONTROLLER, *REPLICATION)
    for mutation in all_mutations:
        for number in getattr(mutation, "invariants", ()):
            broken.setdefault(number, set()).add(mutation.name)
    return broken


def code(names: set[str] | None) -> str:
    """Return names in order, as the text of a table cell."""
    return ", ".join(f"`{name}`" for name in sorted(names or ()))


def files() -> Iterator[Path]:
    for folder in ("tests", "compat_tests"):
        for pattern in ("*.py", "*.txt"):
            for path in (ROOT / folder).rglob(pattern):
                if path.parent.name != "mutations" and path.name != "invariants.py":
                    yield path


def numbers(mention: str) -> Iterator[int]:
    """Yield the numbers of a mention: ``13-15, 17`` as 13, 14, 15, 17."""
    for part in re.split(rf",{SPACE}|{SPACE}and{SPACE}", mention):
        first, _, last = re.sub(rf"{SPACE}to{SPACE}", "-", part).partition("-")
        yield from range(int(first), int(last or first) + 1)
