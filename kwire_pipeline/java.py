"""The Java that Spark will start: where it is, and whether Spark's version runs on it.

Rules of this file: like Spark, it looks in JAVA_HOME and then in the PATH. The version is read from
the installation's `release` file if it has one, so that usually no process is started.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kwire_pipeline.errors import Refusal
from kwire_pipeline.versions import release_of

INSTALL: Final = "install Java 17 (Debian: apt-get install openjdk-17-jre-headless)"
TIMEOUT_S: Final = 20


def find_java(environment: Mapping[str, str]) -> Path:
    """Return the `java` that Spark starts; raise Refusal if there is none."""
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise Refusal(f"JAVA_HOME is {home}, and there is no {java}: unset it or {INSTALL}")
        return java
    path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if path is None:
        raise Refusal(f"Spark needs Java, and there is no java on the PATH: {INSTALL}")
    return Path(path)


def java_version(java: Path) -> str:
    """Return the version of a Java, such as ``17.0.15`` or ``1.8.0_402``."""
    release = java.resolve().parent.parent / "release"
    if release.is_file():
        text = release.read_text(encoding="utf-8", errors="replace")
    else:
        try:
            done = subprocess.run(
                [str(java), "-version"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal(f"{java} -version does not answer: {error}") from None
        text = done.stderr + done.stdout
    match = re.search(r'(?:JAVA_VERSION=|version )"([\d._]+)', text)
    if match is None:
        raise Refusal(f"{java} does not report its version: {INSTALL} and set JAVA_HOME to it")
    return match[1]


def check_java(pyspark: str, environment: Mapping[str, str]) -> str:
    """Return the Java version; raise Refusal if this pyspark version does not run on it."""
    java = find_java(environment)
    version = java_version(java)
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    major = numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
    first, last = release_of(pyspark).java
    if not first <= major <= last:
        raise Refusal(
            f"pyspark {pyspark} runs on Java {first} to {last}, and {java} is Java {version}: "
            "set JAVA_HOME to another one"
        )
    return version
