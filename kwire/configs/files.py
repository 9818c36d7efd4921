"""Reads a properties file, and replaces variables in the settings of a node.

Rule: each command does both once, after it has merged the file with its options. Everything behind
it gets values, in which variables are not looked for again.
"""

from collections.abc import Mapping
from pathlib import Path

from kwire.configs.declare import ConfigError
from kwire.configs.properties import parse_properties


def read_properties(path: Path) -> dict[str, str]:
    """Return the properties in a file; raise ConfigError, which names the file."""
    try:
        return parse_properties(path.read_text(encoding="utf-8-sig"))  # Editors add a BOM.
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}; give a file to --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error}; save it as UTF-8"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def with_variables(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with the values of config providers; raise ConfigError."""
    if not properties.get("config.providers"):
        return dict(properties)
    from kwire.configs.providers import resolve

    return resolve(properties)
