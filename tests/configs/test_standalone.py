"""The settings of nodes that start without a file."""

from pathlib import Path

from kwire.cli import parser, serve_properties
from kwire.configs.load import broker_config
from kwire.configs.standalone import ALONE, PROMPT_GROUPS


def settings(*arguments: str) -> dict[str, str]:
    return serve_properties(parser().parse_args(["serve", *arguments]), None)


def test_node_that_keeps_its_data_has_kafkas_heartbeats() -> None:
    assert settings() == ALONE
    assert broker_config(settings()).group_consumer_heartbeat_interval_ms == 5000


def test_groups_of_an_ephemeral_node_do_not_wait(tmp_path: Path) -> None:
    config = broker_config(settings("--ephemeral"))
    for kind in ("consumer", "share", "streams"):
        assert getattr(config, f"group_{kind}_heartbeat_interval_ms") == 200
        assert getattr(config, f"group_{kind}_assignment_interval_ms") == 0
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in ALONE.items()))
    assert settings("--ephemeral", "--config", str(file)) == ALONE


def test_options_of_an_ephemeral_node_come_first() -> None:
    setting = "group.share.heartbeat.interval.ms"
    changed = settings("--ephemeral", "--override", f"{setting}=5000")
    assert changed == {**ALONE, **PROMPT_GROUPS, setting: "5000"}
