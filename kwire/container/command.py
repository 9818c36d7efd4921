"""The command `kwire container`, which the start scripts of the image call.

``configure`` writes the properties to a file, ``run`` runs the node, ``health`` checks it.
Container libraries wait until certain lines of Kafka's log appear in a container's output. Only
this command prints these lines, once the node can answer every request; `kwire serve` never does.
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from kwire.configs.declare import ConfigError
from kwire.configs.properties import parse_properties
from kwire.container.environment import CLUSTER_ID, settings, with_assignments
from kwire.container.secrets import with_secrets

MOUNTED: Final = Path("/mnt/shared/config/server.properties")
"""The file that users of Apache's image mount."""

CONTROL_PORT: Final = "KWIRE_CONTROL_PORT"
"""The variable that lets tests control the node over HTTP."""
PORT_MAX: Final = 65535

WORDS: Final = (
    "kwire ready, in the words that container tools wait for: "
    "Kafka Server started (kafka.server.KafkaRaftServer), Transitioning from RECOVERY to RUNNING\n"
)


def environment_of(options: Namespace) -> Mapping[str, str]:
    """Return the process's environment, the command line's variables and the TLS settings.

    Raises ConfigError for a password that cannot be read.
    """
    environment = with_assignments(os.environ, options.assignments)
    return with_secrets(environment, Path.read_text)


def properties_of(options: Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the node's properties: those of --config, or else of the environment.

    Raises ConfigError if a file cannot be read or the properties are invalid.
    """
    if options.config is not None and options.action != "configure":
        return parse_properties(_read(options.config))
    return settings(environment, _read(MOUNTED) if MOUNTED.exists() else None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error


def configure(path: Path, properties: Mapping[str, str]) -> None:
    """Write the properties to a file; raise ConfigError if that fails.

    They contain passwords, so a new file can be read only by its owner.
    """
    lines = (f"{name}={_as_property_value(value)}\n" for name, value in properties.items())
    try:
        with open(path, "w", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"cannot write the configuration {path}: {error.strerror}") from error


def _as_property_value(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text[:1] in " \t\f" else text


def control_port_of(environment: Mapping[str, str]) -> int | None:
    """Return the port on which tests control the node; None without one. Raises ConfigError."""
    value = environment.get(CONTROL_PORT, "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= PORT_MAX):
        raise ConfigError(f"{CONTROL_PORT}={value}: expected a port from 1 to {PORT_MAX}")
    return int(value)


def cluster_id_of(environment: Mapping[str, str]) -> str:
    """Return the cluster id for a new cluster."""
    return environment.get("CLUSTER_ID") or CLUSTER_ID
