"""The vectors that Apache Kafka's own classes made, and the message classes they are of.

``KWIRE_GOLDEN`` names another folder with files of the same names; how many lines they have is
only asserted of this repository's own.
"""

import gzip
import json
import os
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import kwire.codec.messages

HOME: Final = Path(__file__).parents[2] / "vectors"
GOLDEN: Final = Path(os.environ.get("KWIRE_GOLDEN", HOME))

RENAMED: Final = {
    # Kafka 4.4 renamed these fields; a table has one name for each, that of 4.3.
    ("TxnOffsetCommitRequest", "generationIdOrMemberEpoch"): "generationId",
    ("StreamsGroupHeartbeatResponse", "acceptableRecoveryLagLegacy"): "acceptableRecoveryLag",
    ("StreamsGroupHeartbeatResponse", "acceptableRecoveryLag"): "acceptableRecoveryLagOffsets",
}
"""Name of 4.4 in a message to the name of kwire's table."""


@cache
def lines(name: str) -> list[dict[str, Any]]:
    """The lines of ``<name>.jsonl.gz``, with the names of kwire's tables."""
    with gzip.open(GOLDEN / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        vectors = [json.loads(line) for line in file]
    if name.endswith("-4.4"):
        for line in vectors:
            if "json" in line:
                line["json"] = {
                    RENAMED.get((line["name"], key), key): value
                    for key, value in line["json"].items()
                }
    return vectors


def check_count(name: str, expected: int) -> None:
    """Print the number of lines, and check that none of ours is missing."""
    print(f"{name}.jsonl.gz: {len(lines(name))} lines")
    if GOLDEN == HOME:
        assert len(lines(name)) == expected


def by_message(*names: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines of some files, message by message, for tests that are one per message."""
    for name in names:
        groups: dict[str, list[dict[str, Any]]] = {}
        for line in lines(name):
            groups.setdefault(line["name"], []).append(line)
        yield from ((f"{name}:{message}", group) for message, group in groups.items())


@cache
def classes() -> dict[str, type[Any]]:
    """Every message class there is, by name."""
    message_classes: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(kwire.codec.messages.__path__):
        imported = import_module(f"kwire.codec.messages.{module.name}")
        for name, value in vars(imported).items():
            if isinstance(value, type) and hasattr(value, "__kwire__"):
                assert name not in message_classes, f"two messages are called {name}"
                message_classes[name] = value
    return message_classes
