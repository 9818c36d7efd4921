"""First feature levels of a cluster: releases and features by name."""

import pytest

from kwire.raftmeta.controller.features import SUPPORTED
from kwire.storage_format.releases import BadLevelError, feature_levels, metadata_level


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("3.3-IV3", 7),
        ("3.4", 8),
        ("3.7", 19),
        ("3.7.2", 19),
        ("4.0-IV1", 23),
        ("4.1", 27),
        ("4.2-IV0", 28),
        ("4.3", 30),
    ],
)
def test_a_release_is_its_last_level(release: str, level: int) -> None:
    assert metadata_level(release) == level


@pytest.mark.parametrize("release", ["9.9", "3.2", "4.1-IV7", "4", "", "4.4"])
def test_unknown_release_is_refused(release: str) -> None:
    with pytest.raises(BadLevelError, match=r"4\.3-IV0"):
        metadata_level(release)


def test_levels() -> None:
    assert feature_levels(None, [], SUPPORTED, dynamic=False) == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    features = ["group.version=1", "kraft.version=1"]
    assert feature_levels("4.1", features, SUPPORTED, dynamic=True) == {
        "metadata.version": 27,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 0,
        "streams.version": 0,
        "transaction.version": 2,
    }


TRANSACTIONS, ELIGIBLE = "transaction.version", "eligible.leader.replicas.version"


@pytest.mark.parametrize(
    ("release", "name", "level"),
    [
        ("3.9", TRANSACTIONS, 0),
        ("4.0-IV0", TRANSACTIONS, 1),
        ("4.0-IV1", TRANSACTIONS, 1),
        ("4.0-IV2", TRANSACTIONS, 2),
        ("4.3", TRANSACTIONS, 2),
        ("3.9", "group.version", 0),
        ("4.0-IV0", "group.version", 1),
        ("4.0", ELIGIBLE, 0),
        ("4.1-IV0", ELIGIBLE, 1),
        ("4.3", ELIGIBLE, 1),
        ("4.1", "share.version", 0),
        ("4.2-IV0", "share.version", 1),
        ("4.2-IV0", "streams.version", 0),
        ("4.2-IV1", "streams.version", 1),
    ],
)
def test_feature_begins_at_the_level_of_its_release(release: str, name: str, level: int) -> None:
    assert feature_levels(release, [], SUPPORTED, dynamic=True)[name] == level
    disabled = feature_levels(release, [f"{name}=0"], SUPPORTED, dynamic=True)
    assert disabled[name] == 0


@pytest.mark.parametrize(
    ("release", "features", "dynamic", "message"),
    [
        (None, ["foo.version=1"], True, "transaction.version"),
        (None, ["transaction.version=9"], True, "0 to 2"),
        (None, ["transaction.version"], True, "NAME=LEVEL"),
        (None, ["transaction.version=-1"], True, "NAME=LEVEL"),
        (None, ["group.version=1", "group.version=0"], True, "more than once"),
        ("4.3", ["metadata.version=29"], True, "--release-version"),
        ("3.9", ["eligible.leader.replicas.version=1"], True, "metadata.version 23"),
        (None, ["kraft.version=0"], True, "controller.quorum.voters"),
        (None, ["kraft.version=1"], False, "controller.quorum.voters"),
    ],
)
def test_invalid_features_are_refused(
    release: str | None, features: list[str], dynamic: bool, message: str
) -> None:
    with pytest.raises(BadLevelError, match=message):
        feature_levels(release, features, SUPPORTED, dynamic=dynamic)
