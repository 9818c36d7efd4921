"""Sessions of idempotent producers: why librdkafka begins a new one, and who wrote each record.

Kafka keeps duplicates out of one session. When librdkafka begins a new session, it sends everything
without an answer again, so what was stored in the session before is then stored twice (librdkafka
#4953).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from kwire.records.header import headers

REFUSED_FOR_NOW: Final = frozenset(
    {"KAFKA_STORAGE_ERROR", "NOT_ENOUGH_REPLICAS", "NOT_LEADER_FOR_PARTITION"}
)
"""Errors of a batch that is not stored, after which the broker may take the next one.

A broker that does not know yet that it leads a partition is an example: clients may learn of it
from another broker first.
"""
_SKIPPED: Final = re.compile(
    r"skipped sequence numbers .*caused by previous failed request \((\w+)"
)
"""The part of librdkafka's debug line that says why an idempotent producer begins a new session."""
_NEW_SESSION: Final = re.compile(r"epoch bump for .* in-flight requests: (.*)")


@attrs.frozen
class Session:
    """A session of an idempotent producer: Kafka numbers and checks the batches of each apart."""

    producer_id: int
    producer_epoch: int


@attrs.frozen
class SkippedSequence:
    """A batch that a client sent behind one that was refused for now, and that was refused for it.

    The leader could take batches again between the two. The client library begins a new session.
    """

    client: str
    earlier_error: str
    """The error of the batch before it."""


@attrs.frozen
class NewSession:
    """The beginning of a session after the first one, and the reason that the library gives."""

    client: str
    reason: str


SessionEvent = SkippedSequence | NewSession


class SessionRecorder(logging.Handler):
    """Records what a client library says of its sessions in its log with ``debug=eos``."""

    def __init__(self, client: str, record: Callable[[SessionEvent], None]) -> None:
        super().__init__()
        self.client = client
        self.record = record

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if match := _SKIPPED.search(text):
            self.record(SkippedSequence(self.client, match[1]))
        elif match := _NEW_SESSION.search(text):
            self.record(NewSession(self.client, match[1]))


def producer_sessions(directory: Path) -> dict[int, Session]:
    """Return the producer session of each record in a partition's directory, by offset."""
    return {
        offset: Session(header.producer_id, header.producer_epoch)
        for path in sorted(directory.glob("*.log"))
        for _, header in headers(path.read_bytes())
        for offset in range(header.base_offset, header.next_offset)
    }
