"""Logins over TLS (SASL_SSL) with each mechanism, with ACLs that tell the users apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from confluent_kafka import KafkaError, Producer
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
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import SCRAM_MODULE, Guarded, run_guarded
from compat_tests.security.clients import login, refusal
from compat_tests.security.encrypted import CLIENTS, MECHANISMS, OAUTHBEARER, Login, for_librdkafka
from compat_tests.security.tokens import run_issuer
from compat_tests.tls.stores import write_store, write_trusted
from tests.support.security.issuer_server import IssuerServer

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda each: type(each).__name__)
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@attrs.frozen
class Encrypted:
    """A broker whose users alice and bob log in over TLS, with any mechanism."""

    guarded: Guarded
    trusted: str
    """The file of its authority."""
    issuer: IssuerServer

    def login(self, mechanism: str, user: str, *, is_right: bool = True) -> Login:
        """Return the login of a user, with the right secret or another."""
        if mechanism == OAUTHBEARER:
            claims = {} if is_right else {"aud": "others"}
            return Login(mechanism, user, self.issuer.token(user, **claims), self.trusted)
        secret = {"alice": "alice-secret", "bob": "bob,=secret"}[user]
        return Login(mechanism, user, secret if is_right else "wrong", self.trusted)


@pytest.fixture(scope="module")
def place(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    directory = tmp_path_factory.mktemp("encrypted")
    settings = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(write_store(directory, "server").both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with (
        run_issuer() as (issuer, of_tokens),
        run_guarded(broker_kind, directory / "broker", {**of_tokens, **settings}) as broker,
    ):
        create_users(broker.address)
        allow(broker.address, "User:alice", "*")
        yield Encrypted(broker, str(write_trusted(directory)), issuer)


def create_users(address: str) -> None:
    """Create alice's credentials for SCRAM, and wait until the broker has them."""
    admin = AdminClient({"bootstrap.servers": address})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        change = UserScramCredentialUpsertion("alice", info, b"alice-secret")
        admin.alter_user_scram_credentials([change])["alice"].result(30)

    def has_both() -> bool:
        futures: Any = admin.describe_user_scram_credentials(["alice"])
        return len(futures["alice"].result(30).scram_credential_infos) == 2

    eventually(has_both, "the credentials")


@each_mechanism
@each_client
def test_user_logs_in_over_tls(place: Encrypted, client: Any, mechanism: str, unique: Any) -> None:
    topic = unique("topic")
    create(place.guarded.address, topic)
    alice = place.login(mechanism, "alice")
    assert client.round_trip(place.guarded.login, topic, alice) == mechanism.encode()


@each_mechanism
@each_client
def test_wrong_secret_is_refused(place: Encrypted, client: Any, mechanism: str) -> None:
    """A wrong password, or a token for another audience."""
    wrong = place.login(mechanism, "alice", is_right=False)
    client.fail(place.guarded.login, wrong)


@pytest.mark.parametrize("mechanism", ["PLAIN", OAUTHBEARER])
def test_user_without_acls_is_not_served(place: Encrypted, mechanism: str, unique: Any) -> None:
    topic = unique("topic")
    create(place.guarded.address, topic)
    bob = for_librdkafka(place.login(mechanism, "bob"))
    assert failure(place.guarded.login, topic, bob) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_log_in_without_encryption_is_refused(place: Encrypted) -> None:
    refusal(place.guarded.login, login("alice", "alice-secret"))


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


def failure(address: str, topic: str, settings: dict[str, Any]) -> int | None:
    """Return the code with which a record is refused."""
    errors: list[int] = []
    client = Producer({"bootstrap.servers": address, "message.timeout.ms": 20_000, **settings})
    client.produce(
        topic, b"x", on_delivery=lambda error, _: errors.append(error.code() if error else 0)
    )
    eventually(lambda: (client.poll(0.1), errors)[1], "the report of the record")
    return errors[0]
