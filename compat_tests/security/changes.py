"""Changes of a running broker's users and certificates (:mod:`encrypted_broker`)."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from compat_tests.security.encrypted import Login
from compat_tests.security.encrypted_broker import Encrypted
from compat_tests.tls.stores import HOST


def set_password(place: Encrypted, user: str, password: str) -> Login:
    """Give a user of SCRAM-SHA-512 a password; return the login with it."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin = AdminClient({"bootstrap.servers": place.address})
    admin.alter_user_scram_credentials([change])[user].result(30)
    return Login("SCRAM-SHA-512", user, password, place.trusted)


def remove_user(place: Encrypted, user: str) -> None:
    """Delete a user's credential for SCRAM-SHA-512."""
    deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
    admin = AdminClient({"bootstrap.servers": place.address})
    admin.alter_user_scram_credentials([deletion])[user].result(30)


def serial(place: Encrypted) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=place.trusted)
    with (
        socket.create_connection((HOST, place.ports["LOGIN"]), 30) as sock,
        context.wrap_socket(sock, server_hostname=HOST) as wrapped,
    ):
        return str((wrapped.getpeercert() or {})["serialNumber"])


def set_certificate(place: Encrypted, path: Path) -> None:
    """Make the broker read a file of certificates, once more if it has read it already."""
    name = "listener.name.login.ssl.keystore.location"
    entry = ConfigEntry(name, str(path), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": place.address})
    admin.incremental_alter_configs([resource])[resource].result(30)
