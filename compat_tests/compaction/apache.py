"""Apache Kafka's log and its cleaner, in a JVM that takes one job after the other.

``ApacheCleaner.java`` is compiled once per content into the cache. A job opens one partition's
directory, cleans it if asked to, and closes it as a clean stop does.
"""

from __future__ import annotations

import json
import queue
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from compat_tests.compaction.inputs import Pass
from compat_tests.harness.broker import kafka
from compat_tests.harness.jvm import compile_classes, launch
from kwire.log.config import LogConfig

SOURCE: Final = Path(__file__).resolve().parent / "ApacheCleaner.java"
JOB_SECONDS: Final = 300
QUICK_START: Final = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# Any: JSON as the Java program prints it.
Answer = dict[str, Any]


class ApacheError(Exception):
    """Apache Kafka's log or cleaner raised an exception; the text is its stack trace."""


def topic_settings(config: LogConfig) -> dict[str, str]:
    """Return the settings of one of kwire's logs under Kafka's names."""
    policies = ["compact"] * config.cleanup_compact + ["delete"] * config.cleanup_delete
    return {
        "cleanup.policy": ",".join(policies),
        "internal.segment.bytes": str(config.segment_bytes),
        "segment.index.bytes": str(config.segment_index_bytes),
        "segment.ms": str(config.segment_ms),
        "index.interval.bytes": str(config.index_interval_bytes),
        "retention.ms": str(config.retention_ms),
        "delete.retention.ms": str(config.delete_retention_ms),
        "max.message.bytes": str(config.max_message_bytes),
        "message.timestamp.type": "LogAppendTime" if config.log_append_time else "CreateTime",
    }


@attrs.define
class ApacheCleaner:
    """The running JVM."""

    process: subprocess.Popen[str]
    answers: queue.Queue[str]

    @classmethod
    def start(cls, directory: Path, flags: Sequence[str] = QUICK_START) -> ApacheCleaner:
        """Start the JVM with these flags; what it logs goes to a file in ``directory``."""
        classes = compile_classes([SOURCE], "compat-cleaner", "ApacheCleaner")
        command = kafka.java_command("ApacheCleaner", classpath=[str(classes)])
        command[1:1] = flags
        return cls(*launch(command, directory / "apache-cleaner.log"))

    def clean(self, directory: Path, job: Pass) -> Answer:
        """Clean a partition's directory; return the clean end and what the log was before.

        A log without cleanable bytes is left alone, because no cleaner would choose it; the answer
        then has no `clean_end`.
        """
        return self._run(
            directory,
            job,
            None,
            first_dirty=job.first_dirty,
            memory_bytes=job.memory_bytes,
            load_factor=job.load_factor,
            buffer_bytes=job.buffer_bytes,
        )

    def load(self, directory: Path, job: Pass, point: int | None) -> Answer:
        """Open a partition's directory with this recovery point; None: after a clean stop."""
        return self._run(directory, job, point)

    def _run(self, directory: Path, job: Pass, point: int | None, **rest: float) -> Answer:
        command = {
            "directory": str(directory),
            "now_ms": job.now_ms,
            "config": topic_settings(job.config),
            "start_offset": job.start_offset,
            "high_watermark": job.high_watermark if "first_dirty" in rest else -1,
            "recovery_point": (1 << 62) if point is None else point,
            "clean_stop": point is None,
            **rest,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        try:
            answer: Answer | None = json.loads(self.answers.get(timeout=JOB_SECONDS))
        except queue.Empty:
            self.close()
            raise AssertionError(f"{directory} was not done in {JOB_SECONDS} s") from None
        if answer is None:
            raise AssertionError(f"the JVM ended while it had {directory}")
        if "error" in answer:
            raise ApacheError(answer["error"])
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
