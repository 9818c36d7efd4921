"""The source itself is tested; `tests/support/tidy.py` has the rules, each with its reason."""

import ast
from pathlib import Path

import pytest

from tests.support import tidy
from tests.support.tidy import ROOT, Source

SOURCES = [ROOT / path for folder in tidy.PRODUCT for path in tidy.files(folder)]


@pytest.mark.parametrize("folder", tidy.FOLDERS)
def test_files_break_no_rule(folder: str) -> None:
    lines = [
        f"{path}:{breach.line}: {breach.text}"
        for path in tidy.files(folder)
        for breach in tidy.breaches(tidy.read(path))
    ]
    assert not lines, "\n".join(["see tests/support/tidy.py and CONTRIBUTING.md:", *lines])


LONG = "\n".join(["    x = 1"] * 71)


@pytest.mark.parametrize(
    ("path", "text", "breach"),
    [
        ("tests/a.py", "x = 1\n" * 701, "the file is too long"),
        ("kwire/a.py", f'"""A."""\ndef f():\n{LONG}', "`f()` has 71 lines"),
        ("kwire/a.py", f'"""A."""\ndef f():\n    """B."""\n{LONG}', "`f()` has 71 lines"),
        ("kwire/a.py", '"""A."""\nclass A:\n' + "    x = 1\n" * 300, "A has 301 lines"),
        ("kwire/a.py", "x = 1", "the module has no docstring"),
        (
            "kwire/handlers/fetch.py",
            '"""A."""\nx = request.api_version',
            "a handler asks for the version",
        ),
        ("kwire/a.py", '"""A."""\nx = trio.Lock()', "a lock needs its reason on its line"),
        ("kwire/a.py", '"""A."""\ndef f():\n    global x', "a global"),
        ("kwire/a.py", '"""A."""\nx: Any = 1', "no reason for Any: x: Any = 1"),
        ("kwire/a.py", '"""A."""\nx: "list[Any]"', 'no reason for Any: x: "list[Any]"'),
        ("tests/a.py", "x = 1\n'How to.'", "the docstring opens with: How to."),
        ("benchmarks/a.py", "from tests.a import test_b", "from tests.a import test_b"),
        ("tests/a.py", "import tests.test_b", "import tests.test_b"),
        ("benchmarks/a.py", "known = 1", "the name `known`"),
    ],
)
def test_breach_is_noticed(path: str, text: str, breach: str) -> None:
    assert [each.text for each in tidy.breaches(Source.parse(path, text))] == [breach]


def test_plain_module_breaks_no_rule() -> None:
    lines = [
        '"""A module."""',
        "# Any: JSON of a user",
        "x: Any = 1",
        "y = trio.Lock()  # lock: a reason",
    ]
    assert not tidy.breaches(Source.parse("kwire/a.py", "\n".join(lines)))


# The tree ------------------------------------------------------------------------------------
MODULES_MAX = 30
WIDE_FOLDERS = {"handlers", "messages"}
"""Folders with one module for each API."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_folder_can_be_looked_over() -> None:
    folders: dict[Path, int] = {}
    for path in SOURCES:
        if path.name != "__init__.py" and path.parent.name not in WIDE_FOLDERS:
            folders[path.parent] = folders.get(path.parent, 0) + 1
    assert not {relative(folder): count for folder, count in folders.items() if count > MODULES_MAX}


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules that a module imports, also in functions and for types alone."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= whole & modules or {node.module} & modules
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names} & modules
    return imported


def test_no_import_circle() -> None:
    """A module can be read after those that it imports, down to the ones that import none."""
    modules = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", "."): path
        for path in SOURCES
        if path.name != "__init__.py"
    }
    waiting = {name: imports_of(path, set(modules)) for name, path in modules.items()}
    while ready := {name for name, imported in waiting.items() if not imported & set(waiting)}:
        for name in ready:
            del waiting[name]
    assert not waiting, "in a circle, or above one: " + ", ".join(sorted(waiting))
