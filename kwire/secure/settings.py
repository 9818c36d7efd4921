"""The settings of a node with `--secure`, and the files for its clients.

Pure. Rules: every listener is SASL_SSL. Clients and brokers authenticate with SCRAM-SHA-512. Nodes
authenticate to controllers with PLAIN, because controllers know SCRAM users only after they have
read the metadata. Both passwords are 256 random bits. The authorizer denies everything that no ACL
allows; only the admin and the nodes are super users. The settings stay in the node's memory: they
are written neither to ``server.properties`` nor to a command line.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kwire.configs.authorizer import STANDARD_AUTHORIZER
from kwire.configs.declare import ConfigError
from kwire.secure.location import ADMIN
from kwire.security import plain, scram

LISTENER: Final = "SASL_SSL"
"""The name of the listener for clients, which is PLAINTEXT without `--secure`."""
NODE: Final = "kwire-node"
"""The user name with which nodes log in to each other."""
MECHANISM: Final = "SCRAM-SHA-512"
_OWN: Final = (
    "listener.security.protocol.map",
    "security.inter.broker.protocol",
    "authorizer.class.name",
)
_OWN_PREFIXES: Final = ("ssl.", "sasl.", "listener.name.")
_SUITES: Final = (
    *("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
)
"""Cipher suites; all of them have forward secrecy and authenticated encryption."""


class Passwords(NamedTuple):
    """The passwords of the two users that `--secure` creates."""

    admin: str
    node: str


def listener_hosts(properties: Mapping[str, str]) -> list[str]:
    """Return the hosts in the addresses of a node's listeners, without duplicates."""
    hosts: dict[str, None] = {}
    for setting in ("advertised.listeners", "listeners"):
        for listener in properties.get(setting, "").split(","):
            host = listener.partition("://")[2].rpartition(":")[0].strip("[]")
            if host not in ("", "0.0.0.0", "::"):
                hosts[host] = None
    return list(hosts)


def node_settings(
    properties: Mapping[str, str], passwords: Passwords, keystore: Path, truststore: Path
) -> dict[str, str]:
    """Return the properties of a protected node; raise ConfigError if they set security."""
    for name in properties:
        if name in _OWN or name.startswith(_OWN_PREFIXES):
            raise ConfigError(
                f"--secure sets {name} itself: remove that setting, or leave out --secure and "
                "see docs/security.md"
            )
    renamed = {
        name: _rename(properties[name])
        for name in ("listeners", "advertised.listeners", "inter.broker.listener.name")
        if name in properties
    }
    controllers = _names(properties.get("controller.listener.names", ""))
    listeners = _names(renamed.get("listeners", ""))
    clients = [name for name in listeners if name not in controllers]
    users = f"User:{ADMIN};User:{NODE};{properties.get('super.users', '')}"
    own = f'username="{NODE}" password="{passwords.node}"'
    settings = {
        "listener.security.protocol.map": ",".join(
            f"{name}:SASL_SSL" for name in dict.fromkeys([*clients, *controllers])
        ),
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.mechanism.controller.protocol": plain.PLAIN,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(truststore),
        "ssl.cipher.suites": ",".join(_SUITES),
        # kwire created the certificates, and the machine's name may have changed.
        "ssl.allow.dn.changes": "true",
        "ssl.allow.san.changes": "true",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": users.rstrip(";"),
    }
    for name in controllers:
        start = f"listener.name.{name.lower()}."
        settings[f"{start}sasl.enabled.mechanisms"] = plain.PLAIN
        settings[f"{start}plain.sasl.jaas.config"] = (
            f'{plain.LOGIN_MODULE} required {own} user_{NODE}="{passwords.node}";'
        )
    if clients:
        between = renamed.get("inter.broker.listener.name", clients[0])
        settings["inter.broker.listener.name"] = between
        settings[f"listener.name.{between.lower()}.scram-sha-512.sasl.jaas.config"] = (
            f"{scram.LOGIN_MODULE} required {own};"
        )
    return {**properties, **renamed, **settings}


def _rename(text: str) -> str:
    """Rename PLAINTEXT listeners to SASL_SSL, because the old name would be misleading."""
    parts = [part.strip().partition("://") for part in text.split(",")]
    return ",".join(
        (LISTENER if name.upper() == "PLAINTEXT" else name) + mark + rest
        for name, mark, rest in parts
    )


def _names(listeners: str) -> list[str]:
    names = (part.strip().partition("://")[0].upper() for part in listeners.split(","))
    return [name for name in names if name]


# Clients --------------------------------------------------------------------------------------
def java_file(bootstrap: str, password: str, truststore: Path) -> str:
    """Return the ``client.properties`` of the admin, for Kafka's tools and Java clients."""
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{scram.LOGIN_MODULE} required username="{ADMIN}" '
        f'password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(truststore),
    }
    return "".join(f"{name}={_escape(value)}\n" for name, value in settings.items())


def _escape(value: str) -> str:
    """Escape a value as java.util.Properties requires."""
    return "".join(
        c if c.isascii() else "".join(f"\\u{unit:04x}" for unit in _utf16(c))
        for c in value.replace("\\", "\\\\")
    )


def _utf16(character: str) -> list[int]:
    data = character.encode("utf-16-be")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]


def librdkafka_settings(bootstrap: str, password: str, truststore: Path) -> dict[str, str]:
    """Return the admin's settings for librdkafka, as for `confluent_kafka.Producer`."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": ADMIN,
        "sasl.password": password,
        "ssl.ca.location": str(truststore),
    }


def kafka_python_settings(bootstrap: str, password: str, truststore: Path) -> dict[str, str]:
    """Return the admin's settings for kafka-python, as for `kafka.KafkaProducer`."""
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": ADMIN,
        "sasl_plain_password": password,
        "ssl_cafile": str(truststore),
    }


def json_file(bootstrap: str, password: str, truststore: Path) -> str:
    """Return the ``client.json`` of the admin: librdkafka's settings."""
    return json.dumps(librdkafka_settings(bootstrap, password, truststore), indent=2) + "\n"
