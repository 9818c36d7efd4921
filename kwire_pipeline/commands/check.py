"""The command `check`: everything that can be wrong before the first record is read.

It prints one line per check. Rules of this file: a failed check does not stop the next one; nothing
is written; nothing here needs a JVM or Maven.
"""

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlparse

from kwire_pipeline import versions
from kwire_pipeline.broker import TIMEOUT_S, connect, look_up
from kwire_pipeline.config.model import Pipeline, RecordFormat
from kwire_pipeline.config.values import Format
from kwire_pipeline.errors import EXIT_FAILURE, EXIT_REFUSAL, Failure, Refusal
from kwire_pipeline.jars import jar_files
from kwire_pipeline.java import check_java
from kwire_pipeline.registry import Client, UnknownSchema

REGISTRY: Final = "registry"
GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has already started Java."""
WITHOUT_BROKERS: Final = ("pyspark", "java", "transform", REGISTRY)
"""The checks for a command that uses neither brokers nor tables."""
STANDALONE: Final = "spark://"
Check: TypeAlias = Callable[[], str]
"""Returns a description of what is right; raises Refusal or Failure."""


def check(
    pipeline: Pipeline, environment: Mapping[str, str], write: Callable[[str], object]
) -> int:
    """Write a line for each check; return the exit code, 2 if a rerun cannot cure a problem."""
    code = 0
    for name, run in checks(pipeline, environment):
        try:
            write(f"ok    {name:<9} {run()}")
        except Refusal as error:
            write(f"wrong {name:<9} {error}")
            code = EXIT_REFUSAL
        except Failure as error:
            write(f"wrong {name:<9} {error}")
            # Only the file says where the registry is, so a rerun cannot help.
            code = EXIT_REFUSAL if name == REGISTRY else code or EXIT_FAILURE
    return code


def preflight(
    pipeline: Pipeline, environment: Mapping[str, str], *, needs_brokers: bool = True
) -> None:
    """Raise a set-up's first problem at once, instead of having Spark find it after a minute.

    A command that does not need brokers does not need the master, the folders and the tables
    either.
    """
    for name, run in checks(pipeline, environment):
        if needs_brokers or name in WITHOUT_BROKERS:
            run()


def checks(pipeline: Pipeline, environment: Mapping[str, str]) -> Iterator[tuple[str, Check]]:
    """Yield the checks in the order in which a run would meet their problems."""
    yield "pyspark", lambda: check_pyspark(pipeline)
    if GATEWAY not in environment:
        yield "java", lambda: f"Java {check_java(versions.installed_pyspark(), environment)}"
        master = pipeline.spark.master
        if master is not None and master.startswith(STANDALONE):
            yield "master", lambda: check_master(master)
    for key, name in (("table", pipeline.table.warehouse), ("offsets", pipeline.checkpoint)):
        if name is not None:
            yield key, functools.partial(check_folder, name)
    if pipeline.transform is not None:
        yield "transform", lambda: check_transform(pipeline.transform or "")
    yield "broker", lambda: check_broker(pipeline)
    if Format.AVRO_REGISTRY in (pipeline.key.format, pipeline.value.format):
        yield REGISTRY, lambda: check_registry(pipeline)


def check_pyspark(pipeline: Pipeline) -> str:
    """Return the versions that a session would use; raise Refusal if they do not fit together."""
    pyspark = versions.installed_pyspark()
    names = [package.partition(":")[2] for package in versions.packages(pyspark, pipeline)]
    names += [Path(jar).name for jar in jar_files(pipeline.spark.jars)]
    hint = "" if pyspark in versions.CHECKED else " (not tried with pipelines)"
    return f"{pyspark}{hint}, with {', '.join(names)}"


def check_master(master: str) -> str:
    """Return the first master address of a standalone cluster that accepts connections.

    Spark itself tries for a minute, and then only reports that its context is stopped.
    """
    address = connect(master.removeprefix(STANDALONE), TIMEOUT_S, kind="master of Spark")
    return f"{STANDALONE}{address}"


def check_folder(name: str) -> str:
    """Return the folder if it can be written or created; a remote folder is not tried."""
    location = urlparse(name)
    if location.scheme not in ("", "file"):
        return f"{name} (not tried: only Spark knows how to write it)"
    path = Path(location.path)
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise Refusal(f"{path} cannot be a folder: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Refusal(f"{path} cannot be written: {existing} belongs to another user")
    return f"{path}{'' if path.exists() else ' (a run creates it)'}"


def check_transform(text: str) -> str:
    """Return the name of the user's function after importing it; raise Refusal if it is missing."""
    module, _, function = text.partition(":")
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 a user's module may raise anything
        raise Refusal(f"{module} cannot be imported: {error}") from None
    if not callable(getattr(imported, function, None)):
        raise Refusal(f"{module} has no function {function}")
    return text


def check_broker(pipeline: Pipeline) -> str:
    """Return a description of the brokers and the topics."""
    letters = pipeline.dead_letters.topic
    brokers = look_up(pipeline.source, letters=letters)
    if brokers.cluster_id is None:
        return f"{brokers.address} accepts connections ({brokers.untried} was not tried)"
    if not brokers.topics:
        return (
            f"{brokers.address}, cluster {brokers.cluster_id}: source.pattern was not tried (only "
            "Java knows it)"
        )
    counts = ", ".join(
        f"{name} ({count} {'partition' if count == 1 else 'partitions'})"
        for name, count in brokers.topics.items()
    )
    also = "" if letters is None else f"; dead letters go to {letters}"
    return f"{brokers.address}, cluster {brokers.cluster_id}: {counts}{also}"


def check_registry(pipeline: Pipeline) -> str:
    """Return a description of the registry's subjects; a subject named in the file must exist."""
    client = Client.of(pipeline.registry)
    words = []
    for part, record in (("key", pipeline.key), ("value", pipeline.value)):
        if record.format is not Format.AVRO_REGISTRY:
            continue
        for subject in subjects_of(part, record, pipeline):
            try:
                newest = client.newest(subject)
            except UnknownSchema as error:
                if record.subject is not None:
                    raise Refusal(f"{part}.subject: {error}") from None
                words.append(f"no {subject}")
            else:
                words.append(f"{subject} version {newest.number} (schema {newest.schema_id})")
    return f"{client.url}: {', '.join(words) or 'not tried'}"


def subjects_of(part: str, record: RecordFormat, pipeline: Pipeline) -> list[str]:
    """Return the registry's subjects for keys or values."""
    if record.subject is not None:
        return [record.subject]
    return [f"{topic}-{part}" for topic in pipeline.source.topics]
