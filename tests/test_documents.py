"""The documents name files, modules, classes and functions that exist, and wrap at 120 columns.

The picture in docs/architecture.md shows each folder of `kwire` once, in the order of the layers.

Rules: what stands in backticks is checked, code blocks are not; a name of Kafka, of a client or of
a user's file is listed below, so that a renamed class of this tree is noticed.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "compat_tests" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = ("kwire", "kwire_pipeline", "simulation", "tests", "compat_tests", "benchmarks", "scripts")
BASES = (ROOT, ROOT / "kwire", ROOT / "docs", ROOT / "compat_tests")
"""The folders that a path may be relative to, besides the document's own."""
LINE_LENGTH = 120

NOT_OURS = {
    "CompleteAbort",
    "CompleteCommit",
    "ConfluentKafkaContainer",
    "ConsumerPerformance",
    "CreateTime",
    "DeadThreadCount",
    "JwtBearerJwtRetriever",
    "LogStore",
    "SunX509",
    "current_timestamp",
    "rand",
}
"""Names of Kafka, Java, Spark, Delta and testcontainers."""
NOT_YET = {
    "tests/handlers/test_describe_delegation_token.py",
}
"""Files that the example of CONTRIBUTING.md adds."""
OF_USERS = ("./kwire-", "kwire-cluster/", "lake/")
"""Folders that the examples make."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def names_in(text: str) -> set[str]:
    """Return every name that a module defines or assigns somewhere."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.add(node.attr)
            case ast.alias():
                names.add((node.asname or node.name).rpartition(".")[2])
    return names


def without_definition(names: set[str]) -> set[str]:
    """Return the names that the tree neither defines nor assigns.

    Only a module whose text has one of the names is parsed, because that takes most of the time.
    """
    for path in (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text()
        if not names.isdisjoint(re.findall(r"\w+", text)):
            names = names - names_in(text)
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_files_exist(document: Path) -> None:
    """A path with a folder in it, in backticks, is below the root, kwire/ or the document."""
    paths = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", prose(document))) - NOT_YET
    missing = [
        path
        for path in paths
        if not path.startswith(OF_USERS)
        if not any((base / path).exists() for base in (*BASES, document.parent))
        if not any((base / f"{path}.py").exists() for base in BASES)
    ]
    assert not missing


def names_of_code(document: Path) -> set[str]:
    """Return the classes and functions that a document names in backticks."""
    text = prose(document)
    classes = {
        name.partition(".")[0]
        for name in re.findall(r"`([A-Z]\w*[a-z]\w*(?:\.\w+)?)(?:\(\))?`", text)
    }
    return classes | {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)\(\)`", text)}


def test_classes_and_functions_exist() -> None:
    """A name such as `PartitionLog` or `Segment.append()`, in backticks, is one of the tree."""
    others = {path.stem for path in (ROOT / "compat_tests").rglob("*.java")} | NOT_OURS
    names = {relative(path): names_of_code(path) - others for path in DOCUMENTS}
    missing = without_definition(set().union(*names.values()) - {"Python", "TLSv1"})
    assert not {document: each & missing for document, each in names.items() if each & missing}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_lines_wrap(document: Path) -> None:
    """Prose wraps at 120 columns; tables, code and links may be longer."""
    too_long = [
        f"{number}: {len(line)} columns"
        for number, line in enumerate(prose(document).splitlines(), 1)
        if len(line) > LINE_LENGTH
        if not line.startswith("|") and "](" not in line and "`" * 2 not in line
    ]
    assert not too_long


def places_of_the_picture() -> list[str]:
    """Return the paths in the picture of docs/architecture.md, in its order."""
    picture = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    places: list[str] = []
    folders = {0: "."}
    for line in picture.splitlines():
        entry = re.match(r"( +)((?:[a-z_]+/?(?: |$))+)(?: |$)", line)
        if entry is None:
            continue
        depth = len(entry[1])
        parent = folders[max(outer for outer in folders if outer < depth)]
        names = entry[2].split()
        places += [f"{parent}/{name}".removeprefix("./").removesuffix("/") for name in names]
        folders = {outer: path for outer, path in folders.items() if outer < depth}
        folders[depth] = places[-1]
    return places


def test_picture_shows_each_folder_once_below_its_parent() -> None:
    places = places_of_the_picture()
    missing = [p for p in places if not any((ROOT / f"{p}{end}").exists() for end in ("", ".py"))]
    assert not missing
    assert len(places) == len(set(places))
    packages = {relative(path.parent) for path in (ROOT / "kwire").rglob("*/__init__.py")}
    assert packages - set(places) == set()


def test_picture_has_the_order_of_the_layers() -> None:
    """A layer comes before all that it may import; modules of one layer may have any order."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    level = {
        name.replace(".", "/"): number
        for number, layer in enumerate(layers)
        for name in re.split(r" [|:] ", layer)
    }
    levels = [level[place] for place in places_of_the_picture() if place in level]
    assert len(levels) > 20
    assert levels == sorted(levels)
