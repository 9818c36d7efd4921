"""The data directories that Kafka 4.3.1 wrote, and their contents as Kafka reads them."""

import gzip
import json
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from kwire.log.config import DAY_MS, LogConfig
from kwire.log.producers import Producer

VECTORS = Path(__file__).parents[2] / "vectors" / "disk"
SETS = ("clean", "killed", "torn", "three", "quorum")


@cache
def read_expected(name: str) -> dict[str, Any]:
    """Return the JSON beside a set: its contents, and the observations of clients."""
    with gzip.open(VECTORS / f"{name}.json.gz") as file:
        contents: dict[str, Any] = json.load(file)
        return contents


def disk_part(name: str) -> dict[str, Any]:
    """Return the contents of the disk as Kafka's own classes read it."""
    disk: dict[str, Any] = read_expected(name)["disk"]
    return disk


SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4 has no filters."""


def unpack(name: str, target: Path) -> Path:
    """Write the set's files below ``target``; sparse where they were sparse."""
    with tarfile.open(VECTORS / f"{name}.tar.gz") as tar:
        tar.extractall(target, **SAFELY)
    return target


def copy(source: Path, target: Path) -> Path:
    """Copy a directory, so that a test may change it."""
    return Path(shutil.copytree(source, target, copy_function=copy_sparse))


def copy_sparse(source: str, target: str) -> str:
    """Copy one file; trailing zeros stay a hole, as in preallocated indexes."""
    data = Path(source).read_bytes()
    with open(target, "wb") as file:
        file.write(data.rstrip(b"\0") if len(data) > 1 << 20 else data)
        file.truncate(len(data))
    return target


def root(name: str, directory: Path) -> Path:
    """Return the base of the JSON's paths: sets with one log directory leave its name out."""
    return directory / "data" if name in ("clean", "quorum") else directory


def expected_files(name: str) -> dict[str, Any]:
    """Return the files' contents by log directory and partition, file stem, and suffix."""
    key = "disk_after_recovery_and_clean_shutdown" if name == "torn" else "disk"
    partitions: dict[str, Any] = read_expected(name)[key]["partitions"]
    return partitions


def topic_config(name: str, directory: str) -> LogConfig:
    """Return the settings with which Kafka wrote this partition."""
    topic = directory.rsplit("/", 1)[-1].rsplit("-", 1)[0]
    state = read_expected(name).get("observed") or read_expected(name)["observed_after_restart"]
    settings = {k: v["value"] for k, v in state["configs"].get(f"TOPIC:{topic}", {}).items()}
    size = settings.get("internal.segment.bytes", settings.get("segment.bytes", 1 << 30))
    return LogConfig(
        segment_bytes=int(size),
        segment_ms=int(settings.get("segment.ms", 7 * DAY_MS)),
        index_interval_bytes=int(settings.get("index.interval.bytes", 4096)),
        log_append_time=settings.get("message.timestamp.type") == "LogAppendTime",
        # Made-up timestamps of 2023 must not expire while the tests run.
        producer_id_expiration_ms=1 << 62,
    )


def producers_of(actual: list[Producer]) -> list[dict[str, Any]]:
    """Return producers as the JSON has them, by producer id."""
    fields = [
        {
            "producer_id": p.producer_id,
            "epoch": p.epoch,
            "last_sequence": p.last_sequence,
            "last_offset": p.batches[-1].last_offset if p.batches else -1,
            "offset_delta": p.batches[-1].offset_delta if p.batches else 0,
            "timestamp": p.timestamp,
            "coordinator_epoch": p.coordinator_epoch,
            "current_txn_first_offset": p.open_from,
        }
        for p in actual
    ]
    return sorted(fields, key=lambda producer: producer["producer_id"])
