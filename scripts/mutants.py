"""Make each mistake of the mutation tables in a copy of the tree; its test must fail.

    scripts/mutants.py [--only NAME,...] [--area AREA,...] [--jobs N]

Rules: the tests must pass without a mistake first, or a failure would prove nothing; only pytest's
"tests failed" counts as caught, not a collection error or a test that hangs; every mutation runs,
so that one run shows all that are not caught.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.mutations.table import Mutation, mutations  # noqa: E402

TREES = ("kwire", "kwire_pipeline", "simulation", "tests", "compat_tests", "examples", "scripts")
FILES = ("pyproject.toml", "README.md")
TEST_SECONDS = 300
ALL_TESTS_SECONDS = 3600
FAILED = 1
"""Exit code of pytest when tests ran and failed."""


def copy_tree(target: Path) -> Path:
    """Copy the files that the tests need, without compiled modules, which could become stale."""
    ignore = shutil.ignore_patterns("__pycache__", "*.log")
    for name in TREES:
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)  # .venv must stay newer.
    (target / ".venv").symlink_to((ROOT / ".venv").resolve())
    return target


def bytecode_of(tree: Path) -> Path:
    """Return the folder of a tree's compiled modules."""
    return tree.with_name(f"{tree.name}-compiled")


def change(tree: Path, path: Path, source: str) -> None:
    """Write a module; a compiled one of the same second and length would hide the change."""
    path.write_text(source)
    for stale in bytecode_of(tree).rglob(f"{path.stem}.*.pyc"):
        stale.unlink(missing_ok=True)


def run_tests(
    tree: Path, tests: Iterable[str], seconds: int = TEST_SECONDS, processes: int = 0
) -> tuple[int | None, str]:
    """Run pytest in ``tree``; return its exit code (None after a time-out) and its output."""
    python = str(ROOT / ".venv" / "bin" / "python")
    command = [python, "-m", "pytest", "-x", "-p", "no:cacheprovider"]
    command += ["-n", str(processes), *tests]
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(tree),  # Brokers started in other directories run the copy too.
        "PYTHONPYCACHEPREFIX": str(bytecode_of(tree)),
    }
    try:
        result = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no result within {seconds} s"
    return result.returncode, result.stdout + result.stderr


def by_configuration(chosen: Iterable[Mutation]) -> list[list[str]]:
    """Return the tests of these mutations in groups that share a configuration of pytest."""
    groups: dict[str, set[str]] = {}
    for mutation in chosen:
        groups.setdefault(mutation.test.partition("/")[0], set()).add(mutation.test)
    return [sorted(group) for _, group in sorted(groups.items())]


def judge(tree: Path, mutation: Mutation) -> str:
    """Make one mistake and undo it; return an empty text if the test caught it, else the reason."""
    path = tree / mutation.path
    source = path.read_text()
    if source.count(mutation.old) != 1:
        return f"`old` occurs {source.count(mutation.old)} times in {mutation.path}"
    change(tree, path, source.replace(mutation.old, mutation.new))
    try:
        code, output = run_tests(tree, [mutation.test])
    finally:
        change(tree, path, source)
    if code == FAILED:
        return ""
    if code == 0:
        return f"not caught by {mutation.test}"
    return f"{mutation.test} did not run to its end (exit code {code}): {output[-600:]}"


def main() -> int:
    """Judge the chosen mutations; return 1 if one of them was not caught."""
    parser = argparse.ArgumentParser(description="Show that tests catch the mistakes they are for.")
    parser.add_argument("--only", default="", help="comma-separated names of mutations")
    parser.add_argument("--area", default="", help="comma-separated names of tables")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1)))
    arguments = parser.parse_args()
    names = {name for name in arguments.only.split(",") if name}
    areas = [area for area in arguments.area.split(",") if area]
    chosen = [m for m in mutations(areas) if not names or m.name in names]
    if missing := names - {mutation.name for mutation in chosen}:
        parser.error(f"no mutation {', '.join(sorted(missing))}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kwire-mutants-") as scratch:
        Path(scratch).chmod(0o755)  # Some tests run a node as another user.
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.jobs):
            trees.put(copy_tree(Path(scratch) / str(number)))
        tree = trees.get()
        for tests in by_configuration(chosen):
            code, output = run_tests(tree, tests, ALL_TESTS_SECONDS, arguments.jobs)
            if code != 0:
                print(output)
                print("the tests fail without a mistake")
                return 1
        trees.put(tree)

        def work(mutation: Mutation) -> str:
            tree = trees.get()
            try:
                return judge(tree, mutation)
            finally:
                trees.put(tree)

        survivors = 0
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for mutation, verdict in zip(chosen, pool.map(work, chosen), strict=True):
                survivors += bool(verdict)
                print(
                    f"{'SURVIVED' if verdict else 'caught  '} {mutation.name} {verdict}", flush=True
                )
    seconds = time.monotonic() - started
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations caught in {seconds:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
