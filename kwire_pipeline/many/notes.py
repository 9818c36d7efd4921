"""The files from which a run of many tables, and `status`, know what earlier runs did.

Rules of this file: a file that is not there, or damaged, never keeps a table from being written.
"""

from typing import Protocol

from kwire_pipeline.config.template import TABLES
from kwire_pipeline.engine import identity


class Notes(Protocol):
    """The folder of the checkpoints, as `kwire_pipeline.engine.storage.Folder` is one."""

    def names(self, name: str) -> list[str]: ...

    def read(self, name: str) -> str | None: ...


def written_topics(folder: Notes) -> set[str]:
    """Return the topics that have a checkpoint.

    A run that ended before it chose its first offsets may leave a folder with a lease alone.
    """
    topics = folder.names(TABLES)
    return {t for t in topics if folder.read(f"{TABLES}/{t}/{identity.FILE}") is not None}
