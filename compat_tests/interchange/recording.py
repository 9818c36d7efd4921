"""Record data directories of other releases, and what clients saw in them, as test vectors.

    python -m compat_tests.interchange.recording NAME...

Each set becomes ``tests/vectors/disk/NAME.tar.gz`` (the data directory) and ``NAME.view.json.gz``
(:func:`view.everything`, as plain JSON). The names:

- ``kafka-3.9-stopped``, ``kafka-3.9-killed``, ``kafka-4.0-killed``: written by Apache Kafka of that
  release, with transactions in every state, and topic settings that 4.3 rejects or does not know;
- ``cleaner-cleaned``, ``cleaner-swap``: Apache Kafka 4.3.1, killed while its cleaner wrote
  ``.cleaned`` files, and while it renamed ``.swap`` files into place (strace delays each rename);
- ``first-release``: written by kwire as of :data:`FIRST_RELEASE`, and killed.

Where Apache Kafka was killed, the view is its own after it opened a copy of the directory: the log
start that DeleteRecords set shortly before, for example, is lost then.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from compat_tests.confluent_kafka.clients import create, deliver, producer
from compat_tests.harness.broker import ROOT, Broker
from compat_tests.harness.wait import eventually
from compat_tests.interchange import filling, transactions, view
from compat_tests.interchange.node import prepare

FOLDER = ROOT / "tests" / "vectors" / "disk"
SMALL = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "log.index.size.max.bytes": "64000",
}
"""Settings that keep the recorded directories small."""
CLEANING = {
    **SMALL,
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.threads": "1",
}
FIRST_RELEASE = "218fdd96"
"""The commit of kwire's first release."""
GROUPS = (*filling.GROUPS, *transactions.GROUPS)
Snapshot = dict[str, Any]


def plain(snapshot: Any) -> Any:
    """Return a view as JSON can express it: bytes as Latin-1 text, partitions as ``topic-0``."""
    if isinstance(snapshot, dict):
        return {_name(key): plain(value) for key, value in snapshot.items()}
    if isinstance(snapshot, list | tuple):
        return [plain(value) for value in snapshot]
    return snapshot.decode("latin-1") if isinstance(snapshot, bytes) else snapshot


def _name(key: Any) -> str:
    return f"{key[0]}-{key[1]}" if isinstance(key, tuple) else str(key)


def record_kafka(node: Broker, release: str, end: str) -> Snapshot:
    """Fill a node of an earlier release."""
    node.kind, node.release = "kafka", release
    node.start()
    filling.fill(node.address, "segment_bytes")
    transactions.fill(node.address)
    if release.startswith("3."):
        removed: dict[str, Any] = {
            "message_format_version": "2.8-IV1",
            "message_downconversion_enable": "false",
        }
        create(node.address, "of-3.9", 1, **removed)
    if end == "kill":
        node.kill()
        return _after_restart(node, GROUPS)
    snapshot = dict(view.everything(node.address, GROUPS))
    node.stop()
    return snapshot


@contextmanager
def first_release(node: Broker) -> Iterator[None]:
    """Run a node with kwire's first release, checked out beside this tree."""
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / "kwire"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(checkout), FIRST_RELEASE], check=True)
        try:
            command = [sys.executable, "-m", "kwire", "serve", "--config", "server.properties"]
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            node.process = subprocess.Popen(
                command, cwd=node.directory, env=environment, stdout=subprocess.PIPE
            )
            assert node.process.stdout is not None
            assert node.process.stdout.readline().startswith(b"kwire ready on ")
            yield
        finally:
            node.close()
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)


def record_first_release(node: Broker) -> Snapshot:
    """Fill a node of kwire's first release."""
    with first_release(node):
        filling.fill(node.address)
        snapshot = dict(view.everything(node.address, filling.GROUPS))
        node.kill()
    return snapshot


def record_cleaner(node: Broker, suffix: str) -> Snapshot:
    """Kill Apache Kafka while files with ``suffix`` lie in a directory that it cleans."""
    node.kind = "kafka"
    node.start()
    create(
        node.address,
        "cleaned",
        1,
        cleanup_policy="compact",
        internal_segment_bytes="20000",
        index_interval_bytes="300",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
    )
    assert node.process is not None
    calls = "rename,renameat,renameat2"
    how = ["-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter=400000"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", os.devnull, *how, "-p", str(node.process.pid)]
    )
    folder = node.data / "cleaned-0"
    try:
        sent = 0

        def has_file() -> bool:
            nonlocal sent
            client = producer(node.address, enable_idempotence=True, compression_type="lz4")
            deliver(client, [_update(number) for number in range(sent, sent + 600)])
            sent += 600
            return wait_for_file(folder, suffix)

        eventually(has_file, f"{suffix} files", 300)
    finally:
        node.kill()
        tracer.kill()
        tracer.wait()
    assert list(folder.glob(f"*{suffix}")), "the files were there when the node was killed"
    with (node.directory / "server.properties").open("a") as file:
        file.write("log.cleaner.enable=false\n")
    return _after_restart(node, [])


def _after_restart(node: Broker, groups: Sequence[str]) -> Snapshot:
    """Return what clients see when the killed node starts again; leave its directory as it was."""
    copy = node.directory / "copy"
    shutil.copytree(node.data, copy)
    node.start()
    snapshot = dict(view.everything(node.address, groups))
    node.stop()
    shutil.rmtree(node.data)
    copy.rename(node.data)
    return snapshot


def _update(number: int) -> dict[str, Any]:
    key = b"key-%d" % (number * 7919 % 97)
    value = None if number % 13 == 0 else b"%d" % number * 20
    return {"topic": "cleaned", "partition": 0, "key": key, "value": value}


def wait_for_file(folder: Path, suffix: str) -> bool:
    """Look for a file with the suffix for two seconds, as often as possible."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if any(name.endswith(suffix) for name in os.listdir(folder)):
            return True
    return False


SETS: dict[str, tuple[dict[str, str], Callable[[Broker], Snapshot]]] = {
    "kafka-3.9-stopped": (SMALL, partial(record_kafka, release="3.9.1", end="stop")),
    "kafka-3.9-killed": (SMALL, partial(record_kafka, release="3.9.1", end="kill")),
    "kafka-4.0-killed": (SMALL, partial(record_kafka, release="4.0.0", end="kill")),
    "cleaner-cleaned": (CLEANING, partial(record_cleaner, suffix=".cleaned")),
    "cleaner-swap": (CLEANING, partial(record_cleaner, suffix=".swap")),
    "first-release": (SMALL, record_first_release),
}


def record(name: str) -> None:
    settings, fill = SETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        node = prepare(Path(scratch) / "node", overrides=settings)
        try:
            snapshot = fill(node)
        finally:
            node.close()
        with tarfile.open(FOLDER / f"{name}.tar.gz", "w:gz") as tar:
            tar.add(node.data, "data")
    with gzip.open(FOLDER / f"{name}.view.json.gz", "wt") as file:
        json.dump(plain(snapshot), file)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        record(argument)
