"""An exception of a command as a refusal or a failure: one sentence in place of a traceback.

Rules of this file: an exception that neither the set-up nor Spark explains is a defect, and is
raised as it is. It imports neither pyspark nor py4j: a command without Spark starts in a moment.
"""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kwire_pipeline.errors import Failure, Refusal

SPARK: Final = ("pyspark.", "py4j.")
CALL: Final = "An error occurred while calling "
"""The first line of an error of py4j; the Java exception follows after a colon."""
MISSING: Final = re.compile(
    r"ClassNotFoundException|NoClassDefFoundError|UnsupportedFileSystemException"
    r"|No FileSystem for scheme|CATALOG_NOT_FOUND|DATA_SOURCE_NOT_FOUND"
)
NO_CLASS: Final = "'JavaPackage' object is not callable"
"""py4j's error for a class that the JVM lacks."""
ADD: Final = "add the package that has it to spark.packages, or its jar to spark.jars"


def run_on_spark(command: Callable[[], int], transform: str | None = None) -> int:
    """Call a command; an error of Spark or of the user's transform becomes one line."""
    try:
        return command()
    except (Refusal, Failure, BrokenPipeError):  # A closed standard output is no matter of Spark.
        raise
    except ConnectionError:  # py4j's own errors end in this one when the JVM is gone.
        raise Failure("Spark's JVM ended during the command: run it again") from None
    except Exception as error:
        place = None if transform is None else place_in(transform.partition(":")[0], error)
        if place is not None:
            raise Refusal(
                f"transform: {place} raises {type(error).__name__}: {sentence(str(error))}"
            ) from None
        if NO_CLASS in str(error):
            raise Refusal(f"Spark lacks a class of the pipeline: {ADD}") from None
        if not type(error).__module__.startswith(SPARK):
            raise
        raise spark_problem(str(error)) from None


def place_in(module: str, error: Exception) -> str | None:
    """Return the last file and line of a module that an exception came through, if there is one."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == module:
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return place


def spark_problem(text: str) -> Refusal | Failure:
    """Return an error of Spark as a sentence; what Spark lacks is a wrong set-up."""
    if "JAVA_GATEWAY_EXITED" in text:
        return Failure(
            "Spark ended while it started, for the reason above; if Maven cannot be reached, run "
            "`kwire-pipeline jars DIR FILE` where it can and set spark.jars to DIR"
        )
    reason = f"Spark failed: {sentence(text)}"
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    if missing := next((line for line in (reason, *causes) if MISSING.search(line)), None):
        cause = "" if missing is reason else f" ({missing.removeprefix('Caused by: ')})"
        return Refusal(f"{reason}{cause}: {ADD}")
    return Failure(reason)


def sentence(text: str) -> str:
    """Return the first line that says something; of an error of py4j, that of the exception."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(CALL):
        return lines[1]
    return lines[0] if lines else "it gave no reason"
