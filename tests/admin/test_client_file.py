"""A client's properties file, as Kafka's tools take it."""

import pytest

from kwire.admin.client_file import parse_client
from kwire.configs.declare import ConfigError
from kwire.configs.properties import parse_properties
from kwire.configs.sasl import Account

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{MODULE} required username="alice" password="secret";'
LOGIN = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}


def test_without_a_file_the_broker_on_this_machine_is_used() -> None:
    assert parse_client({}, None) == ((("127.0.0.1", 9092),), None, None)


def test_argument_overrides_the_servers_of_the_file() -> None:
    properties = {"bootstrap.servers": "a:1,[::1]:2"}
    assert parse_client(properties, None).servers == (("a", 1), ("::1", 2))
    assert parse_client(properties, "b:3").servers == (("b", 3),)


def test_protocol_decides_what_of_the_file_counts() -> None:
    account = Account("SCRAM-SHA-512", "alice", "secret")
    assert parse_client(LOGIN, None).account is None
    plain = parse_client({**LOGIN, "security.protocol": "SASL_PLAINTEXT"}, None)
    assert (plain.account, plain.tls) == (account, None)
    encrypted = parse_client({**LOGIN, "security.protocol": "sasl_ssl"}, None)
    assert encrypted.account == account
    assert encrypted.tls is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is TLS; it must be one of"),
        ({"bootstrap.servers": "a"}, "expected host:port"),
        ({"sasl.mechanism": "GSSAPI"}, "does not support sasl.mechanism=GSSAPI"),
        ({"sasl.jaas.config": JAAS[:-1]}, "cannot be read: the semicolon"),
        ({"sasl.jaas.config": f"{MODULE} required;"}, "sasl.jaas.config has no account"),
    ],
)
def test_wrong_file_is_explained_without_its_password(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_client({**LOGIN, "security.protocol": "SASL_SSL", **change}, None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ['{"bootstrap.servers": "a:1"}', '{\n  "bootstrap.servers": "a:1"\n}']
)
def test_file_for_librdkafka_is_not_taken_for_an_empty_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"the file is JSON, .* give a properties file"):
        parse_client(parse_properties(text), None)
