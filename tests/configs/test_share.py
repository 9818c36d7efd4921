"""The settings of share partitions."""

import pytest

from kwire.configs.broker import BrokerConfig
from kwire.configs.checks import check_node
from kwire.configs.declare import ConfigError
from kwire.configs.group import (
    GroupConfig,
    check_group_config,
    duration_ms,
    reset_age_ms,
)
from kwire.share.settings import ShareSettings


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1S", 1000),
        ("P1D", 86_400_000),
        ("P2DT3H4M5.5S", 183_845_500),
        ("pt10m", 600_000),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("1H", None),
        ("P1Y", None),
        ("PT1\u017f", None),
        ("PT-1S", None),
        ("-PT1S", None),
        ("+P1DT-1H", 82_800_000),
        ("-PT-1.25S", 1250),
        ("PT1,5S", 1500),
        ("PT1.S", 1000),
        ("PT.5S", None),
        ("PT0.0009S", 0),
        ("PT" + "9" * 18 + "S", (10**18 - 1) * 1000),
        ("P" + "9" * 18 + "D", None),
        ("P" + "9" * 400 + "D", None),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms
    assert reset_age_ms(f"by_duration:{text}") == ms


@pytest.mark.parametrize("reset", ["earliest", "latest", "by_duration:PT1H"])
def test_valid_resets(reset: str) -> None:
    assert GroupConfig({"share.auto.offset.reset": reset}).share_auto_offset_reset == reset


@pytest.mark.parametrize("reset", ["none", "EARLIEST", "by_duration:", "by_duration:1h"])
def test_invalid_resets(reset: str) -> None:
    with pytest.raises(ConfigError):
        _ = GroupConfig({"share.auto.offset.reset": reset}).share_auto_offset_reset


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.record.lock.duration.ms", "14999"),
        ("share.record.lock.duration.ms", "60001"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "99"),
        ("share.partition.max.record.locks", "4001"),
    ],
)
def test_group_must_stay_within_the_limits_of_the_broker(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        check_group_config({name: value}, BrokerConfig({}))


def test_settings_of_a_group_replace_those_of_the_broker() -> None:
    config = BrokerConfig({"group.share.record.lock.duration.ms": "20000"})
    assert ShareSettings.of(config, {}).lock_s == 20.0
    overrides = {
        "share.record.lock.duration.ms": "90000",
        "share.delivery.count.limit": "7",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
    }
    settings = ShareSettings.of(config, overrides)
    assert (settings.lock_s, settings.max_deliveries) == (60.0, 7)
    assert settings.reads_committed
    assert not settings.may_renew


def test_limits_of_the_broker_must_include_its_own_setting() -> None:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "C",
        "controller.quorum.voters": "1@localhost:2",
        "listeners": "PLAINTEXT://:1,C://:2",
        "log.dirs": "/tmp/x",
        "group.share.record.lock.duration.ms": "10000",
    }
    with pytest.raises(ConfigError, match=r"group\.share\.record\.lock\.duration\.ms must be"):
        check_node(BrokerConfig(settings))
