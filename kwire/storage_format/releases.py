"""The feature levels of a new cluster, from the operator's options.

Rules: a level is accepted only if this node can serve it. A release implies its final
metadata.version and the features that it introduced (:data:`_BEGINNINGS`); other features are at 0.
kraft.version depends on how the voters are specified; an option may repeat it but not contradict
it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from kwire.raftmeta.storage.levels import ELR, METADATA_VERSION, NEEDS
from kwire.storage_format.format import (
    DEFAULT_FEATURES,
    GROUP_VERSION,
    KRAFT_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)

FIRST_LEVEL: Final = 7
_LEVELS: Final[Mapping[str, tuple[int, ...]]] = {
    "3.3": (3,),
    "3.4": (0,),
    "3.5": (0, 1, 2),
    "3.6": (0, 1, 2),
    "3.7": (0, 1, 2, 3, 4),
    "3.8": (0,),
    "3.9": (0,),
    "4.0": (0, 1, 2, 3),
    "4.1": (0, 1),
    "4.2": (0, 1),
    "4.3": (0,),
}
RELEASES: Final = tuple(f"{release}-IV{n}" for release in _LEVELS for n in _LEVELS[release])
"""The names of the metadata.version levels, from the first one onwards."""
_BEGINNINGS: Final[Mapping[str, tuple[str, ...]]] = {
    TRANSACTION_VERSION: ("4.0-IV0", "4.0-IV2"),
    ELR: ("4.1-IV0",),
    GROUP_VERSION: ("4.0-IV0",),
    SHARE_VERSION: ("4.2-IV0",),
    STREAMS_VERSION: ("4.2-IV1",),
}
"""The releases from which a new cluster starts with level 1, 2 … of a feature, as in Kafka."""


class BadLevelError(ValueError):
    """The options cannot be satisfied; the message is for the operator."""


def metadata_level(release: str) -> int:
    """Return the metadata.version of ``4.1``, ``4.1.2`` or ``4.1-IV0``."""
    if release in RELEASES:
        return FIRST_LEVEL + RELEASES.index(release)
    minor = ".".join(release.split(".")[:2])
    if minor not in _LEVELS:
        raise BadLevelError(f"--release-version {release}: expected one of {', '.join(RELEASES)}")
    return metadata_level(f"{minor}-IV{_LEVELS[minor][-1]}")


def parse_feature(text: str) -> tuple[str, int]:
    """Parse ``NAME=LEVEL``."""
    name, separator, level = text.partition("=")
    if not separator or not level.strip().isdigit():
        raise BadLevelError(f"--feature {text}: expected NAME=LEVEL")
    return name.strip(), int(level)


def feature_levels(
    release: str | None,
    features: Iterable[str],
    supported: Mapping[str, tuple[int, int]],
    *,
    dynamic: bool,
) -> dict[str, int]:
    """Return the levels to format with; ``dynamic``: the voters are in the log."""
    levels = dict(DEFAULT_FEATURES)
    if release is not None:
        levels[METADATA_VERSION] = metadata_level(release)
    named: set[str] = set()
    for name, level in map(parse_feature, features):
        if name in named:
            raise BadLevelError(f"--feature {name} is given more than once")
        if name == METADATA_VERSION and release is not None:
            raise BadLevelError(f"--feature {name}: --release-version already sets it")
        low, high = supported.get(name, (0, -1))
        if high < 0:
            raise BadLevelError(f"--feature {name}: expected one of {', '.join(supported)}")
        if not low <= level <= high:
            raise BadLevelError(f"--feature {name}={level}: expected a level from {low} to {high}")
        named.add(name)
        levels[name] = level
    for name in _BEGINNINGS.keys() - named:
        levels[name] = _first_level(name, levels[METADATA_VERSION])
    _check(levels, dynamic)
    levels.pop(KRAFT_VERSION, None)
    return levels


def _first_level(name: str, metadata_version: int) -> int:
    return sum(metadata_version >= metadata_level(release) for release in _BEGINNINGS[name])


def _check(levels: Mapping[str, int], dynamic: bool) -> None:
    for name, needed in NEEDS.items():
        if levels.get(name, 0) and levels[METADATA_VERSION] < needed:
            raise BadLevelError(f"{name} needs metadata.version {needed} or newer")
    if dynamic and levels.get(KRAFT_VERSION, 1) == 0:
        raise BadLevelError("kraft.version 0 needs voters in controller.quorum.voters")
    if not dynamic and levels.get(KRAFT_VERSION, 0):
        raise BadLevelError("kraft.version 1 needs controller.quorum.voters to be empty")
