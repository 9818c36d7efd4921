"""The source itself is tested: lengths, docstrings, bans and headers.

Each rule gives its reason; a rule that is in the way is changed here, not worked around.
"""

import ast
import re
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for top in ("kwire", "kwire_pipeline", "simulation") for path in (ROOT / top).rglob("*.py")
)
TESTS = sorted(
    path for top in ("tests", "compat_tests", "scripts") for path in (ROOT / top).rglob("*.py")
)
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=relative)
def test_file_has_one_subject(path: Path) -> None:
    """A file of over 700 lines has a second subject in it."""
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_functions_fit_a_screen(path: Path) -> None:
    too_long = [
        f"{node.name} ({body_lines(node)} lines)"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and body_lines(node) > FUNCTION_LINES_MAX
    ]
    assert not too_long


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parts[-2] == "handlers"], ids=relative)
def test_handlers_know_no_versions(path: Path) -> None:
    """The codec alone handles versions: old shapes are widened before a handler sees them."""
    if path.name not in {"dispatch.py", "api_versions.py"}:
        assert ".api_version" not in path.read_text()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_locks_and_no_globals(path: Path) -> None:
    """trio is cooperative: a critical section is a synchronous function."""
    text = path.read_text()
    for line in text.splitlines():
        if re.search(r"\b(trio\.Lock|threading\.R?Lock)\(", line):
            assert "lock:" in line, f"a lock needs its reason on its line: {line.strip()}"
    assert not re.search(r"^\s*global ", text, re.MULTILINE)


def lines_with_any(tree: ast.AST) -> set[int]:
    """Return the lines that use ``Any``, as a name or in an annotation that is a string."""
    lines = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                lines.add(node.lineno)
            case ast.Constant(value=str(text)) if re.search(r"\bAny\b", text):
                with suppress(SyntaxError):
                    if lines_with_any(ast.parse(text, mode="eval")):
                        lines.add(node.lineno)
    return lines


def has_reason(lines: list[str], number: int) -> bool:
    """Whether a line, or the comment right above it, begins a comment with ``# Any: ``."""
    above = number - 1
    while above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    comments = (line.lstrip() for line in lines[above : number - 1])
    return "# Any: " in lines[number - 1] or any(line.startswith("# Any: ") for line in comments)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_any_has_its_reason(path: Path) -> None:
    """A type that cannot be named has an alias in the module that owns it, and a ``# Any:``."""
    lines = path.read_text().splitlines()
    without_reason = [
        f"{number}: {lines[number - 1].strip()}"
        for number in sorted(lines_with_any(ast.parse("\n".join(lines))))
        if not has_reason(lines, number)
    ]
    assert not without_reason


# The tree ------------------------------------------------------------------------------------
CLASS_LINES_MAX = 300
TABLES = {"BrokerConfig", "InertConfig", "TlsConfig"}
"""Classes of declarations, a line or two each, without logic."""
MODULES_MAX = 30
WIDE_FOLDERS = {"handlers", "messages"}
"""Folders with one module for each API."""


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_class_has_one_subject(path: Path) -> None:
    too_long = [
        f"{node.name} ({lines} lines)"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name not in TABLES
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > CLASS_LINES_MAX
    ]
    assert not too_long


def test_a_folder_can_be_looked_over() -> None:
    folders: dict[Path, int] = {}
    for path in SOURCES:
        if path.name != "__init__.py" and path.parent.name not in WIDE_FOLDERS:
            folders[path.parent] = folders.get(path.parent, 0) + 1
    assert not {relative(folder): count for folder, count in folders.items() if count > MODULES_MAX}


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules that a module imports, also in functions, but not for types alone."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    imported = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
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


BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
RUNS_TESTS = ROOT / "tests" / "quorum" / "test_can_fail.py"
"""It runs tests of other modules, with a mistake made on purpose."""


def modules_named(node: ast.AST) -> list[str]:
    """Return the modules that an import names; what it takes from a module may be one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(alias.name for alias in node.names)]
    return []


@pytest.mark.parametrize("path", sorted({*TESTS, *BENCHMARKS} - {RUNS_TESTS}), ids=relative)
def test_nothing_is_imported_from_a_test_module(path: Path) -> None:
    """A helper of several modules is in tests/support, or in a plain module beside its tests."""
    imports = [
        f"{relative(path)}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.rpartition(".")[2].startswith("test_") for name in modules_named(node))
    ]
    assert not imports, "\n".join(imports)


# The language --------------------------------------------------------------------------------
OPENINGS = re.compile(r"(What|Who|Whose|Whom|Whoever|Where|When|How|Until|Of|As|Why|Which|From)\b")


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=relative)
def test_a_docstring_opens_with_a_verb_or_the_thing(path: Path) -> None:
    """A docstring's first word says what a function does or names the thing; attributes too."""
    opened_otherwise = [
        f"{statement.lineno}: {statement.value.value.strip().splitlines()[0]}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        and OPENINGS.match(statement.value.value.strip())
    ]
    assert not opened_otherwise
