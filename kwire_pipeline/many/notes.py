"""The files from which a run of many tables, and `status`, learn what earlier runs did.

A run of one table stores its problem in the same form.

Rules of this file: a missing or damaged file never keeps a table from being written.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from kwire_pipeline.config.secrets import redact
from kwire_pipeline.config.template import TABLES
from kwire_pipeline.engine import identity
from kwire_pipeline.many.state import Problem

TOPICS: Final = "topics.json"
"""The file below the checkpoint with the topics that the first run found at first."""
PROBLEMS: Final = "problems.json"
"""The file below the checkpoint that names the tables that the last run could not write."""


class Notes(Protocol):
    """The folder of the checkpoints; `kwire_pipeline.engine.storage.Folder` implements it."""

    def names(self, name: str) -> list[str]: ...

    def read(self, name: str) -> str | None: ...


def written_topics(folder: Notes) -> set[str]:
    """Return the topics that have a checkpoint.

    A run that ended before it chose its first offsets may leave a folder that has only a lease.
    """
    topics = folder.names(TABLES)
    return {t for t in topics if folder.read(f"{TABLES}/{t}/{identity.FILE}") is not None}


def first_topics(folder: Notes, started: Collection[str]) -> Collection[str] | None:
    """Return the topics that the first run found at first; None if there was no run.

    If the file is missing, the topics that have a checkpoint are returned: the others may have
    appeared later.
    """
    try:
        return {str(topic) for topic in json.loads(folder.read(TOPICS) or "null")}
    except (ValueError, TypeError):
        return started or None


def read_problems(folder: Notes) -> dict[str, tuple[str, Problem]]:
    """Return the table and problem by topic; a pipeline of one table has one under its own name."""
    try:
        return {
            str(topic): (
                str(each["table"]),
                Problem(str(each["reason"]), int(each["code"]), str(each["at"])),
            )
            for topic, each in json.loads(folder.read(PROBLEMS) or "{}").items()
        }
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}


def dump_problems(problems: Mapping[str, tuple[str, Problem]], secrets: frozenset[str]) -> str:
    """Return the problems as the text of the file, without secrets."""
    plain = {
        topic: {
            "table": table,
            "reason": redact(problem.text, secrets),
            "code": problem.code,
            "at": problem.at,
        }
        for topic, (table, problem) in sorted(problems.items())
    }
    return json.dumps(plain, indent=1) + "\n"
