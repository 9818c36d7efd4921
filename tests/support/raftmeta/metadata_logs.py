"""Metadata logs and snapshots that Kafka 4.3.1 wrote, as records of kwire."""

import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from kwire.codec.messages import metadata_records
from tests.support.codec.message_json import from_json

_FILE = Path(__file__).parent / "metadata-logs.jsonl.gz"


class MetadataLog(NamedTuple):
    """One node's metadata log, and the records of the snapshots beside it by end offset."""

    name: str
    records: list[tuple[int, Any]]
    snapshots: dict[int, list[Any]]


def class_of(kind: str) -> type:
    """``PARTITION_RECORD`` is PartitionRecord."""
    name = "".join(part.capitalize() for part in kind.split("_"))
    record_type: type = getattr(metadata_records, name)
    return record_type


def load() -> list[MetadataLog]:
    logs = []
    for line in gzip.open(_FILE, "rt"):  # noqa: SIM115
        stored = json.loads(line)
        records: list[tuple[int, Any]] = [
            (o, from_json(class_of(k), j, v)) for o, k, v, j in stored["log"]
        ]
        snapshots: dict[int, list[Any]] = {
            int(re.split("-", name)[0]): [from_json(class_of(k), j, v) for k, v, j in listed]
            for name, listed in stored["snapshots"].items()
        }
        logs.append(MetadataLog(f"{stored['set']}:{stored['path']}", records, snapshots))
    return logs
