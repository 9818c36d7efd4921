"""The names that `--secure` chooses. Loaded by every `kwire serve`, so it imports little."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kwire.configs.declare import ConfigError

ADMIN: Final = "admin"
"""The user of the client files."""
CLUSTER_FOLDER: Final = "secure"
"""The name of the folder with the files of a protected cluster, in the folder of its nodes."""
_OWN_PROTECTION: Final = ("sasl.", "ssl.", "listener.name.")


def data_directories(properties: Mapping[str, str]) -> list[Path]:
    """Return the directories of the partitions' logs, and then that of the metadata log."""
    directories = properties.get("log.dirs") or properties.get("log.dir") or "/tmp/kafka-logs"
    own = properties.get("metadata.log.dir")
    return [Path(each.strip()) for each in (*directories.split(","), *([own] if own else []))]


def default_folder(properties: Mapping[str, str]) -> Path:
    """Return the folder beside the first data directory, or that of the node's `kwire cluster`."""
    first = data_directories(properties)[0]
    with suppress(FileNotFoundError):  # Without a current directory, the start fails later.
        of_cluster = first.absolute().parent.parent / CLUSTER_FOLDER
        if _is_folder(of_cluster) and is_of_cluster(of_cluster):
            return of_cluster
    return Path(f"{first}-secure")


def is_of_cluster(folder: Path) -> bool:
    """Return whether a folder of `--secure` belongs to all nodes of a `kwire cluster`."""
    return folder.name == CLUSTER_FOLDER and folder.with_name("cluster.json").is_file()


def check_open(properties: Mapping[str, str]) -> None:
    """Reject starting a node without `--secure` that was started with it; raise ConfigError.

    A node whose own settings protect it may start. If the folder cannot be looked for, the data
    directory beside it cannot be opened either, and the start fails with that reason.
    """
    folder = default_folder(properties)
    if _is_folder(folder) and not any(name.startswith(_OWN_PROTECTION) for name in properties):
        raise ConfigError(
            f"this node was protected, and its files are in {folder}: start it with --secure, or "
            "move that folder away to serve everybody"
        )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
