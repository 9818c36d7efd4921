"""Partitions of groups, the format of group records, and the parsing of subscriptions."""

import pytest

from kwire.codec.messages.offset_records import GroupMetadataKey, GroupMetadataValue
from kwire.configs.broker import BrokerConfig
from kwire.coordinator.decision import Record
from kwire.coordinator.partitioning import partition_for
from kwire.group.model import ClassicGroup, Member
from kwire.group.records import (
    group_from,
    load,
    store,
    subscribed_topics,
)
from kwire.group.settings import GroupSettings, follow_config
from tests.support.group.sim import subscription


@pytest.mark.parametrize(
    ("group", "partitions", "expected"),
    [
        ("", 50, 0),
        ("Aa", 50, 2112 % 50),
        ("BB", 50, 2112 % 50),
        ("polygenelubricants", 50, 0),  # its hash is -2^31, which has no absolute value
        ("\U0001f600", 1_000_003, (31 * 0xD83D + 0xDE00) % 1_000_003),  # counts as two units
    ],
)
def test_partition_of_a_group_is_its_java_hash_modulo_the_partition_count(
    group: str, partitions: int, expected: int
) -> None:
    assert partition_for(group, partitions) == expected


@pytest.mark.parametrize("length", [24, 255, 256, 257, 512, 513, 32_767])
def test_negative_hash_counts_as_its_absolute_value(length: int) -> None:
    """The rule of Kafka's Utils.abs; clearing the sign bit would give another partition."""
    name = "a-group-with-a-long-name" * 1366
    value = 0
    for letter in name[:length]:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    assert partition_for(name[:length], 50) == abs(signed) % 50


@pytest.mark.parametrize("version", range(5))
def test_group_records_of_every_version_are_decoded(version: int) -> None:
    value = GroupMetadataValue(
        protocol_type="consumer", generation=7, protocol=None, leader=None, members=[]
    )
    record = load(*store(Record(GroupMetadataKey(group="g"), value, version)))
    assert record is not None
    group = group_from("g", record.value)
    assert (group.generation, group.protocol_type, group.leader) == (7, "consumer", None)


def test_records_of_unknown_types_are_ignored() -> None:
    assert load(b"\x00\x63", b"\0\0") is None
    with pytest.raises(ValueError, match="type"):
        load(b"", b"")


def member(metadata: bytes) -> Member:
    return Member(
        member_id="m",
        instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=(("range", metadata),),
    )


@pytest.mark.parametrize(
    ("kind", "metadata", "topics"),
    [
        ("consumer", subscription("t", "u"), {"t", "u"}),
        ("consumer", subscription(), set()),
        ("consumer", b"not a subscription", None),
        ("consumer", b"", None),
        ("connect", subscription("t"), None),
    ],
)
def test_topics_of_a_subscription(kind: str, metadata: bytes, topics: set[str] | None) -> None:
    group = ClassicGroup(group_id="g", protocol="range").add(member(metadata), kind)
    assert subscribed_topics(group) == topics


def test_settings_follow_the_configuration() -> None:
    configs = [BrokerConfig({}), BrokerConfig({"group.max.size": "3"})]
    settings = follow_config(lambda: configs[0])
    assert settings() == GroupSettings()
    assert settings() is settings()
    configs.pop(0)
    assert settings().group_max_size == 3
