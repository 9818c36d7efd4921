"""The settings of listeners with TLS or SASL; loaded only by nodes that have such a listener.

A setting of one listener begins with ``listener.name.NAME.``, in lower case, and overrides the
node's.
"""

from collections.abc import Mapping
from typing import Final, Self

from kwire.configs.declare import Config, Scope, integer, long, string, strings

_OWN: Final = "listener.name."


class SecurityConfig(Config):
    """The security of one listener, or of all listeners without settings of their own."""

    sasl_enabled_mechanisms = strings(
        ("GSSAPI",),
        "Mechanisms with which clients log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
        scope=Scope.PER_BROKER,
    )
    sasl_server_max_receive_size = integer(
        524_288, "The largest request before a client has logged in."
    )
    sasl_mechanism_inter_broker_protocol = string(
        "GSSAPI", "The mechanism with which brokers log in to each other.", scope=Scope.PER_BROKER
    )
    sasl_mechanism_controller_protocol = string(
        "GSSAPI", "The mechanism with which nodes log in to controllers: PLAIN or OAUTHBEARER."
    )
    connection_failed_authentication_delay_ms = integer(
        100, "How long a failed login waits for its answer.", low=0
    )
    connections_max_reauth_ms = long(
        0, "How long a login is valid; 0 for the life of the connection."
    )

    @classmethod
    def of_listener(cls, properties: Mapping[str, str], listener: str) -> Self:
        """Return the settings of a listener of this node; raise ConfigError."""
        return cls({**properties, **own_settings(properties, listener)})


def prefix(listener: str) -> str:
    """Return the prefix of a listener's own settings."""
    return f"{_OWN}{listener.lower()}."


def own_settings(properties: Mapping[str, str], listener: str) -> dict[str, str]:
    """Return a listener's own settings, under the names that apply to all listeners."""
    start = prefix(listener)
    return {
        name.removeprefix(start): text
        for name, text in properties.items()
        if name.startswith(start)
    }


def mechanism_settings(
    properties: Mapping[str, str], listener: str, mechanism: str
) -> dict[str, str]:
    """Return the settings of a listener's mechanism, under the names for all listeners."""
    own = own_settings(properties, listener)
    start = f"{mechanism.lower()}."
    of_mechanism = {
        name.removeprefix(start): text for name, text in own.items() if name.startswith(start)
    }
    return {**properties, **own, **of_mechanism}
