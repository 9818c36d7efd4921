"""`check` and `init` with a schema registry, without a JVM."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.testing import SchemaRegistry
from kwire_pipeline import cli
from kwire_pipeline.commands.check import check_registry, preflight
from kwire_pipeline.config.load import Flag, load
from kwire_pipeline.errors import Failure, Refusal
from tests.support.avro_bytes import OLDER, ORDER

FLAGS = ["--value.format", "avro-registry", "--source.topics", "orders"]


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()
    registry.register("orders-value", OLDER, schema_id=3)
    registry.register("orders-value", ORDER, schema_id=4)
    registry.register("orders-key", '"string"', schema_id=5)
    with registry as running:
        yield running


@pytest.fixture
def file(server: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipeline that `init` has written, with the registry's newest schemas."""
    monkeypatch.chdir(tmp_path)
    return init("orders.yaml", server)


def init(file: str, server: SchemaRegistry) -> str:
    flags = [*FLAGS, "--registry.url", server.url, "--key.format", "avro-registry"]
    assert cli.main(["init", file, *flags]) == 0
    return file


def test_init_pins_the_newest_schemas_of_the_registry(
    server: SchemaRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = load(init("orders.yaml", server), [], {})
    assert (pipeline.value.schema, pipeline.key.schema) == (ORDER, '"string"')
    notes = capsys.readouterr().out
    assert "value.schema is version 2 of orders-value" in notes
    assert "key.schema is version 1 of orders-key" in notes


def test_init_pins_the_schema_of_keys_beside_values_that_need_none_of_the_registry(
    server: SchemaRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--source.topics", "orders", "--key.format", "avro-registry"]
    brokers = ["--source.bootstrap", "127.0.0.1:1", "--registry.url", server.url]
    assert cli.main(["init", "orders.yaml", *flags, *brokers]) == 0
    assert "add value.schema, which was not inferred: no broker" in capsys.readouterr().out
    pipeline = load("orders.yaml", [Flag("value.schema", "id BIGINT")], {})
    assert pipeline.key.schema == '"string"'


def test_init_without_the_registry_says_that_the_schema_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped = SchemaRegistry()
    with stopped:
        pass
    assert cli.main(["init", "orders.yaml", *FLAGS, "--registry.url", stopped.url]) == 0
    assert "add value.schema, which the registry did not provide: the registry" in (
        capsys.readouterr().out
    )


def test_check_names_the_newest_versions(file: str) -> None:
    assert check_registry(load(file, [], {})).endswith(
        ": orders-key version 1 (schema 5), orders-value version 2 (schema 4)"
    )
    assert check_registry(load(file, [Flag("source.topics", "other")], {})).endswith(
        ": no other-key, no other-value"
    )
    with pytest.raises(Refusal, match=r"value.subject: the registry .* has no subject x"):
        check_registry(load(file, [Flag("value.subject", "x")], {}))


def test_a_registry_that_is_down_is_code_2_of_check_and_1_of_run(
    file: str,
    server: SchemaRegistry,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run may be tried again; that the file is right is not shown."""
    monkeypatch.setattr("kwire_pipeline.commands.check.check_broker", lambda _: "b:1")
    monkeypatch.setattr("kwire_pipeline.commands.check.check_java", lambda *_: "17")
    down = ["--registry.url", "http://127.0.0.1:1"]
    assert cli.main(["check", file, *down]) == 2
    (line,) = (text for text in capsys.readouterr().out.splitlines() if "wrong" in text)
    assert line.startswith("wrong registry  the registry http://127.0.0.1:1 cannot be reached: ")
    with pytest.raises(Failure, match="cannot be reached: connection refused; is it running"):
        preflight(load(file, [Flag("registry.url", "http://127.0.0.1:1")], {}), {})
    assert cli.main(["run", file, *down]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_no_command_shows_the_password_of_the_registry(
    file: str, server: SchemaRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    server.login = "me:right"
    flags = ["--registry.username", "me", "--registry.password", "opensesame"]
    cli.main(["check", file, *flags])
    output = capsys.readouterr().out
    assert "wrong registry  the registry" in output
    assert "refuses the user me (401)" in output
    assert "opensesame" not in output
