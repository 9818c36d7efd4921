"""MirrorMaker 2 in its dedicated mode: one process that copies topics between two clusters.

Both directions run exactly once: the process writes the copies and its positions in the source
in one transaction of the target cluster.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from compat_tests.harness.broker import kafka
from compat_tests.java_old.jars import jars, java

VERSION = "4.3.1"
COORDINATES = [
    f"org.apache.kafka:{artifact}:{VERSION}" for artifact in ("connect-runtime", "connect-mirror")
]
EVERY_SECOND = (
    "refresh.topics.interval.seconds",
    "sync.topic.configs.interval.seconds",
    "refresh.groups.interval.seconds",
    "emit.checkpoints.interval.seconds",
    "sync.group.offsets.interval.seconds",
    "emit.heartbeats.interval.seconds",
)
REPLICATED_ONCE = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)
SHORT_SESSION = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "scheduled.rebalance.max.delay.ms": "0",
    "offset.flush.interval.ms": "200",
}
"""A killed process leaves its group after 6 s; the one that follows waits for that."""


@attrs.define
class Mirror:
    """A MirrorMaker process between the clusters of ``addresses``, which has their aliases."""

    addresses: Mapping[str, str]
    topics: str
    folder: Path

    def settings(self) -> dict[str, str]:
        aliases = sorted(self.addresses)
        settings = {
            "clusters": ",".join(aliases),
            "topics": self.topics,
            "groups": ".*",
            "tasks.max": "1",
            "sync.group.offsets.enabled": "true",
            # Each record has an entry in the topic of offsets, so any offset can be translated.
            "offset.lag.max": "0",
            "plugin.discovery": "service_load",
            **dict.fromkeys(EVERY_SECOND, "1"),
            **dict.fromkeys(REPLICATED_ONCE, "1"),
            **SHORT_SESSION,
        }
        for alias in aliases:
            settings[f"{alias}.bootstrap.servers"] = self.addresses[alias]
            settings[f"{alias}.exactly.once.source.support"] = "enabled"
            for other in set(aliases) - {alias}:
                settings[f"{alias}->{other}.enabled"] = "true"
        return settings

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the process, and kill it in the middle of whatever it does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "mirror.properties"
        kafka.write_properties(properties, self.settings())
        libraries = jars(f"mirror-{VERSION}", COORDINATES)
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        with (self.folder / "mirror.log").open("ab") as log:
            process = subprocess.Popen(
                java(f"{libraries}/*", main, str(properties)),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        try:
            yield
            assert process.poll() is None, self.tail()
        finally:
            process.kill()
            process.wait()

    def tail(self) -> str:
        log = self.folder / "mirror.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""
