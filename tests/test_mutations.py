"""The mutation tables fit the tree: their texts and tests are there.

That the mistakes are caught is the business of `scripts/mutants.py`, in the long run.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.invariants import INVARIANTS
from tests.mutations.table import Mutation, mutations

ROOT = Path(__file__).resolve().parent.parent
ALL = list(mutations())


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions and classes that a test file defines."""
    return frozenset(
        re.findall(r"^ *(?:async def|def|class) (\w+)", path.read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_mutation_fits_the_tree(mutation: Mutation) -> None:
    assert (ROOT / mutation.path).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert set(mutation.invariants) <= INVARIANTS.keys()
    file, *names = mutation.test.split("::")
    for name in names:
        assert name.partition("[")[0] in functions(ROOT / file)


def test_mutations_have_names_of_their_own() -> None:
    repeated = [name for name, count in Counter(m.name for m in ALL).items() if count > 1]
    assert not repeated
