"""Config providers (KIP-297): values that a properties file refers to instead of showing them.

``config.providers=file`` and ``config.providers.file.class`` name a provider; then the variable
``${file:/run/secrets/kwire:password}`` in any other setting stands for a value of that file. kwire
has Kafka's three providers, which read environment variables, properties files and directories.

Rules: as in Kafka, a variable of a provider that is not named stays as it is, and values are not
searched for variables. A variable without a value is an error: in Kafka its text would become the
password. Errors show variables, but never values.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from kwire.configs.declare import Config, ConfigError, Scope, strings
from kwire.configs.properties import parse_properties

Lookup = Callable[[str, str], str | None]
"""Returns the value of a key at a path; None if it has none. Raises ConfigError or OSError."""

_VARIABLE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PREFIX: Final = "config.providers."
_PACKAGE: Final = "org.apache.kafka.common.config.provider"
_FILE: Final = f"{_PACKAGE}.FileConfigProvider"
_DIRECTORY: Final = f"{_PACKAGE}.DirectoryConfigProvider"
_ENVIRONMENT: Final = f"{_PACKAGE}.EnvVarConfigProvider"


class ProviderConfig(Config):
    """The setting that names providers; each has a class and parameters, which no table lists."""

    config_providers = strings(
        (),
        "Names of providers for values such as ${env:PASSWORD}; config.providers.NAME.class is "
        "the class of one: Kafka's EnvVarConfigProvider, FileConfigProvider or "
        "DirectoryConfigProvider.",
        scope=Scope.CLUSTER_WIDE,
    )


def resolve(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with the values of their variables; raise ConfigError."""
    names = ProviderConfig(properties).config_providers
    providers = {name: _provider(name, properties) for name in names}

    def value_of(setting: str, match: re.Match[str]) -> str:
        provider, path, key = match[1], match[2] or "", match[3]
        if provider not in providers:
            return match[0]
        try:
            value = providers[provider](path, key)
        except OSError as error:
            raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{setting}: {path} is not UTF-8") from None
        except ConfigError as error:
            raise ConfigError(f"{setting}: {match[0]}: {error}") from None
        if value is None:
            raise ConfigError(
                f"{setting} refers to {match[0]}, which has no value; add it where the provider "
                f"{provider} looks for it, or correct the name"
            )
        return value

    return {
        name: text if name.startswith(_PREFIX) else _VARIABLE.sub(partial(value_of, name), text)
        for name, text in properties.items()
    }


def _provider(name: str, properties: Mapping[str, str]) -> Lookup:
    setting = f"{_PREFIX}{name}.class"
    kind = properties.get(setting, "").strip()
    start = f"{_PREFIX}{name}.param."
    if kind == _ENVIRONMENT:
        return _environment(f"{start}allowlist.pattern", properties)
    if kind in (_FILE, _DIRECTORY):
        return _files(kind, f"{start}allowed.paths", properties)
    problem = f"kwire does not have {kind}" if kind else "it is missing"
    raise ConfigError(f"{setting}: {problem}; set it to {_ENVIRONMENT}, {_FILE} or {_DIRECTORY}")


def _environment(setting: str, properties: Mapping[str, str]) -> Lookup:
    try:
        allowed = re.compile(properties.get(setting, ".*"), re.ASCII | re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{setting}: the pattern is invalid: {error}") from None

    def find(path: str, key: str) -> str | None:
        if path:
            raise ConfigError("environment variables have no path; write ${PROVIDER:NAME}")
        return os.environ.get(key) if allowed.fullmatch(key) else None

    return find


def _files(kind: str, setting: str, properties: Mapping[str, str]) -> Lookup:
    allowed = [Path(os.path.normpath(each)) for each in properties.get(setting, "").split(",")]
    if not properties.get(setting):
        allowed = [Path("/")]
    elif wrong := next((str(each) for each in allowed if not each.is_absolute()), None):
        raise ConfigError(f"{setting}: {wrong} is not an absolute path")
    read_pairs = lru_cache(_read_properties)

    def find(path: str, key: str) -> str | None:
        place = Path(os.path.abspath(path))
        if not path or not any(map(place.is_relative_to, allowed)):
            raise ConfigError(f"the path is not one of {setting}" if path else "it has no path")
        if kind == _FILE:
            return read_pairs(place).get(key)
        is_name = key not in ("", ".", "..") and "/" not in key
        file = place / key
        return file.read_text(encoding="utf-8") if is_name and file.is_file() else None

    return find


def _read_properties(path: Path) -> Mapping[str, str]:
    return parse_properties(path.read_text(encoding="utf-8-sig"))
