"""The settings that `--secure` makes of a node's properties."""

from pathlib import Path

import pytest

from kwire.configs.declare import ConfigError
from kwire.configs.load import broker_config
from kwire.configs.properties import parse_properties
from kwire.secure.settings import Passwords, java_file, listener_hosts, node_settings

PASSWORDS = Passwords("admin-secret", "node-secret")
PLAIN = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092,OTHER://:9094,CONTROLLER://127.0.0.1:9093",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:9092,OTHER://broker.example:9094",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "inter.broker.listener.name": "PLAINTEXT",
}


def secure_settings(**more: str) -> dict[str, str]:
    properties = {**PLAIN, **{name.replace("_", "."): text for name, text in more.items()}}
    return node_settings(properties, PASSWORDS, Path("/k.pem"), Path("/t.pem"))


def test_every_listener_encrypts_and_asks_for_log_ins() -> None:
    config = broker_config(secure_settings())
    assert {endpoint.name: endpoint.protocol for endpoint in config.endpoints} == {
        "SASL_SSL": "SASL_SSL",
        "OTHER": "SASL_SSL",
        "CONTROLLER": "SASL_SSL",
    }
    assert config.inter_broker_listener == "SASL_SSL"
    assert config.authorizer_class_name.endswith(".StandardAuthorizer")


def test_only_nodes_log_in_with_a_password_that_is_sent() -> None:
    settings = secure_settings()
    assert settings["sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    plain = {name for name, text in settings.items() if "PlainLoginModule" in text}
    assert plain == {"listener.name.controller.plain.sasl.jaas.config"}
    assert not any(PASSWORDS.admin in text for text in settings.values())


def test_admin_and_nodes_are_super_users_beside_others() -> None:
    assert secure_settings()["super.users"] == "User:admin;User:kwire-node"
    assert (
        secure_settings(super_users="User:me")["super.users"]
        == "User:admin;User:kwire-node;User:me"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("listener.security.protocol.map", "authorizer.class.name", "ssl.keystore.location"),
        *("sasl.enabled.mechanisms", "listener.name.other.ssl.client.auth"),
    ],
)
def test_protection_by_hand_is_not_mixed_with_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--secure sets {name} itself: remove that setting"):
        secure_settings(**{name.replace(".", "_"): "x"})


def test_certificate_names_the_hosts_of_listeners() -> None:
    assert listener_hosts(PLAIN) == ["127.0.0.1", "broker.example"]
    assert listener_hosts({"listeners": "A://[::1]:1,B://0.0.0.0:2,C://[::]:3,D://:4"}) == ["::1"]


def test_java_file_is_read_as_it_was_written() -> None:
    """Java reads the file as Latin-1, so other characters are escaped."""
    path = Path("/home/Zoë/b\\c/😀/ca.pem")
    text = java_file("[::1]:9092", "p", path)
    assert text.isascii()
    settings = parse_properties(text)
    location = settings["ssl.truststore.location"].encode("utf-16", "surrogatepass")
    assert location.decode("utf-16") == str(path)
    assert settings["bootstrap.servers"] == "[::1]:9092"
