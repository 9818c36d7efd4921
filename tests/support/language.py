"""The rules of language (CONTRIBUTING.md, "Language") that a program can check.

Rules of this file: a breach is one line of a file and a text that says what is wrong in it; rules
are judged by the syntax tree alone, so a file can be judged without importing it.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

NAMES: Final = frozenset(
    {
        *("asked", "found", "given", "gone", "heard", "held", "kept", "known", "left", "made"),
        *("one", "said", "seen", "told", "wanted"),
    }
)
"""Participles and pronouns that say nothing about the value they name."""
IRREGULAR: Final = frozenset(
    {
        *("begun", "bound", "broken", "brought", "built", "caught", "chosen", "done", "drawn"),
        *("driven", "fallen", "found", "given", "gone", "grown", "heard", "held", "hidden", "kept"),
        *("known", "laid", "left", "lost", "made", "met", "paid", "risen", "said", "seen", "sent"),
        *("shown", "spent", "spoken", "stolen", "taken", "thrown", "told", "torn", "understood"),
        *("woken", "won", "written"),
    }
)
"""Participles that do not end in -ed, and are no verbs as well (as "read" and "put" are)."""
NO_PARTICIPLES: Final = frozenset(
    ("embed", "exceed", "feed", "heed", "need", "proceed", "seed", "shed", "speed", "succeed")
)
"""Nouns and verbs that end in -ed."""


@attrs.frozen
class Breach:
    """One place that breaks a rule."""

    line: int
    text: str


def names(nodes: Iterable[ast.AST]) -> Iterator[Breach]:
    """Yield the places where a variable, parameter or attribute gets a name that says nothing."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.MatchAs(name=str(name)):
                pass
            case ast.ExceptHandler(name=str(name)):
                pass
            case _:
                continue
        if name.strip("_") in NAMES:
            yield Breach(node.lineno, f"the name `{name}`")


def functions(nodes: Iterable[ast.AST]) -> Iterator[Breach]:
    """Yield functions, and attributes that hold one, whose name is no action, wait or event."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_participle(node.name):
                yield Breach(node.lineno, f"`{node.name}()` is a participle: say what it does")
            elif isinstance(node, ast.AsyncFunctionDef) and _only_waits(node):
                yield Breach(node.lineno, f"`{node.name}()` only waits: call it wait_...")
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            target = node.arg if isinstance(node, ast.arg) else _name(node.target)
            if _is_participle(target) and "Callable[" in ast.unparse(node.annotation):
                yield Breach(
                    node.lineno, f"the callable `{target}` is a participle: on_... or a verb"
                )


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_participle(name: str) -> bool:
    word = name.strip("_")
    if word in IRREGULAR:
        return True
    return word.endswith("ed") and word.isalpha() and word.islower() and word not in NO_PARTICIPLES


def _only_waits(function: ast.AsyncFunctionDef) -> bool:
    """Return whether a function ends in a wait and awaits nothing but waits."""
    if re.match(r"_*(wait|sleep|park)|__|test_", function.name):
        return False
    last = function.body[-1]
    while isinstance(last, ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try):
        last = last.body[-1]
    if not isinstance(last, ast.Expr | ast.Return) or not isinstance(last.value, ast.Await):
        return False
    awaits = [node for node in ast.walk(function) if isinstance(node, ast.Await)]
    return all(
        isinstance(node.value, ast.Call) and re.match(r"_*(wait|park)", _name(node.value.func))
        for node in awaits
    )


RULES: Final[Mapping[str, Callable[[Iterable[ast.AST]], Iterable[Breach]]]] = {
    "names": names,
    "functions": functions,
}
"""The rules; each judges the nodes of a file's syntax tree."""
