"""Compare `docs/quorum-rules.md` with the tests and checks that it names."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from simulation.raft.checks import Checks

TESTS: Final = Path(__file__).resolve().parents[2]
TEXT: Final = (TESTS.parent / "docs" / "quorum-rules.md").read_text()
SHORT: Final = {"r": "test_raft_rules.py"} | {
    number: f"test_kip_{number}.py" for number in ("595", "630", "853", "996")
}
NAMED: Final = sorted(set(re.findall(r"`([\w/.]+)::(test_\w+)`", TEXT)))


def path_of(file: str) -> Path:
    file = SHORT.get(file, file)
    return TESTS / file if "/" in file else TESTS / "raftmeta" / "raft" / file


def names_in(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    return {name for name in names if name.startswith("test_")}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_tests_in_the_table_exist(file: str) -> None:
    named = {name for where, name in NAMED if where == file}
    assert not named - names_in(path_of(file))


RULE_FILES: Final = [
    *SHORT.values(),
    *(
        f"quorum/{n}"
        for n in (
            "test_elections.py",
            "test_log.py",
            "test_restarts.py",
            "test_snapshots.py",
            "test_voters.py",
        )
    ),
]


@pytest.mark.parametrize("file", RULE_FILES)
def test_every_test_of_a_rule_is_in_the_table(file: str) -> None:
    named = {name for where, name in NAMED if path_of(where) == path_of(file)}
    assert not names_in(path_of(file)) - named


def test_checks_in_the_table_exist() -> None:
    named = re.findall(r"`Checks\.(\w+)`", TEXT)
    assert named
    assert not [name for name in named if not hasattr(Checks, name)]
