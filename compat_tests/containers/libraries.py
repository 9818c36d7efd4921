"""The programs of ``modules``, which use the testcontainers module of one language each.

A program of ``LIBRARIES`` takes the image's name and starts a container. Once the library considers
the container ready, it prints ``ready SECONDS ADDRESS``; it removes the container when standard
input ends. A program of ``SUITES`` is a test suite of that language, with three faults that it
arranges over HTTP: at the broker FAULTS_ADDRESS, whose control port is FAULTS_CONTROL, or else at a
container of FAULTS_IMAGE. It prints ``OBSERVED FAULT NUMBER`` for each fault. The modules are
unchanged, and installed once into the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.programs import need
from compat_tests.harness.suite import cache
from compat_tests.java_old.jars import classpath, jars, java

SECONDS = 120
NODE = "Node.js 20 or newer"
PROGRAMS = Path(__file__).resolve().parent / "modules"
PYTHON_MODULE = ("testcontainers==4.15.0", "packaging", "confluent-kafka", "pytest")
JAVA_MODULE = "org.testcontainers:kafka:1.21.3"
JAVA_SUITE = (
    JAVA_MODULE,
    "org.apache.kafka:kafka-clients:4.3.1",
    "org.junit.platform:junit-platform-console-standalone:1.13.4",
)


def python() -> Sequence[str]:
    return [str(_python_folder() / "bin" / "python"), str(PROGRAMS / "start_python.py")]


def python_suite() -> Sequence[str]:
    folder = _python_folder()
    # Outside of this tree, whose conftest.py needs other packages.
    script = shutil.copy(PROGRAMS / "faults_python.py", folder)
    return [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-s", str(script)]


def _python_folder() -> Path:
    folder = cache("containers", "python-" + _digest(*map(str.encode, PYTHON_MODULE)))
    if not (folder / "ok").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([folder / "bin" / "python", *install, *PYTHON_MODULE], check=True)
        (folder / "ok").touch()
    return folder


def java_apache() -> Sequence[str]:
    return [*_java(), "apache"]


def java_confluent() -> Sequence[str]:
    return [*_java(), "confluent"]


def _java() -> Sequence[str]:
    libraries = jars("testcontainers", [JAVA_MODULE])
    return java(classpath(libraries, "Start", folder=PROGRAMS), "Start")


def java_suite() -> Sequence[str]:
    path = classpath(jars("testcontainers-faults", JAVA_SUITE), "FaultsTest", folder=PROGRAMS)
    launcher = "org.junit.platform.console.ConsoleLauncher"
    return java(path, launcher, "execute", "--select-class=FaultsTest", "--disable-banner")


def node() -> Sequence[str]:
    return [need("node", NODE), _node_script("start.mjs")]


def node_suite() -> Sequence[str]:
    return [
        need("node", NODE),
        "--test",
        "--test-force-exit",
        "--test-reporter=tap",
        _node_script("faults.test.mjs"),
    ]


def _node_script(name: str) -> str:
    package = PROGRAMS / "package.json"
    folder = cache("containers", "node-" + _digest(package.read_bytes()))
    if not (folder / "ok").exists():
        shutil.copy(package, folder)
        npm = need("npm", f"{NODE} with npm")
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder, check=True
        )
        (folder / "ok").touch()
    return str(shutil.copy(PROGRAMS / name, folder))


def go() -> Sequence[str]:
    return [_go_program("start", "build")]


def go_suite() -> Sequence[str]:
    return [_go_program("faults", "test", "-c"), "-test.v"]


def _go_program(name: str, *how: str) -> str:
    sources = sorted([*PROGRAMS.glob("*.go"), *PROGRAMS.glob("go.*")])
    built = cache("containers") / f"go-{name}-{_digest(*(s.read_bytes() for s in sources))}"
    if not built.exists():
        compiler = need("go", "Go 1.24 or newer (https://go.dev/dl)")
        subprocess.run([compiler, *how, "-o", str(built), "."], cwd=PROGRAMS, check=True)
    return str(built)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


LIBRARIES = {
    "Python": python,
    "Java, Apache's image": java_apache,
    "Java, Confluent's image": java_confluent,
    "Node": node,
    "Go": go,
}


def start_module(library: str, environment: Mapping[str, str], image: str) -> subprocess.Popen[str]:
    """Start a program of ``LIBRARIES``; it removes its container when its standard input ends."""
    return subprocess.Popen(
        [*LIBRARIES[library](), image],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


OBSERVED = {"lost-acknowledgement": 3, "cut-response": 3, "refused-heartbeat": 1}
"""Two records are sent in three requests; three are read, each once; one is read once."""

SUITES = {"Python": python_suite, "Java": java_suite, "Node": node_suite, "Go": go_suite}


def run_suite(language: str, environment: Mapping[str, str]) -> dict[str, int]:
    """Run the suite of a language, which must pass; return what it observed of each fault."""
    done = subprocess.run(
        SUITES[language](),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    lines = re.findall(r"\bOBSERVED (\S+) (\d+)", done.stdout)
    return {fault: int(number) for fault, number in lines}
