"""The files from which a run of many tables, and `status`, learn what earlier runs did.

Rules of this file: a missing or damaged file never keeps a table from being written.
"""

import json
from collections.abc import Collection
from typing import Final, Protocol

from kwire_pipeline.config.template import TABLES
from kwire_pipeline.engine import identity

TOPICS: Final = "topics.json"
"""The file below the checkpoint with the topics that the first run found at first."""


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
