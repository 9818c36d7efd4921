"""The observations of a run with faults.

Clients observe sends with their outcomes, polls with their records, commits of offsets and reads of
them, reads of end offsets, transactions, and calls with their time-outs. A cluster's nodes have,
once the faults are over, their copies of each partition and their views of the metadata. Times are
seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Literal

import attrs

from simulation.share_rules import FOREVER, Outcome

Place = tuple[str, int]
"""A topic, by its name or id, and a partition."""
End = Literal["committed", "aborted", "unknown"]
"""The outcome of a transaction."""


@attrs.frozen
class Send:
    """One record that a client sends. A value is sent once in a history."""

    client: str
    place: Place
    value: bytes
    began: float
    outcome: Outcome = "unknown"
    offset: int | None = None
    is_idempotent: bool = False
    transaction: str | None = None
    source: tuple[Place, int] | None = None
    """The record that this one was made from: its place and offset."""


@attrs.frozen
class Poll:
    """One poll that returned; ``session`` changes when the client seeks or is reassigned."""

    client: str
    began: float
    ended: float
    records: tuple[tuple[Place, int, bytes], ...]
    session: int = 0
    group: str | None = None
    is_read_committed: bool = False


@attrs.frozen
class Commit:
    """An offset of a group that a client commits; a member that restarts is another client."""

    group: str
    place: Place
    offset: int
    began: float
    ended: float = FOREVER
    outcome: Outcome = "unknown"
    transaction: str | None = None
    client: str = ""


@attrs.frozen
class Committed:
    """A group's committed offset as the server returned it; None: no offset."""

    group: str
    place: Place
    offset: int | None
    began: float
    ended: float


@attrs.frozen
class EndOffset:
    """The end offset of a partition as the server returned it to a client."""

    client: str
    place: Place
    offset: int
    began: float
    ended: float


@attrs.frozen
class Batch:
    """A record batch as it lies in a log; the digest covers all its bytes."""

    base_offset: int
    next_offset: int
    digest: bytes


@attrs.frozen
class View:
    """A node's metadata of a partition."""

    leader: int
    leader_epoch: int
    replicas: frozenset[int]
    isr: frozenset[int]


@attrs.frozen
class Transaction:
    """A transaction's end: the time of the client's request, and its outcome."""

    name: str
    began: float
    outcome: End


@attrs.frozen
class Call:
    """One call of a client; ``ended`` is infinite if it never returned."""

    client: str
    what: str
    began: float
    ended: float
    timeout: float
