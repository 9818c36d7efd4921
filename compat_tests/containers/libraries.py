"""The programs of ``modules``: each starts a container with one language's testcontainers module.

A program takes the image's name. Once the library considers the container ready, it prints ``ready
SECONDS ADDRESS``; it removes the container when standard input ends. The modules are unchanged, and
installed once into the cache.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from compat_tests.harness.suite import cache
from compat_tests.java_old.jars import classpath, jars, java

PROGRAMS = Path(__file__).resolve().parent / "modules"
PYTHON_MODULE = ("testcontainers==4.15.0", "packaging")
JAVA_MODULE = "org.testcontainers:kafka:1.21.3"


def need(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"`{program}` is missing: install {package}")
    return path


def python() -> Sequence[str]:
    folder = cache("containers", "python-" + _digest(*map(str.encode, PYTHON_MODULE)))
    interpreter = folder / "bin" / "python"
    if not (folder / "ok").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([interpreter, *install, *PYTHON_MODULE], check=True)
        (folder / "ok").touch()
    return [str(interpreter), str(PROGRAMS / "start_python.py")]


def java_apache() -> Sequence[str]:
    return [*_java(), "apache"]


def java_confluent() -> Sequence[str]:
    return [*_java(), "confluent"]


def _java() -> Sequence[str]:
    libraries = jars("testcontainers", [JAVA_MODULE])
    return java(classpath(libraries, "Start", folder=PROGRAMS), "Start")


def node() -> Sequence[str]:
    package = PROGRAMS / "package.json"
    script = PROGRAMS / "start.mjs"
    folder = cache("containers", "node-" + _digest(package.read_bytes()))
    if not (folder / "ok").exists():
        shutil.copy(package, folder)
        npm = need("npm", "Node.js 20 or newer with npm")
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder, check=True
        )
        (folder / "ok").touch()
    shutil.copy(script, folder)
    return [need("node", "Node.js 20 or newer"), str(folder / script.name)]


def go() -> Sequence[str]:
    sources = [PROGRAMS / name for name in ("start.go", "go.mod", "go.sum")]
    built = cache("containers") / ("go-" + _digest(*(s.read_bytes() for s in sources)))
    if not built.exists():
        compiler = need("go", "Go 1.24 or newer (https://go.dev/dl)")
        subprocess.run([compiler, "build", "-o", str(built), "."], cwd=PROGRAMS, check=True)
    return [str(built)]


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


LIBRARIES = {
    "Python": python,
    "Java, Apache's image": java_apache,
    "Java, Confluent's image": java_confluent,
    "Node": node,
    "Go": go,
}
