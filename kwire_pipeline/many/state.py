"""The state of one table in a run of many: whether it is due, and what comes after a failure.

Rules of this file: plain decisions; the brokers' offsets, the checkpoint's position and the time
are arguments. A table is due only if its topic has new records, so a quiet topic costs nothing. A
look shows only whether a topic has new records; a run that ended after the look has newer
information.
"""

import time
from collections.abc import Mapping
from typing import Final

import attrs

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine.cluster import Topic
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.offline import Place
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.errors import (
    EXIT_FAILURE,
    EXIT_REFUSAL,
    Failure,
    Held,
    Overtaken,
    Permanent,
    Refusal,
)
from kwire_pipeline.patience import LONGEST_WAIT_S, Outage

FIRST_REFUSED_WAIT_S: Final = 60.0
LONGEST_REFUSED_WAIT_S: Final = 900.0


@attrs.frozen
class Look:
    """The topics of all tables and their ends, as the brokers described them at one time."""

    topics: Mapping[str, Topic]
    ends: Offsets
    """A topic is absent if its leaders did not answer."""


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@attrs.frozen
class Problem:
    """The reason why a table is not written."""

    text: str
    code: int
    """The exit code of a run of this table alone."""
    at: str = attrs.field(factory=utc_now, eq=False)
    """The time when it was noticed first."""

    @classmethod
    def of(cls, error: Refusal | Failure) -> "Problem":
        return cls(str(error), EXIT_REFUSAL if isinstance(error, Refusal) else EXIT_FAILURE)


@attrs.define
class TableState:
    """A table in a run of many tables."""

    topic: str
    table: str
    pipeline: Pipeline | None
    """None while the file has a problem with this topic."""
    intent: Intent
    """The user's answer to a refusal, until a run of this table has used it."""
    outage: Outage
    outdated: Look | None = None
    """The last look before the end of the last run, which has newer information."""
    gone_since: Look | None = None
    """The look that still shows a topic that was deleted during a later run."""
    place: Place | None = None
    """The checkpoint's position; None if a run has to determine it, or to finish a batch."""
    problem: Problem | None = None
    is_stopped: bool = False
    """True if this run no longer writes the table."""
    is_running: bool = False
    former_id: str | None = None
    """The checkpoint's pipeline id before a run with the user's answer; None if unknown."""
    refusals: int = 0
    """The number of refusals since the last successful run."""
    retry_at_s: float = 0.0
    has_written: bool = False
    """True if the table's current or last run has written a batch."""

    def is_due(self, look: Look, now_s: float, *, may_lose: bool, may_go: bool) -> bool:
        """Return whether a run of the table has something to do.

        With ``may_go``, a topic may no longer exist; with ``may_lose``, it may end before the
        checkpoint's offsets.
        """
        if self.is_running or self.is_stopped or self.pipeline is None or now_s < self.retry_at_s:
            return False
        topic, ends = look.topics.get(self.topic), look.ends.get(self.topic)
        if may_go and (topic is None or look is self.gone_since):
            return False
        if self.intent is not Intent.CONTINUE or self.place is None or self.problem is not None:
            return True
        is_old = look is self.outdated
        if topic is None:
            return not is_old  # A run of this table will report what is wrong.
        if ends is None or topic.topic_id != self.place.identity.topics.get(self.topic):
            return not is_old
        may_lose = may_lose or is_old
        position = self.place.position.get(self.topic, {})
        pairs = [(end, position.get(partition, 0)) for partition, end in ends.items()]
        return any(end > read or (end < read and not may_lose) for end, read in pairs)

    @property
    def is_without_hope(self) -> bool:
        """True if this run will not write the table again unless somebody changes something."""
        return self.is_stopped or self.refusals > 0

    def on_start(self) -> None:
        self.is_running = True
        self.has_written = False

    def on_end(self, place: Place | None, look: Look | None) -> None:
        """Record that a run succeeded after a look, and the checkpoint's current position."""
        self.is_running = False
        self.intent = Intent.CONTINUE
        self.problem = None
        self.refusals = 0
        self.place = place
        self.outdated = look

    def on_gone(self, look: Look | None) -> None:
        """Record that the topic, which may be deleted, was deleted after a look."""
        self.is_running = False
        self.place = None  # If the topic is recreated, a run will report what is wrong.
        self.problem = None
        self.refusals = 0
        self.gone_since = look
        self._end_outage()

    def on_identity(self, pipeline_id: str | None) -> None:
        """Record the identity after a failed run; if it is new, the user's answer has been used.

        Another run with the same answer would delete rows again, or read them again.
        """
        if pipeline_id is not None and pipeline_id != self.former_id:
            self.intent = Intent.CONTINUE

    def on_failure(self, error: Refusal | Failure, now_s: float, *, is_endless: bool) -> None:
        """Record why a run of the table failed; the table is retried later, or stopped for good."""
        self.is_running = False
        self.place = None
        self.problem = Problem.of(error)
        wait_s = None
        if is_endless and isinstance(error, Failure) and not isinstance(error, Overtaken):
            if self.has_written:
                self.outage.on_success(now_s)
            wait_s = self.outage.on_failure(now_s)
        elif is_endless and isinstance(error, Held):
            self._end_outage()
            wait_s = LONGEST_WAIT_S
        elif is_endless and isinstance(error, Refusal) and not isinstance(error, Permanent):
            self._end_outage()
            wait_s = min(
                FIRST_REFUSED_WAIT_S * 2.0 ** min(self.refusals, 10), LONGEST_REFUSED_WAIT_S
            )
            self.refusals += 1
        self.is_stopped = wait_s is None
        self.retry_at_s = now_s + (wait_s or 0.0)

    def _end_outage(self) -> None:
        """End an outage: a run that is refused, or whose topic is gone, has reached the brokers."""
        self.outage = Outage(self.outage.patience_s)
