"""No operation holds the event loop for longer than a few milliseconds, however much there is.

Each scene of the table sets up thousands of something and runs operations on it, with the work of
every turn counted (:mod:`tests.support.turns.meter`). A new API and a new periodic task need a row,
or an entry in :mod:`tests.turns.exempt` that says why their work cannot grow.
"""

import ast
from pathlib import Path
from typing import Any, Final

import pytest

from kwire.handlers import SERVED
from tests.support.long_runs import parameters
from tests.support.turns.meter import BUDGET
from tests.support.turns.table import Operation, Scene
from tests.turns import exempt
from tests.turns.accepted import ACCEPTED
from tests.turns.logs import LOGS
from tests.turns.roles import ROLES
from tests.turns.scenes import SCENES

KWIRE: Final = Path(__file__).resolve().parents[2] / "kwire"
STARTS: Final = {"run", "start"}
"""The functions that start the tasks of their module."""
BESIDE_THE_NODE: Final = {"admin", "cli.py", "cluster", "container", "secure", "testing"}
"""The folders and modules that do not run on the event loop of a node."""
COVERED: Final = {
    name for scene in SCENES for operation in scene.operations for name in operation.covers
}


LONG: Final = {
    "a share group of many members",
    "logs",
    "requests about groups",
    "requests about partitions",
    "requests about topics",
    "starts of logs",
    "states of share partitions",
}
"""The scenes that take 20 s to a minute of a core."""


def ceiling(operation: Operation[Any]) -> int:
    """Return the most units of an operation's turn: the budget, or what is accepted instead."""
    accepted = ACCEPTED.get(operation.name)
    return BUDGET if accepted is None else accepted.units


@pytest.mark.parametrize("scene", parameters(SCENES, LONG))
def test_no_turn_is_longer_than_the_budget(scene: Scene[Any]) -> None:
    too_long = [
        f"{result.operation.name}, {result.operation.size} {result.operation.grows}: "
        f"{result.longest}"
        for result in scene.measure()
        if result.longest.units > ceiling(result.operation)
    ]
    assert not too_long, "\n".join(too_long)


def test_accepted_exceptions_are_rows_over_the_budget() -> None:
    names = {operation.name for scene in SCENES for operation in scene.operations}
    assert ACCEPTED.keys() <= names
    assert all(accepted.units > BUDGET for accepted in ACCEPTED.values())


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_rows_need_only_earlier_rows_of_their_scene(scene: Scene[Any]) -> None:
    earlier: set[str] = set()
    for operation in scene.operations:
        assert not operation.after or operation.after in earlier, operation.name
        earlier.add(operation.name)


def test_row_that_is_measured_alone_finds_what_it_needs() -> None:
    results = ROLES.measure("settings of all topics")
    assert [result.operation.name for result in results] == ["settings of all topics"]


def test_count_is_the_same_in_every_run() -> None:
    """The budget does not depend on the machine, or on what else runs there.

    The first run is left out: classes are compiled on first use, and other tests may have done it.
    """
    _, first, second = (LOGS.measure("high watermark") for _ in range(3))
    assert first == second


def is_endless(node: ast.AST) -> bool:
    """Return whether a statement is a loop that only an error or a cancellation ends."""
    return (
        isinstance(node, ast.While)
        and isinstance(node.test, ast.Constant)
        and not any(ends_loop(each) for each in node.body)
    )


def ends_loop(node: ast.AST, *, in_other_loop: bool = False) -> bool:
    """Return whether a statement in the body of a loop may end the loop."""
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break):
        return not in_other_loop
    in_other_loop |= isinstance(node, (ast.While, ast.For, ast.AsyncFor))
    return any(ends_loop(each, in_other_loop=in_other_loop) for each in ast.iter_child_nodes(node))


def started_by(function: ast.AsyncFunctionDef | ast.FunctionDef) -> set[str]:
    """Return the methods of its own class that a function starts as tasks."""
    calls = (
        call.args[0]
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "start_soon"
    )
    names = (ast.unparse(call).removeprefix("self.") for call in calls)
    return {name for name in names if name.isidentifier()}


def tasks_of(path: Path) -> set[str]:
    """Return the tasks of a module that run as long as the node does, with the module's name."""
    tasks: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.AsyncFunctionDef) and any(map(is_endless, ast.walk(node))):
            tasks.add(node.name)
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name in STARTS:
            tasks |= started_by(node)
    module = ".".join(path.relative_to(KWIRE).with_suffix("").parts)
    return {f"{module}.{task}" for task in tasks}


@pytest.fixture(scope="module")
def tasks() -> set[str]:
    """The tasks of all modules of a node."""
    return {
        task
        for path in KWIRE.rglob("*.py")
        if path.relative_to(KWIRE).parts[0] not in BESIDE_THE_NODE
        for task in tasks_of(path)
    }


def test_every_periodic_task_has_a_row(tasks: set[str]) -> None:
    assert {"net.server._close_idle", "log.scrubber._run"} <= tasks
    assert not tasks - COVERED - exempt.TASKS.keys()


def test_every_api_has_a_row() -> None:
    names = {api.name for api in SERVED}
    assert not names - COVERED - exempt.APIS.keys()


def test_exemptions_are_apis_and_tasks_without_a_row(tasks: set[str]) -> None:
    assert not COVERED & (exempt.APIS.keys() | exempt.TASKS.keys())
    assert exempt.APIS.keys() <= {api.name for api in SERVED}
    assert exempt.TASKS.keys() <= tasks
