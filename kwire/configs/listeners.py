"""Parses the addresses in settings: listeners, voters, bootstrap servers."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from kwire.configs.declare import ConfigError
from kwire.types import in_address

PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""The security protocols by name, with their numbers in registrations."""


def has_tls(protocol: str) -> bool:
    """Return whether a security protocol encrypts."""
    return protocol.endswith("SSL")


def has_sasl(protocol: str) -> bool:
    """Return whether the clients of a security protocol authenticate with SASL."""
    return protocol.startswith("SASL_")


def listener_prefix(listener: str) -> str:
    """Return the prefix of the settings that concern only one listener."""
    return f"listener.name.{listener.lower()}."


_LISTENER: Final = re.compile(
    r"([^:/\s]+)://(\[[0-9a-zA-Z\-%._:]*\]|[0-9a-zA-Z\-%._:]*):(-?[0-9]+)"
)
_HOST_PORT: Final = re.compile(r"(\[[0-9a-zA-Z\-%._:]+\]|[0-9a-zA-Z\-%._]+):([0-9]+)")
_VOTER: Final = re.compile(r"([0-9]+)@(.+)")


class ListenerEndpoint(NamedTuple):
    """A named address. An empty host means every interface, or this machine if advertised."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.name}://{in_address(self.host)}:{self.port}"


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse ``NAME:PROTOCOL,…``; the names are converted to upper case."""
    protocols: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (piece.strip().upper() for piece in part.rpartition(":"))
        if not colon or protocol not in PROTOCOLS:
            raise ConfigError(
                f"Invalid value {part} for configuration {_PROTOCOL_MAP}; write NAME:PROTOCOL, "
                f"with one of {', '.join(PROTOCOLS)}"
            )
        protocols[name] = protocol
    return protocols


_PROTOCOL_MAP: Final = "listener.security.protocol.map"


def parse_listeners(
    setting: str, values: tuple[str, ...], protocols: Mapping[str, str]
) -> tuple[ListenerEndpoint, ...]:
    """Parse the endpoints of ``listeners`` or ``advertised.listeners``."""
    endpoints = []
    for value in values:
        match = _LISTENER.fullmatch(value)
        if match is None:
            raise ConfigError(
                f"{setting}: unable to parse {value!r} to a broker endpoint; "
                "write NAME://HOST:PORT, as PLAINTEXT://127.0.0.1:9092"
            )
        name, host, port = match[1].upper(), match[2].strip("[]"), int(match[3])
        if not 0 <= port <= 65535:
            raise ConfigError(f"{setting}: the port of {value!r} is not from 0 to 65535")
        if name not in protocols:
            raise ConfigError(
                f"{setting}: no security protocol defined for listener {name} in {_PROTOCOL_MAP}; "
                f"add {name}:PLAINTEXT to it"
            )
        endpoints.append(ListenerEndpoint(name, host, port, protocols[name]))
    _refuse_duplicates(setting, endpoints)
    return tuple(endpoints)


def _refuse_duplicates(setting: str, endpoints: list[ListenerEndpoint]) -> None:
    if len({endpoint.name for endpoint in endpoints}) != len(endpoints):
        raise ConfigError(f"{setting}: each listener must have a different name")
    bound = [(e.host, e.port) for e in endpoints if e.port]
    if setting == "listeners" and len(set(bound)) != len(bound):
        raise ConfigError(f"{setting}: each listener must have a different port")


def parse_address(setting: str, text: str) -> Address:
    """Parse ``host:port``."""
    match = _HOST_PORT.fullmatch(text.strip())
    if match is None or not 0 <= int(match[2]) <= 65535:
        raise ConfigError(f"Invalid value {text} for configuration {setting}: expected host:port")
    return Address(match[1].strip("[]"), int(match[2]))


def parse_voters(values: tuple[str, ...]) -> dict[int, Address]:
    """Parse the ``id@host:port,…`` of ``controller.quorum.voters``."""
    setting = "controller.quorum.voters"
    voters: dict[int, Address] = {}
    for value in values:
        match = _VOTER.fullmatch(value)
        if match is None:
            raise ConfigError(
                f"Invalid value {value} for configuration {setting}: "
                "expected {id}@{host}:{port} for each voter"
            )
        voters[int(match[1])] = parse_address(setting, match[2])
    return voters


def connection_counts(text: str) -> dict[str, int]:
    """Parse ``address:number,…`` into a mapping; raise ValueError on anything else.

    The addresses are in the form in which the system names those of clients. Host names are
    rejected, because nothing resolves them here: their limits would never apply.
    """
    pairs = (pair.strip().rpartition(":") for pair in text.split(",") if pair.strip())
    return {_as_of_clients(host): int(count) for host, _, count in pairs}


def _as_of_clients(address: str) -> str:
    from ipaddress import IPv6Address, ip_address

    parsed = ip_address(address.removeprefix("[").removesuffix("]"))
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


def per_address(text: str) -> str | None:
    """Return an error text unless ``text`` is valid for :func:`connection_counts`."""
    try:
        good = all(count >= 0 for count in connection_counts(text).values())
    except ValueError:
        good = False
    return None if good else "must be a list of address:number, without host names"
