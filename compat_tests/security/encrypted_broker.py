"""A broker whose users log in over TLS, at listeners with right and wrong certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import MECHANISMS as PLAIN
from compat_tests.security.brokers import SCRAM_MODULE
from compat_tests.security.encrypted import MECHANISMS, OAUTHBEARER, Login
from compat_tests.security.tokens import run_issuer
from compat_tests.tls.stores import HOST, write_store, write_trusted
from tests.support.security.issuer_server import IssuerServer

SCRAM: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
ENCRYPTED: Final = ("LOGIN", "EXPIRED", "ELSEWHERE", "SHORT")
SESSION_MS: Final = 3000
"""The lifetime of a session with SCRAM-SHA-512 at the listener SHORT."""


@attrs.frozen
class Encrypted:
    """The running broker, whose users are alice and bob."""

    broker: Broker
    ports: Mapping[str, int]
    directory: Path
    """The folder of the certificates."""
    trusted: str
    """The file of its authority."""
    issuer: IssuerServer

    @property
    def address(self) -> str:
        """The listener that serves anybody, without TLS."""
        return self.at("PLAINTEXT")

    @property
    def login_address(self) -> str:
        """The listener with the right certificate."""
        return self.at("LOGIN")

    def at(self, listener: str) -> str:
        """Return the address of PLAINTEXT or one of ``ENCRYPTED``.

        The certificate of EXPIRED is out of date, that of ELSEWHERE belongs to another host.
        Clients of SHORT have to log in again and again.
        """
        return f"{HOST}:{self.ports[listener]}"

    def create(self, topic: str) -> None:
        """Create a topic, and wait until clients find it.

        A client that asks for a topic that the broker does not know yet, and may not create topics,
        is not authorized.
        """
        create(self.address, topic)
        admin = AdminClient({"bootstrap.servers": self.address})
        eventually(lambda: topic in admin.list_topics(timeout=30).topics, "the topic")

    def login(self, mechanism: str, user: str, *, is_right: bool = True) -> Login:
        """Return the login of a user, with the right secret or another."""
        if mechanism == OAUTHBEARER:
            claims = {} if is_right else {"aud": "others"}
            return Login(mechanism, user, self.issuer.token(user, **claims), self.trusted)
        secret = {"alice": "alice-secret", "bob": "bob,=secret"}[user]
        return Login(mechanism, user, secret if is_right else "wrong", self.trusted)


@contextmanager
def run_encrypted(kind: str, directory: Path) -> Iterator[Encrypted]:
    """Run a broker of ``kind`` kwire or kafka; alice may use every topic and group, bob none."""
    names = ("PLAINTEXT", *ENCRYPTED, "CONTROLLER")
    ports = dict(zip(names, new_ports(len(names)), strict=True))
    expired = write_store(directory, "expired", valid_days=-1)
    elsewhere = write_store(directory, "elsewhere", "elsewhere.example")
    with run_issuer() as (issuer, of_tokens):
        settings = {
            **for_listeners(ports, of_tokens),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(write_store(directory, "server").both),
            "listener.name.expired.ssl.keystore.location": str(expired.both),
            "listener.name.elsewhere.ssl.keystore.location": str(elsewhere.both),
            "listener.name.short.scram-sha-512.connections.max.reauth.ms": str(SESSION_MS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        broker = make_broker(kind, directory / "broker", settings)
        try:
            trusted = str(write_trusted(directory))
            place = Encrypted(broker, ports, directory, trusted, issuer)
            create_users(place.address)
            allow(place.address, "User:alice", "*")
            yield place
        finally:
            broker.close()


def for_listeners(ports: Mapping[str, int], of_tokens: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the listeners, which have the same users and mechanisms."""
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    protocols = {name: "SASL_SSL" if name in ENCRYPTED else "PLAINTEXT" for name in ports}
    of_login = {
        **PLAIN,
        **of_tokens,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    alike = {
        name.replace(".login.", f".{listener.lower()}.", 1): value
        for listener in ENCRYPTED
        for name, value in of_login.items()
    }
    return {
        **alike,
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(addresses[name] for name in ("PLAINTEXT", *ENCRYPTED)),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "controller.quorum.voters": f"1@{HOST}:{ports['CONTROLLER']}",
    }


def create_users(address: str) -> None:
    """Create alice's credentials for SCRAM, and wait until the broker has them."""
    admin = AdminClient({"bootstrap.servers": address})
    for mechanism in SCRAM:
        info = ScramCredentialInfo(mechanism, 4096)
        change = UserScramCredentialUpsertion("alice", info, b"alice-secret")
        admin.alter_user_scram_credentials([change])["alice"].result(30)

    def has_both() -> bool:
        futures: Any = admin.describe_user_scram_credentials(["alice"])
        return len(futures["alice"].result(30).scram_credential_infos) == len(SCRAM)

    eventually(has_both, "the credentials")


def allow(address: str, principal: str, topic: str) -> None:
    """Let a user read and write a topic, or all, and use every group."""
    allowed = (
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.TOPIC, topic, AclOperation.WRITE),
        (ResourceType.GROUP, "*", AclOperation.READ),
    )
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            principal,
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in allowed
    ]
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_acls(bindings).values():
        future.result(30)
    anything: Any = None
    of_user = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        principal,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    eventually(
        lambda: len(admin.describe_acls(of_user).result(30)) == len(bindings), "the ACLs are known"
    )
