"""The command `check`: everything that can be wrong before the first record is read.

It prints one line per check, and finally raises the first problem. Rules of this file: a failed
check does not stop the next one; nothing is written; nothing here needs a JVM or Maven.
"""

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlparse

import attrs

from kwire_pipeline import versions
from kwire_pipeline.broker import TIMEOUT_S, connect, look_up, python_pattern
from kwire_pipeline.config.model import Pipeline, RecordFormat, Source
from kwire_pipeline.config.template import Loaded, Template, common_of
from kwire_pipeline.config.values import LATEST, WITH_REGISTRY
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.jars import jar_files
from kwire_pipeline.java import check_java
from kwire_pipeline.many.plan import TablePlan, plan_tables
from kwire_pipeline.registry import Client, UnknownSchema

REGISTRY: Final = "registry"
GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has already started Java."""
WITHOUT_BROKERS: Final = ("pyspark", "java", "transform", REGISTRY)
"""The checks for a command that uses neither brokers nor tables."""
STANDALONE: Final = "spark://"
Check: TypeAlias = Callable[[], str]
"""A check: returns a description of the valid set-up; raises Refusal or Failure."""


def check(loaded: Loaded, environment: Mapping[str, str], write: Callable[[str], object]) -> int:
    """Write a line for each check; raise Refusal if a rerun cannot cure a problem, else Failure."""
    problems: list[str] = []
    is_refused = False
    tables = tables_of(loaded) if isinstance(loaded, Template) else ()
    for name, run in chain(checks(loaded, environment), tables):
        try:
            write(f"ok    {name:<9} {run()}")
        except (Refusal, Failure) as error:
            write(f"wrong {name:<9} {error}")
            problems.append(f"{name}: {error}")
            # Only the file says where the registry is, so a rerun cannot help.
            is_refused |= isinstance(error, Refusal) or name == REGISTRY
    if problems:
        raise (Refusal if is_refused else Failure)(in_short(problems))
    return 0


def in_short(problems: Sequence[str]) -> str:
    """Return the number of failed checks and the first problem."""
    if len(problems) == 1:
        return f"1 check failed: {problems[0]}"
    return f"{len(problems)} checks failed, first: {problems[0]}"


def preflight(
    loaded: Loaded, environment: Mapping[str, str], *, needs_brokers: bool = True
) -> None:
    """Raise the first problem of a set-up at once, instead of after Spark has started."""
    for name, run in checks(loaded, environment):
        if needs_brokers or name in WITHOUT_BROKERS:
            run()


def checks(loaded: Loaded, environment: Mapping[str, str]) -> Iterator[tuple[str, Check]]:
    """Yield the checks in the order in which a run would meet their problems.

    For a file with many tables, checks of single tables are not included, because the other tables
    do not depend on them.
    """
    pipeline = common_of(loaded)
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
        yield "transform", functools.partial(check_transform, pipeline.transform)
    yield "broker", lambda: check_broker(loaded)
    if {pipeline.key.format, pipeline.value.format} & WITH_REGISTRY.keys():
        yield REGISTRY, lambda: check_registry(loaded)


def check_pyspark(pipeline: Pipeline) -> str:
    """Return the versions that a session would use; raise Refusal if they do not fit together."""
    pyspark = versions.installed_pyspark()
    names = [package.partition(":")[2] for package in versions.packages(pyspark, pipeline)]
    names += [Path(jar).name for jar in jar_files(pipeline.spark.jars)]
    hint = "" if pyspark in versions.CHECKED else " (not tested with pipelines)"
    return f"{pyspark}{hint}, with {', '.join(names)}"


def check_master(master: str) -> str:
    """Return the first master address of a standalone cluster that accepts connections.

    Spark itself tries for a minute, and then only reports that its context is stopped.
    """
    address = connect(master.removeprefix(STANDALONE), TIMEOUT_S, kind="master of Spark")
    return f"{STANDALONE}{address}"


def check_folder(name: str) -> str:
    """Return the folder if it can be written or created; remote folders are not checked."""
    location = urlparse(name)
    if location.scheme not in ("", "file"):
        return f"{name} (not checked: only Spark can write to it)"
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


def check_broker(loaded: Loaded) -> str:
    """Return a description of the brokers, and of the topics of a file with one table."""
    is_many = isinstance(loaded, Template)
    letters = None if is_many else common_of(loaded).dead_letters.topic
    source = all_topics(loaded) if isinstance(loaded, Template) else loaded.source
    brokers = look_up(source, letters=letters)
    if brokers.cluster_id is None:
        return f"{brokers.address} accepts connections ({brokers.untried} was not checked)"
    cluster = f"{brokers.address}, cluster {brokers.cluster_id}"
    if is_many:
        return cluster
    if not brokers.topics:
        return f"{cluster}: source.pattern was not checked (that needs Java)"
    counts = ", ".join(
        f"{name} ({count} {'partition' if count == 1 else 'partitions'})"
        for name, count in brokers.topics.items()
    )
    return f"{cluster}: {counts}" + ("" if letters is None else f"; dead letters go to {letters}")


def all_topics(template: Template) -> Source:
    """Return the source of a file for many tables, with all topics of the brokers."""
    return attrs.evolve(template.common.source, topics=(), pattern=".*")


def tables_of(template: Template) -> Iterator[tuple[str, Check]]:
    """Yield a check for each of many tables; none if the brokers cannot be queried from here."""
    try:
        brokers = look_up(all_topics(template))
    except (Refusal, Failure):
        return
    source = template.common.source
    names: Iterable[str] = source.topics
    if source.pattern is not None:
        pattern = python_pattern(source.pattern)
        if pattern is None:
            return
        names = filter(pattern.fullmatch, brokers.topics)
    if brokers.cluster_id is not None:
        for plan in plan_tables(template, names, ()):
            yield "table", functools.partial(check_table, plan, brokers.topics)


def check_table(plan: TablePlan, topics: Mapping[str, int]) -> str:
    """Return the table of a topic; raise Refusal if the table cannot be written."""
    if plan.problem is not None:
        raise Refusal(f"{plan.table}: {plan.problem}")
    if plan.topic not in topics:
        raise Refusal(f"{plan.table}: the topic {plan.topic} does not exist: create it")
    return f"{plan.table} (topic {plan.topic})"


def check_registry(loaded: Loaded) -> str:
    """Return a description of the registry's subjects; a subject named in the file must exist."""
    pipeline = common_of(loaded)
    client = Client.of(pipeline.registry)
    words = []
    for part, record in (("key", pipeline.key), ("value", pipeline.value)):
        if record.format not in WITH_REGISTRY or isinstance(loaded, Template):
            continue
        for subject in subjects_of(part, record, pipeline):
            try:
                newest = client.newest(subject, WITH_REGISTRY[record.format])
            except UnknownSchema as error:
                if record.subject is not None or record.schema == LATEST:
                    raise Refusal(f"{part}.subject: {error}") from None
                words.append(f"no {subject}")
            else:
                words.append(f"{subject} version {newest.number} (schema {newest.schema_id})")
    return f"{client.url}: {', '.join(words) or 'not checked'}"


def subjects_of(part: str, record: RecordFormat, pipeline: Pipeline) -> list[str]:
    """Return the registry's subjects for keys or values."""
    if record.subject is not None:
        return [record.subject]
    return [f"{topic}-{part}" for topic in pipeline.source.topics]
