"""The names that `--secure` chooses. Loaded by every `kwire serve`, so it imports little."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kwire.configs.declare import ConfigError

ADMIN: Final = "admin"
"""The user of the client files."""


def data_directories(properties: Mapping[str, str]) -> list[Path]:
    """Return the directories of the partitions' logs, and then that of the metadata log."""
    directories = properties.get("log.dirs") or properties.get("log.dir") or "/tmp/kafka-logs"
    own = properties.get("metadata.log.dir")
    return [Path(each.strip()) for each in (*directories.split(","), *([own] if own else []))]


def default_folder(properties: Mapping[str, str]) -> Path:
    """Return the folder beside the first data directory."""
    first = data_directories(properties)[0]
    return first.with_name(f"{first.name}-secure")


def check_open(properties: Mapping[str, str]) -> None:
    """Reject starting a node without `--secure` that was started with it; raise ConfigError."""
    folder = default_folder(properties)
    if folder.is_dir():
        raise ConfigError(
            f"this node was protected, and its files are in {folder}: start it with --secure, or "
            "move that folder away to serve everybody"
        )
