"""The option `--secure` of `kwire serve` and `kwire cluster`, and what they print about it."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.secure.folder import SecureFolder
from kwire.secure.location import default_folder
from kwire.secure.settings import Passwords, listener_hosts, node_settings

if TYPE_CHECKING:
    from kwire.secure.upkeep import Upkeep


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
    folder.fill(hosts, SystemClock().now_ms())
    upkeep = Upkeep(folder, hosts, writes_client_files=not options.supervised)
    return Protected(
        node_settings(properties, folder.passwords, folder.server, folder.authority),
        upkeep,
        "" if options.supervised else f"{where(folder)}\n",
    )


def where(folder: SecureFolder) -> str:
    """Return a line that tells the operator where the client files are."""
    return f"client files: {folder.java_client} (Java), {folder.json_client} (librdkafka)"
