"""Converts an exception of a command to a refusal or failure: one sentence, no traceback.

Rules of this file: an exception that is caused neither by the set-up nor by Spark is a defect, and
is raised unchanged. Neither pyspark nor py4j is imported, so that a command without Spark starts
quickly.
"""

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kwire_pipeline.errors import Failure, Permanent, Refusal
from kwire_pipeline.signals import end_at_once, handle_with

SPARK: Final = ("pyspark.", "py4j.")
CALL: Final = "An error occurred while calling "
"""The first line of a py4j error; the Java exception follows after a colon."""
MISSING: Final = re.compile(
    r"ClassNotFoundException|NoClassDefFoundError|UnsupportedFileSystemException"
    r"|No FileSystem for scheme|CATALOG_NOT_FOUND|DATA_SOURCE_NOT_FOUND"
)
NO_CLASS: Final = "'JavaPackage' object is not callable"
"""The py4j error for a class that the JVM lacks."""
ADD: Final = "add the package that has it to spark.packages, or its jar to spark.jars"
LOST: Final = re.compile(
    r"(?:\[KAFKA_DATA_LOSS\.\w+\]|KafkaIllegalStateException: Some data may have been lost)"
    r".*?Reason:\s*(\S[^\n]*)",
    re.DOTALL,
)
"""The errors of Spark's Kafka source for records that are gone, with its own words.

The second is the error of a task that finds records of its batch missing.
"""
DENIED: Final = re.compile(
    r"\b((?:Topic|Group|Cluster)AuthorizationException|SaslAuthenticationException"
    r"|SslAuthenticationException|UnsupportedSaslMechanismException)\b"
)
"""The errors of a Kafka client that failed to log in or lacks permissions."""
UNREADABLE: Final = re.compile(r"\b(?:AccessControlException|AccessDeniedException)\b")
"""The errors of file systems, which name the file."""
RAISED: Final = re.compile(r"^([A-Za-z_]\w*: .*\S)", re.MULTILINE)
"""The last line of a Python traceback, as in the error of a Python worker."""
WRONG_KINDS: Final = {
    "AnalysisException",
    "ArithmeticException",
    "DateTimeException",
    "NumberFormatException",
    "ParseException",
    "PythonException",
    "UnsupportedOperationException",
}
"""pyspark's exceptions for a statement, or a user's code, that fails in every rerun."""


UNRESOLVED: Final = re.compile(r":: (\S+#\S+;\S+): not found")
"""A package in Ivy's report."""
NO_MAVEN: Final = re.compile(
    r"Host repo1\.maven\.org not found|[Ss]erver access error .*repo1\.maven\.org"
)
THROWN: Final = re.compile(r'^Exception in thread "main" ([\w.$]+): (.*)', re.MULTILINE)
CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+): (.*)", re.MULTILINE)
BAD_VALUES: Final = (
    "org.apache.spark.SparkException",
    "java.lang.IllegalArgumentException",
    "java.lang.NumberFormatException",
)
"""Spark's exceptions for an option value that it does not accept."""
NO_JVM: Final = re.compile(r"^(.*)\nError: Could not create the Java Virtual Machine", re.MULTILINE)
BAD_VALUE: Final = re.compile(
    r"^(?:: |Caused by: )?[\w.]*(?:IllegalArgument|NumberFormat)Exception: (?!java\.net\.)(.*\S)",
    re.MULTILINE,
)
"""The exceptions for a rejected value once the JVM runs, except for an unresolved host name."""


def run_on_spark(command: Callable[[], int], transform: str | None = None) -> int:
    """Call a command; convert an error from Spark or the user's transform to one line.

    A signal ends the process, unless the command handles it.
    """
    try:
        with handle_with(end_at_once):
            return command()
    except (Refusal, Failure, BrokenPipeError):  # A closed stdout has nothing to do with Spark.
        raise
    except Exception as error:
        problem = explain(error, transform)
        if problem is None:
            raise
        raise problem from None


def explain(error: Exception, transform: str | None) -> Refusal | Failure | None:
    """Convert an error of Spark or of the user's transform; None for a defect."""
    if isinstance(error, Refusal | Failure):
        return error
    if is_lost_jvm(error):
        return Failure("Spark's JVM ended during the command: run it again")
    place = None if transform is None else place_in(transform.partition(":")[0], error)
    if place is not None:
        return Permanent(
            f"transform: {place} raises {type(error).__name__}: {sentence(str(error))}"
        )
    if NO_CLASS in str(error):
        return Permanent(f"Spark lacks a class of the pipeline: {ADD}")
    return problem_of(error) if type(error).__module__.startswith(SPARK) else None


def is_lost_jvm(error: Exception) -> bool:
    """Return whether py4j found that the JVM has ended."""
    return isinstance(error, ConnectionError) and not isinstance(error, BrokenPipeError)


def place_in(module: str, error: Exception) -> str | None:
    """Return the last file and line of a module in an exception's traceback, if any."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == module:
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return place


def problem_of(error: BaseException) -> Refusal | Failure:
    """Convert an exception of Spark to a sentence."""
    return spark_problem(str(error), [type(cause).__name__ for cause in causes(error)])


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and, for pyspark's exceptions, those of its Java causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "_cause", None)


def is_denied(text: str) -> bool:
    """Return whether a Kafka client's error means that the brokers do not permit a request."""
    return DENIED.search(text) is not None


def spark_problem(text: str, kinds: Sequence[str] = ()) -> Refusal | Failure:
    """Convert a Spark error to a sentence; an error that a rerun would repeat is a refusal.

    ``kinds`` are the names of pyspark's exceptions, from the error to its first cause.
    """
    if lost := LOST.search(text):
        return Permanent(
            f"records were removed from a topic before they were read ({lost[1].strip()}): to "
            "continue without them, run once with --source.fail_on_data_loss false"
        )
    if denied := DENIED.search(text):
        return Refusal(
            f"the brokers deny the pipeline a permission ({denied[1]}: {sentence(text)}): "
            "correct source.security, or the permissions of its user"
        )
    reason = f"Spark failed: {sentence(text)}"
    if unreadable := next((line for line in text.splitlines() if UNREADABLE.search(line)), None):
        return Refusal(f"{reason} ({unreadable.strip()}): grant access to the pipeline's user")
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    if missing := next((line for line in (reason, *causes) if MISSING.search(line)), None):
        cause = "" if missing is reason else f" ({missing.removeprefix('Caused by: ')})"
        return Permanent(f"{reason}{cause}: {ADD}")
    if not WRONG_KINDS.isdisjoint(kinds):
        if "PythonException" in kinds and (raised := RAISED.findall(text)):
            reason += f" ({raised[-1]})"
        return Refusal(f"{reason}: a rerun would fail too; correct the file, or what it refers to")
    return Failure(reason)


def launch_problem(lines: Sequence[str]) -> Refusal | Failure:
    """Return why the JVM ended during its start, according to its standard error."""
    text = "\n".join(lines)
    if unresolved := list(dict.fromkeys(UNRESOLVED.findall(text))):
        names = ", ".join(name.replace("#", ":").replace(";", ":") for name in unresolved)
        if NO_MAVEN.search(text):
            return Failure(
                f"Maven Central cannot be reached for {names}: run `kwire-pipeline jars DIR FILE` "
                "where it can and set spark.jars to DIR"
            )
        return Refusal(f"Maven has no {names}: correct spark.packages, or set spark.jars")
    # An exception without a message of its own has one in its innermost cause.
    if thrown := THROWN.findall(text) or CAUSE.findall(text)[-1:]:
        kind, message = thrown[0]
        if kind in BAD_VALUES:
            return Refusal(f"Spark does not start: {message}: correct the section spark")
        return Failure(f"Spark ended while it started: {kind}: {message}")
    if no_jvm := NO_JVM.search(text):
        return Refusal(f"Java does not start: {no_jvm[1]}: correct spark.conf")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it gave no reason")
    return Failure(f"Spark ended while it started: {last}")


def start_problem(error: Exception) -> Refusal | Failure:
    """Return why a running JVM has no session; a value that Spark rejects is a refusal."""
    lines = (f"{type(cause).__name__}: {cause}" for cause in causes(error))
    values = [value for line in lines for value in BAD_VALUE.findall(line)]
    if values:
        return Refusal(f"Spark does not start: {values[-1]}: correct the section spark")
    return problem_of(error)


def sentence(text: str) -> str:
    """Return the first meaningful line; for a py4j error, the line of the exception."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(CALL):
        return lines[1]
    return lines[0] if lines else "it gave no reason"
