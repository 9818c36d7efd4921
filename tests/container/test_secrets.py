"""TLS files of a container, which variables of Apache's image name."""

import stat
from pathlib import Path
from typing import Final

import pytest

from kwire.configs.declare import ConfigError
from kwire.configs.properties import parse_properties
from kwire.container.command import configure
from kwire.container.environment import settings
from kwire.container.secrets import with_secrets

FILES: Final = {"store_password": "se\\cret=1\n", "key_password": "key\n"}
TLS: Final = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "broker.jks",
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "store_password",
    "KAFKA_SSL_KEY_CREDENTIALS": "key_password",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "clients.jks",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "store_password",
}


def read(path: Path) -> str:
    assert path.parent == Path("/etc/kafka/secrets")
    if path.name not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path.name]


def test_names_of_files_become_locations_and_passwords() -> None:
    environment = {"KAFKA_PROCESS_ROLES": "broker", **TLS}
    assert settings(with_secrets(environment, read), None) == {
        "process.roles": "broker",
        "ssl.keystore.location": "/etc/kafka/secrets/broker.jks",
        "ssl.keystore.password": "se\\cret=1",
        "ssl.key.password": "key",
        "ssl.truststore.location": "/etc/kafka/secrets/clients.jks",
        "ssl.truststore.password": "se\\cret=1",
    }


def test_a_store_without_credentials_has_no_password() -> None:
    environment = {"KAFKA_SSL_KEYSTORE_FILENAME": "broker.pem", "KAFKA_SSL_KEYSTORE_TYPE": "PEM"}
    assert settings(with_secrets(environment, read), None) == {
        "ssl.keystore.location": "/etc/kafka/secrets/broker.pem",
        "ssl.keystore.type": "PEM",
    }


def test_a_password_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="KAFKA_SSL_KEY_CREDENTIALS=other: cannot read"):
        with_secrets({"KAFKA_SSL_KEY_CREDENTIALS": "other"}, read)


def test_written_properties_are_only_for_their_owner(tmp_path: Path) -> None:
    """They contain the passwords of the files that the variables name."""
    file = tmp_path / "kafka.properties"
    configure(file, {"ssl.keystore.password": "se\\cret"})
    assert parse_properties(file.read_text()) == {"ssl.keystore.password": "se\\cret"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
