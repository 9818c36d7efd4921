"""The row of a mutation table, and all tables together.

A mutation is one mistake in the product, written as a replacement of source text, with the test
that has to fail because of it.  `scripts/mutants.py` makes the mistakes one after the other.
"""

from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import attrs

FOLDER: Final = Path(__file__).resolve().parent


@attrs.frozen(kw_only=True)
class Mutation:
    """One mistake: ``old`` becomes ``new`` in the file ``path``, and ``test`` must fail."""

    name: str
    """Unique over all tables, in words joined by hyphens that name the mistake."""
    invariants: tuple[int, ...]
    """Numbers of `tests/invariants.py` that the mistake breaks."""
    path: str
    """Path of the mutated file, from the root of the repository."""
    old: str
    """Source text that occurs exactly once in the file."""
    new: str
    test: str
    """Argument for pytest: a file and a test in it."""


def mutations(areas: Collection[str] = ()) -> Iterator[Mutation]:
    """Read the mutations of the areas named, or of all."""
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem not in ("__init__", "table") and (not areas or path.stem in areas):
            yield from import_module(f"tests.mutations.{path.stem}").MUTATIONS
