"""Rules that every Python file of the tree keeps: lengths, docstrings, bans, imports, language.

Each rule gives its reason; a rule that is in the way is changed here, not worked around. A file is
parsed and walked once for all rules, because that takes most of the time.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from tests.support import language
from tests.support.language import Breach

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PRODUCT: Final = ("kwire", "kwire_pipeline", "simulation")
TESTS: Final = ("tests", "compat_tests", "scripts")
BENCHMARKS: Final = ("benchmarks",)
FOLDERS: Final = PRODUCT + TESTS + BENCHMARKS
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
CLASS_LINES_MAX = 300
TABLES: Final = {"BrokerConfig", "InertConfig", "TlsConfig"}
"""Classes of declarations, a line or two each, without logic."""
KNOW_VERSIONS: Final = {"dispatch.py", "api_versions.py"}
"""The modules of handlers that may read the version of a request."""
RUNS_TESTS: Final = "tests/quorum/test_can_fail.py"
"""It runs tests of other modules, with a mistake made on purpose."""
HAS_THE_WORDS: Final = "tests/support/language.py"
"""It contains the words that the rules of language reject."""
OPENINGS: Final = re.compile(
    r"(What|Who|Whose|Whom|Whoever|Where|When|How|Until|Of|As|Why|Which|From)\b"
)


@attrs.frozen
class Source:
    """A Python file; ``path`` is relative to the root."""

    path: str
    text: str
    nodes: Sequence[ast.AST]
    """All nodes of its syntax tree, the module first."""

    @classmethod
    def parse(cls, path: str, text: str) -> "Source":
        return cls(path, text, tuple(ast.walk(ast.parse(text))))


def file_has_one_subject(source: Source) -> Iterator[Breach]:
    """A file of over 700 lines has a second subject in it."""
    count = len(source.text.splitlines())
    if count > FILE_LINES_MAX:
        yield Breach(count, "the file is too long")


def functions_fit_a_screen(source: Source) -> Iterator[Breach]:
    """A function of over 70 lines, without its docstring, cannot be seen as a whole."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = _body_lines(node)
            if count > FUNCTION_LINES_MAX:
                yield Breach(node.lineno, f"`{node.name}()` has {count} lines")


def class_has_one_subject(source: Source) -> Iterator[Breach]:
    """A class of over 300 lines has a second subject in it."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and node.name not in TABLES:
            count = (node.end_lineno or 0) - node.lineno + 1
            if count > CLASS_LINES_MAX:
                yield Breach(node.lineno, f"{node.name} has {count} lines")


def module_says_what_it_is_for(source: Source) -> Iterator[Breach]:
    """A module begins with its purpose."""
    module = source.nodes[0]
    assert isinstance(module, ast.Module)
    if not ast.get_docstring(module):
        yield Breach(1, "the module has no docstring")


def handlers_know_no_versions(source: Source) -> Iterator[Breach]:
    """The codec alone handles versions: old shapes are widened before a handler sees them."""
    *_, folder, name = source.path.split("/")
    if folder == "handlers" and name not in KNOW_VERSIONS and ".api_version" in source.text:
        yield Breach(1, "a handler asks for the version")


def no_locks_and_no_globals(source: Source) -> Iterator[Breach]:
    """trio is cooperative: a critical section is a synchronous function."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if re.search(r"\b(trio\.Lock|threading\.R?Lock)\(", line) and "lock:" not in line:
            yield Breach(number, "a lock needs its reason on its line")
        if re.match(r"\s*global ", line):
            yield Breach(number, "a global")


def any_has_its_reason(source: Source) -> Iterator[Breach]:
    """A type that cannot be named has an alias in the module that owns it, and a ``# Any:``."""
    lines = source.text.splitlines()
    for number in sorted(_lines_with_any(source.nodes)):
        if not _has_reason(lines, number):
            yield Breach(number, f"no reason for Any: {lines[number - 1].strip()}")


def docstring_opens_with_a_verb_or_the_thing(source: Source) -> Iterator[Breach]:
    """A docstring's first word says what a function does or names the thing; attributes too."""
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        if OPENINGS.match(text.strip()):
                            opening = text.strip().splitlines()[0]
                            yield Breach(statement.lineno, f"the docstring opens with: {opening}")


def nothing_is_imported_from_a_test_module(source: Source) -> Iterator[Breach]:
    """A helper of several modules is in tests/support, or in a plain module beside its tests."""
    if source.path == RUNS_TESTS:
        return
    for node in source.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
            name.rpartition(".")[2].startswith("test_") for name in _modules_named(node)
        ):
            yield Breach(node.lineno, ast.unparse(node))


def is_in_plain_words(source: Source) -> Iterator[Breach]:
    """Names and functions keep the rules of language (CONTRIBUTING.md)."""
    if source.path != HAS_THE_WORDS:
        for judge in language.RULES.values():
            yield from judge(source.nodes)


Rule: TypeAlias = Callable[[Source], Iterable[Breach]]
RULES: Final[Mapping[Rule, tuple[str, ...]]] = {
    file_has_one_subject: PRODUCT + TESTS,
    functions_fit_a_screen: PRODUCT,
    class_has_one_subject: PRODUCT,
    module_says_what_it_is_for: PRODUCT,
    handlers_know_no_versions: PRODUCT,
    no_locks_and_no_globals: PRODUCT,
    any_has_its_reason: PRODUCT,
    docstring_opens_with_a_verb_or_the_thing: PRODUCT + TESTS,
    nothing_is_imported_from_a_test_module: TESTS + BENCHMARKS,
    is_in_plain_words: FOLDERS,
}
"""The rules, each with the folders whose files keep it."""


def breaches(source: Source) -> list[Breach]:
    """Return the places where a file breaks a rule of its folder."""
    folder = source.path.partition("/")[0]
    return [
        breach for rule, folders in RULES.items() if folder in folders for breach in rule(source)
    ]


def files(folder: str) -> list[str]:
    """Return the paths of a folder's Python files, relative to the root."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py"))


def read(path: str) -> Source:
    return Source.parse(path, (ROOT / path).read_text())


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _lines_with_any(nodes: Iterable[ast.AST]) -> set[int]:
    """Return the lines that use ``Any``, as a name or in an annotation that is a string."""
    lines = set()
    for node in nodes:
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                lines.add(node.lineno)
            case ast.Constant(value=str(text)) if re.search(r"\bAny\b", text):
                with suppress(SyntaxError):
                    if _lines_with_any(ast.walk(ast.parse(text, mode="eval"))):
                        lines.add(node.lineno)
    return lines


def _has_reason(lines: Sequence[str], number: int) -> bool:
    """Return whether a line, or the comment right above it, begins a comment with ``# Any: ``."""
    above = number - 1
    while above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    comments = (line.lstrip() for line in lines[above : number - 1])
    return "# Any: " in lines[number - 1] or any(line.startswith("# Any: ") for line in comments)


def _modules_named(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import names; what it takes from a module may be one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(alias.name for alias in node.names)]
