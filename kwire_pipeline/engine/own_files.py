"""The files of a user's function: its module, and the modules it imports from its folder.

Imports are read from the source, so imports inside functions also count. Installed packages are not
included, because they change with the environment, as Spark does. Modules whose names are built at
run time are not included either.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
"""The folders of packages that are not the user's own, wherever they are."""


def own_files(module: str) -> dict[str, Path]:
    """Return the files by module name; empty if the module has no file."""
    spec = _spec_of(module)
    first = None if spec is None else _source(spec)
    if first is None:
        return {}
    root = first.parents[module.count(".") + (first.name == "__init__.py")]
    files = {module: first}
    waiting = [*_imports(module, first)]
    names = {module}
    while waiting:
        name = waiting.pop()
        # Searching inside a package imports it, which is allowed only for the user's own packages.
        if name in names or not _is_own(name.partition(".")[0], root):
            continue
        names.add(name)
        spec = _spec_of(name)
        path = None if spec is None else _source(spec)
        if path is not None:
            files[name] = path
            waiting += _imports(name, path)
    return files


def _is_own(top: str, root: Path) -> bool:
    """Return whether a module or package is in the folder."""
    spec = _spec_of(top)
    if spec is None:
        return False
    path = _source(spec)
    folders = [path.parent] if path is not None else spec.submodule_search_locations or []
    resolved = [Path(folder).resolve() for folder in folders]
    return any(
        folder.is_relative_to(root) and not set(INSTALLED) & set(folder.relative_to(root).parts)
        for folder in resolved
    )


def _spec_of(name: str) -> ModuleSpec | None:
    module = sys.modules.get(name)
    try:
        return importlib.util.find_spec(name) if module is None else module.__spec__
    except (ImportError, AttributeError, ValueError):
        return None


def _source(spec: ModuleSpec) -> Path | None:
    """Return the source file of a module; None if it has none."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin).resolve()
    return path if path.is_file() else None


def _imports(name: str, path: Path) -> Iterator[str]:
    """Yield the modules that a module may import, and the packages that contain them."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # Then the module cannot be imported either.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # Each name may be a module in the package, or an object in its module.
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for each in names:
            parts = each.split(".")
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))
