"""Values that a properties file takes from environment variables and other files (KIP-297).

The expectations of the variables that are found were checked with Apache Kafka 4.3.1.
"""

import logging
from pathlib import Path

import pytest

from kwire.cli import parser, serve_properties
from kwire.cluster.machine_command import _options_by_node
from kwire.configs.declare import ConfigError
from kwire.configs.files import with_variables
from kwire.configs.load import broker_config
from kwire.secure.location import data_directories
from tests.support.configs.node import NODE

PACKAGE = "org.apache.kafka.common.config.provider"
PROVIDERS = {
    "config.providers": "env,file,dir",
    "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
    "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
    "config.providers.dir.class": f"{PACKAGE}.DirectoryConfigProvider",
}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "users").write_text("alice=s\\u0065cret\nport=19092\n")
    (tmp_path / "password").write_text("dirt\n")
    monkeypatch.setenv("WORD", "a${env:WORD}b")
    return tmp_path


def value_of(text: str, **more: str) -> str:
    return with_variables({**PROVIDERS, **more, "x": text})["x"]


def test_variables_become_values(secrets: Path) -> None:
    assert value_of(f"<${{file:{secrets}/users:alice}}>") == "<secret>"
    assert value_of(f"${{dir:{secrets}:password}}") == "dirt\n"
    assert value_of("${env:WORD}-${env:WORD}") == "a${env:WORD}b-a${env:WORD}b"


@pytest.mark.parametrize("text", ["${WORD}", "${nope:WORD}", "$env:WORD", "${env}", "{env:WORD}"])
def test_other_texts_stay_as_they_are(secrets: Path, text: str) -> None:
    assert value_of(text) == text


def test_without_providers_nothing_is_a_variable(secrets: Path) -> None:
    assert with_variables({"x": "${env:WORD}"}) == {"x": "${env:WORD}"}


def test_password_of_a_listener_is_not_the_variable(secrets: Path) -> None:
    """The text of the variable, which everybody can guess, logged in as the user."""
    jaas = "listener.name.plaintext.plain.sasl.jaas.config"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = with_variables(
        {
            **NODE,
            **PROVIDERS,
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            jaas: f'{module} required username="a" password="b" '
            f'user_alice="${{file:{secrets}/users:alice}}";',
            "broker.rack": f"${{file:{secrets}/users:port}}",
        }
    )
    config = broker_config(properties)
    assert 'user_alice="secret"' in config.static[jaas]
    assert config.broker_rack == "19092"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${env:MISSING}", "x refers to ${env:MISSING}, which has no value"),
        ("${env:/path:WORD}", "environment variables have no path"),
        ("${file:users}", "it has no path"),
        ("${file:{0}/users:bob}", "x refers to ${file:{0}/users:bob}, which has no value"),
        ("${file:{0}/none:bob}", "x: cannot read {0}/none: No such file or directory"),
        ("${dir:{0}:none}", "which has no value"),
        ("${dir:{0}/sub:../password}", "which has no value"),
    ],
)
def test_variable_without_a_value_is_an_error(secrets: Path, text: str, reason: str) -> None:
    """Apache Kafka uses the text of the variable instead, for example as a password."""
    (secrets / "sub").mkdir()
    with pytest.raises(ConfigError) as caught:
        value_of(text.replace("{0}", str(secrets)))
    assert reason.replace("{0}", str(secrets)) in str(caught.value)


def test_paths_and_variables_can_be_limited(secrets: Path) -> None:
    (secrets / "sub").mkdir()
    limits = {
        "config.providers.file.param.allowed.paths": f"{secrets}/sub",
        "config.providers.env.param.allowlist.pattern": "KW.*",
    }
    for text in (f"${{file:{secrets}/users:alice}}", f"${{file:{secrets}/sub/../users:alice}}"):
        with pytest.raises(ConfigError, match="the path is not one of"):
            value_of(text, **limits)
    with pytest.raises(ConfigError, match="has no value"):
        value_of("${env:WORD}", **limits)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config.providers.env.class": "x.Vault"}, "kwire does not have x.Vault"),
        ({"config.providers": "vault"}, "config.providers.vault.class: it is missing"),
        ({"config.providers.env.param.allowlist.pattern": "("}, "the pattern is invalid"),
        ({"config.providers.dir.param.allowed.paths": "a"}, "a is not an absolute path"),
    ],
)
def test_unusable_provider(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        with_variables({**NODE, **PROVIDERS, **changes})


def test_folder_of_a_protected_node_is_found_by_its_value(secrets: Path) -> None:
    properties = {**PROVIDERS, "log.dirs": f"{secrets}/${{file:{secrets}/users:port}}"}
    assert data_directories(with_variables(properties)) == [secrets / "19092"]


@pytest.fixture
def file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's file whose id, listeners and directory are variables, as an editor saves it."""
    monkeypatch.setenv("ID", "7")
    monkeypatch.setenv("LISTENERS", "PLAINTEXT://h:9092,CONTROLLER://h:9192")
    lines = [
        "node.id=${env:ID}",
        "process.roles=broker,controller",
        "listeners=${env:LISTENERS}",
        "controller.listener.names=CONTROLLER",
        "controller.quorum.bootstrap.servers=h:9192",
        f"log.dirs={secrets}/${{env:ID}}",
    ]
    path = secrets / "server.properties"
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


OVERRIDES = [f"--override={name}={text}" for name, text in PROVIDERS.items()]


def test_options_of_the_command_line_find_values(file: Path) -> None:
    """Without them, --port had no effect, and --secure renamed no listener."""
    options = parser().parse_args(["serve", "--config", str(file), "--port", "0", *OVERRIDES])
    properties = serve_properties(options, None)
    assert properties["listeners"] == "PLAINTEXT://h:0,CONTROLLER://h:0"
    assert broker_config(properties).node_id == 7


def test_brokers_of_a_machine_are_described_with_values(file: Path) -> None:
    """Without them, the node id was no number."""
    options = parser().parse_args(["serve", "--config", str(file), "--processes", "2", *OVERRIDES])
    by_node = _options_by_node(options, PROVIDERS)
    assert list(by_node) == [7, 8]
    assert "--override=listeners=PLAINTEXT://h:9093" in by_node[8]
    assert f"--override=log.dirs={file.parent}/7/node-8" in by_node[8]


def test_providers_are_no_unknown_settings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        broker_config(with_variables({**NODE, **PROVIDERS}))
    assert not caplog.messages
