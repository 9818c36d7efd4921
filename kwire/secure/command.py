"""The option `--secure` of `kwire serve` and `kwire cluster`, and what they print about it."""

import argparse
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.secure.folder import SecureFolder
from kwire.secure.location import data_directories, default_folder, is_of_cluster
from kwire.secure.settings import Passwords, listener_hosts, node_settings

if TYPE_CHECKING:
    from kwire.secure.upkeep import Upkeep

logger = logging.getLogger(__name__)

_NO_PASSWORDS: Final = Passwords("", "")


class Protected(NamedTuple):
    """A node with `--secure`."""

    properties: dict[str, str]
    upkeep: "Upkeep"
    words: str
    """The line to print once the node is ready; empty for a node of a cluster."""


def protect(options: argparse.Namespace, properties: Mapping[str, str]) -> Protected:
    """Return the properties of a protected node, and create its files; raise ConfigError."""
    from kwire.clock import SystemClock
    from kwire.secure.upkeep import Upkeep

    folder = SecureFolder(
        (Path(options.secure) if options.secure else default_folder(properties)).absolute()
    )
    hosts = listener_hosts(properties)
    # Report wrong settings before the first file is written.
    node_settings(properties, _NO_PASSWORDS, folder.server, folder.authority)
    close_to_others(data_directories(properties))
    folder.fill(hosts, SystemClock().now_ms())
    # The client files of a cluster list all nodes; this node knows only its own address.
    is_alone = not options.supervised and not is_of_cluster(folder.path)
    upkeep = Upkeep(folder, hosts, writes_client_files=is_alone)
    return Protected(
        node_settings(properties, folder.passwords, folder.server, folder.authority),
        upkeep,
        "" if options.supervised else f"{where(folder)}\n",
    )


def close_to_others(directories: Iterable[Path]) -> None:
    """Let no other user of the machine read what this process writes, or the data of earlier nodes.

    The data have all records, and salted keys from which weak passwords can be guessed. An
    unformatted directory with files keeps its mode, because it may not be meant for kwire.
    """
    os.umask(0o077)
    for directory in directories:
        try:
            if directory.is_dir() and _is_for_data(directory):
                directory.chmod(stat.S_IMODE(directory.stat().st_mode) & 0o700)
        except OSError as error:  # A mounted volume may belong to somebody else.
            logger.warning(
                "directory not closed to other users path=%s reason=%s", directory, error.strerror
            )


def _is_for_data(directory: Path) -> bool:
    return (directory / "meta.properties").exists() or not any(directory.iterdir())


def where(folder: SecureFolder) -> str:
    """Return a line that tells the operator where the client files are."""
    return f"client files: {folder.java_client} (Java), {folder.json_client} (librdkafka)"
