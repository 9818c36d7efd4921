"""Reads a client's properties file, as Kafka's tools do: addresses, TLS and credentials.

Pure, except that it reads the certificates that the settings name. Errors never show a password.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.configs.declare import ConfigError
from kwire.configs.listeners import PROTOCOLS, Address, has_sasl, has_tls, parse_address

if TYPE_CHECKING:
    from kwire.configs.sasl import Account
    from kwire.configs.tls import TlsConfig

DEFAULT_SERVER: Final = "127.0.0.1:9092"


class ClientFile(NamedTuple):
    """The addresses of a cluster, and the TLS settings and credentials for its listener."""

    servers: tuple[Address, ...]
    tls: "TlsConfig | None"
    account: "Account | None"


def parse_client(properties: Mapping[str, str], server: str | None) -> ClientFile:
    """Return how to reach a cluster; ``server`` overrides the file's; raises ConfigError."""
    if any(name.startswith(("{", '"')) for name in properties):
        raise ConfigError(
            "the file is JSON, such as client.json for librdkafka; give a properties file to "
            "--config, such as the client.properties beside it"
        )
    setting = "--bootstrap-server" if server else "bootstrap.servers"
    text = server or properties.get("bootstrap.servers") or DEFAULT_SERVER
    servers = tuple(parse_address(setting, part) for part in text.split(",") if part.strip())
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"security.protocol is {protocol}; it must be one of {', '.join(PROTOCOLS)}"
        )
    return ClientFile(
        servers,
        _tls(properties) if has_tls(protocol) else None,
        _account(properties) if has_sasl(protocol) else None,
    )


def _tls(properties: Mapping[str, str]) -> "TlsConfig":
    from kwire.configs.tls import TlsConfig, check_stores

    tls = TlsConfig({name: text for name, text in properties.items() if name.startswith("ssl.")})
    check_stores(tls)
    return tls


def _account(properties: Mapping[str, str]) -> "Account":
    from kwire.configs.sasl import client_account

    return client_account(properties)
