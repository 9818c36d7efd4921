"""Jars by their Maven coordinates, and the classes of ``src`` compiled against them.

Rules: both are made once and kept in the cache, by one process at a time; a class path's folder is
named by its content.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from compat_tests.harness.broker import kafka
from compat_tests.harness.programs import need
from compat_tests.harness.suite import cache

SOURCES = Path(__file__).resolve().parent / "src"
LOGGING = "org.slf4j:slf4j-simple:1.7.36"


def jars(name: str, coordinates: Sequence[str], *, with_dependencies: bool = True) -> Path:
    """Return a folder with these artifacts and, unless told otherwise, their dependencies."""
    folder = cache("java-old", name)
    if (folder / "ok").exists():
        return folder / "jars"
    with kafka.hold_lock(folder):
        if not (folder / "ok").exists():
            _fetch(folder, coordinates, with_dependencies=with_dependencies)
    return folder / "jars"


def _fetch(folder: Path, coordinates: Sequence[str], *, with_dependencies: bool) -> None:
    maven = need("mvn", "maven (Debian: apt-get install maven)")
    (folder / "pom.xml").write_text(_pom([*coordinates, LOGGING]))
    goal = ["dependency:copy-dependencies", "-DoutputDirectory=jars"]
    goal += [] if with_dependencies else ["-DexcludeTransitive=true"]
    subprocess.run([maven, "-q", "-B", *goal], cwd=folder, check=True)
    (folder / "ok").touch()


def _pom(coordinates: Sequence[str]) -> str:
    dependencies = ""
    for coordinate in coordinates:
        group, artifact, version, *classifier = coordinate.split(":")
        kind = f"<classifier>{classifier[0]}</classifier>" if classifier else ""
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{kind}</dependency>\n"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>kwire.compat</groupId><artifactId>jars</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def classpath(
    libraries: Path, *sources: str, folder: Path = SOURCES, beside: str | None = None
) -> str:
    """Return the class path of programs of ``folder``, compiled against ``libraries``.

    ``beside``: a class path of other libraries that they need, which is not part of the result.
    """
    files = [folder / f"{source}.java" for source in sources]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    classes = libraries.parent / f"classes-{digest}"
    with kafka.hold_lock(libraries.parent):
        if not (classes / "ok").exists():
            compiler = need("javac", "a JDK (Debian: openjdk-17-jdk-headless)")
            path = os.pathsep.join([f"{libraries}/*", *([beside] if beside else [])])
            command = [compiler, "-nowarn", "-Xlint:none", "-cp", path]
            subprocess.run([*command, "-d", str(classes), *map(str, files)], check=True)
            (classes / "ok").touch()
    return f"{classes}{os.pathsep}{libraries}/*"


def java(path: str, *arguments: str) -> list[str]:
    """Return a command line of a small JVM that starts quickly."""
    level = os.environ.get("KAFKA_LOG_LEVEL", "error")
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    logging = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"
    return [need("java", "a JDK, 17 or newer"), *options, logging, "-cp", path, *arguments]
