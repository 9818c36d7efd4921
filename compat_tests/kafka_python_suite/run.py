"""kafka-python's own integration tests, from its source distribution on PyPI.

    python -m compat_tests.kafka_python_suite.run --broker kwire|kafka|HOST:PORT

The distribution carries its tests; they run with the installed client of the same version. Its unit
tests need no broker and are not counted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from compat_tests.harness.suite import AUTHORIZING, SAFELY, Suite, Variant, cache, main

FOLDER = Path(__file__).resolve().parent
SECONDS = 900
VERSION = "4.3.0"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:trio"]
PYTEST += ["-p", "no:faulthandler"]

# The distribution lacks the module that starts brokers; with a running one, its names are enough.
SERVICE = '''"""A stand-in for the module that starts brokers: here one runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        """It is open."""

    close = stop = dump_logs = open


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("these tests use a broker that runs already")
'''


def source() -> Path:
    """Return the folder of the unpacked tests of the installed version."""
    number = version("kafka-python")
    folder = cache(f"kafka-python-{number}")
    tree = folder / "tree"
    if (tree / "ok").exists():
        return tree
    shutil.rmtree(tree, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    selection = ["--no-deps", "--no-binary", ":all:", f"kafka-python=={number}", "-d", str(folder)]
    subprocess.run([*pip, *selection], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        members = [m for m in packed.getmembers() if "/test/" in m.name]
        packed.extractall(folder, members=members, **SAFELY)
    (unpacked,) = [
        path for path in folder.iterdir() if path.name.endswith(number) and path.is_dir()
    ]
    unpacked.rename(tree)
    (tree / "test" / "__init__.py").touch()  # Hides the standard library's package.
    (tree / "test" / "service.py").write_text(SERVICE)
    (tree / "servers" / VERSION / "kafka-bin").mkdir(parents=True)  # Must exist, is never used.
    (tree / "ok").touch()
    return tree


def upstream() -> list[str]:
    """Return every integration test, with its parameters."""
    tree = source()
    command = [*PYTEST, "--collect-only", "-c", os.devnull, f"--rootdir={tree}", "test/integration"]
    listed = subprocess.run(
        command, cwd=tree, env=_environment("127.0.0.1:9092"), capture_output=True, text=True
    )
    return re.findall(r"^test/integration/(\S+::\S+)$", listed.stdout, re.MULTILINE)


def _environment(address: str) -> dict[str, str]:
    return {
        **os.environ,
        "KAFKA_VERSION": VERSION,
        "KAFKA_URI": f"kafka://{address.partition(',')[0]}",
        "PYTHONPATH": str(source()),
    }


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    tree = source()
    report = tree / f"report-{os.getpid()}.xml"
    tests = sorted({name.split("::")[0] for name in names})
    selected = [f"test/integration/{test}" for test in tests] if names else ["test/integration"]
    command = [*PYTEST, "-c", os.devnull, f"--rootdir={tree}"]
    command += ["--tb=short", f"--junitxml={report}", *selected]
    if names:
        command += ["-k", " or ".join(sorted({_bare(name) for name in names}))]
    subprocess.run(command, cwd=tree, env=_environment(address), check=False, timeout=SECONDS)
    if not report.exists():
        return {}
    try:
        return _results(report)
    finally:
        report.unlink()


def _bare(name: str) -> str:
    return name.split("::")[1].split("[", maxsplit=1)[0]


def _results(report: Path) -> dict[str, bool]:
    results: dict[str, bool] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        module = str(case.get("classname")).rpartition(".")[2]
        bad = any(case.find(kind) is not None for kind in ("failure", "error"))
        if case.find("skipped") is None:
            name = f"{module}.py::{case.get('name')}"
            results[name] = not bad and results.get(name, True)
    return results


# The suite configures its own brokers like this.
SETTINGS = {"node.id": "0", "group.min.session.timeout.ms": "2000"}
WITH_ACLS = ("test_admin_integration.py::test_create_describe_delete_acls",)
SUITE = Suite(
    "kafka_python_suite",
    FOLDER,
    run,
    upstream,
    SETTINGS,
    [Variant(AUTHORIZING, lambda: WITH_ACLS)],
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
