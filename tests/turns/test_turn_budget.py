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
from tests.support.turns.meter import BUDGET
from tests.support.turns.table import Operation, Scene
from tests.turns import exempt
from tests.turns.accepted import ACCEPTED
from tests.turns.logs import LOGS
from tests.turns.roles import ROLES
from tests.turns.scenes import SCENES

KWIRE: Final = Path(__file__).resolve().parents[2] / "kwire"
COVERED: Final = {
    name for scene in SCENES for operation in scene.operations for name in operation.covers
}


def ceiling(operation: Operation[Any]) -> int:
    """Return the most units of an operation's turn: the budget, or what is accepted instead."""
    accepted = ACCEPTED.get(operation.name)
    return BUDGET if accepted is None else accepted.units


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
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
    results = ROLES.measure("deletion of a topic")
    assert [result.operation.name for result in results] == ["deletion of a topic"]


def test_count_is_the_same_in_every_run() -> None:
    """The budget does not depend on the machine, or on what else runs there.

    The first run is left out: classes are compiled on first use, and other tests may have done it.
    """
    _, first, second = (LOGS.measure("high watermark") for _ in range(3))
    assert first == second


def started_in(path: str, function: str) -> set[str]:
    """Return the tasks that a function of a class starts, as they are written there."""
    tree = ast.parse((KWIRE / path).read_text())
    return {
        ast.unparse(call.args[0]).removeprefix("self.")
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef) and node.name == function
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "start_soon"
    }


@pytest.mark.parametrize(
    "path",
    [
        "log/directories/directory_service.py",
        "log/scrubber.py",
        "raftmeta/controller/periodic_tasks.py",
        "coordinator/runtime.py",
        "share/state/coordinator.py",
        "transaction/coordinator.py",
    ],
)
def test_every_periodic_task_has_a_row(path: str) -> None:
    tasks = started_in(path, "run")
    assert tasks
    assert not tasks - COVERED - exempt.TASKS.keys()


def test_every_api_has_a_row() -> None:
    names = {api.name for api in SERVED}
    assert not names - COVERED - exempt.APIS.keys()


def test_exemptions_are_apis_and_tasks_without_a_row() -> None:
    assert not COVERED & (exempt.APIS.keys() | exempt.TASKS.keys())
    assert exempt.APIS.keys() <= {api.name for api in SERVED}
