"""The jars of a pipeline as files, for machines that cannot reach Maven.

Rules of this file: Ivy, which comes with pyspark, fetches the jars, as it does for
`spark.jars.packages`; the list is complete, so dependencies are not resolved.
"""

import importlib.util
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from kwire_pipeline.errors import Failure, Refusal

TIMEOUT_S: Final = 600
PATTERN: Final = "[organisation]_[artifact]-[revision].[ext]"


def jar_files(names: Iterable[str]) -> tuple[str, ...]:
    """Return the jars in a list of jars and folders of jars; a URL is returned unchanged.

    Raises Refusal for a path that does not exist, and for a folder without jars.
    """
    files: list[str] = []
    for name in names:
        path = Path(name)
        if "://" in name or path.is_file():
            files.append(name)
        elif inside := sorted(path.glob("*.jar")):
            files.extend(map(str, inside))
        else:
            problem = "has no *.jar" if path.is_dir() else "is not there"
            raise Refusal(
                f"spark.jars: {name} {problem}; `kwire-pipeline jars {name}` fetches them"
            )
    return tuple(files)


def fetch(java: Path, coordinates: Sequence[str], folder: Path) -> list[Path]:
    """Fetch jars from Maven into a folder, creating it, and return them.

    Raises Failure, with what is missing, if Maven cannot be reached or lacks a jar.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"{folder} cannot be created: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="kwire-jars-") as scratch:
        ivy_file = Path(scratch) / "ivy.xml"
        ivy_file.write_text(ivy_module(coordinates), encoding="utf-8")
        command = [
            *(str(java), "-jar", str(_ivy()), "-ivy", str(ivy_file), "-warn"),
            *("-retrieve", f"{folder}/{PATTERN}", "-types", "jar", "bundle"),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failure(f"Maven's packages could not be fetched: {error}") from None
    files = [folder / file_name(coordinate) for coordinate in coordinates]
    missing = [path.name for path in files if not path.is_file()]
    if done.returncode or missing:
        lines = (done.stdout + done.stderr).splitlines()
        if any("Host" in line and "not found" in line for line in lines):
            raise Failure(
                "Maven Central cannot be reached: run `kwire-pipeline jars DIR` where it can, and "
                "copy DIR here"
            )
        raise Failure(f"Maven lacks {', '.join(missing) or 'a package'} for this pyspark")
    return files


def ivy_module(coordinates: Sequence[str]) -> str:
    """Return the text of an Ivy module that depends on these jars, without their dependencies."""
    lines = ['<ivy-module version="2.0">', '<info organisation="kwire" module="pipeline"/>']
    lines.append('<configurations><conf name="default"/></configurations><dependencies>')
    for coordinate in coordinates:
        group, artifact, version = map(quoteattr, coordinate.split(":"))
        lines.append(
            f"<dependency org={group} name={artifact} rev={version} "
            'conf="default->master" transitive="false"/>'
        )
    return "\n".join([*lines, "</dependencies></ivy-module>\n"])


def file_name(coordinate: str) -> str:
    """Return the name of a jar's file, as Ivy and Spark write it."""
    group, artifact, version = coordinate.split(":")
    return f"{group}_{artifact}-{version}.jar"


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations if spec else None) or ():
        for jar in sorted((Path(location) / "jars").glob("ivy-*.jar")):
            return jar
    raise Refusal("the installed pyspark has no Ivy jar: install pyspark from PyPI")
