"""The log directories of a node in a trial, and how one of several fails.

Rules: all log directories of a node are on one volume, ``data``. A node with several keeps them
in folders ``0``, ``1``, ... below it. The first one holds the metadata log, without which a node
ends, so it never fails.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from compat_tests.cluster.nodes import Node
from kwire.types import METADATA_TOPIC


def data(node: Node) -> Path:
    """Return the folder of everything that a node stores."""
    return node.directory / "data"


def log_directories(node: Node, count: int) -> list[Path]:
    """Return the log directories of a node that has ``count`` of them."""
    return [data(node)] if count == 1 else [data(node) / str(index) for index in range(count)]


def partitions(node: Node) -> list[Path]:
    """Return the folders of a node's partitions, without the metadata log."""
    patterns = ("*/partition.metadata", "*/*/partition.metadata")
    folders = sorted(path.parent for pattern in patterns for path in data(node).glob(pattern))
    return [folder for folder in folders if METADATA_TOPIC not in folder.name]


def folder_of(node: Node, name: str) -> Path:
    """Return the folder of a partition's copy; it need not exist."""
    folders = [data(node) / name, *data(node).glob(f"*/{name}")]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def fail(directory: Path) -> None:
    """Make every later access to a directory by its path fail."""
    directory.rename(_aside(directory))
    directory.write_text("")


def mend(directory: Path) -> None:
    """Put a failed directory back, with the contents that it had."""
    if _aside(directory).exists():
        directory.unlink()
        _aside(directory).rename(directory)


def replace(directory: Path) -> None:
    """Replace a directory by an empty one, as a new disk would."""
    shutil.rmtree(directory)
    directory.mkdir()


def _aside(directory: Path) -> Path:
    return directory.with_name(f"failed-{directory.name}")
