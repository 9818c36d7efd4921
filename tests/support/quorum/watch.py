"""The checks of the simulation (invariants 42 and 43), for nodes in any number of threads.

Every step and everything that becomes visible passes here, one at a time.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from kwire.codec.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import Effect, Event, Send
from kwire.raftmeta.raft.roles import Candidate, Leader
from kwire.raftmeta.storage.records import SnapshotReader, read_batches
from kwire.raftmeta.storage.storage_turn import Outcome
from simulation.raft.checks import Checks, batches_from
from simulation.scheduler import Violation


def names_in(records: Iterable[MetadataRecord]) -> list[str]:
    """Return the names of the records that scenarios write, which are feature levels."""
    return [record.name for record in records if isinstance(record, FeatureLevelRecord)]


@attrs.define(eq=False)
class Watch(Checks):
    """Checks, and what scenarios want to know of the past."""

    sent: Counter[tuple[int, str]] = attrs.field(factory=Counter)
    """Number of requests that a node has sent, by node and kind of request."""
    stood: Counter[int] = attrs.field(factory=Counter)
    """Number of epochs in which a node was a candidate."""
    led: dict[int, int] = attrs.field(factory=dict)
    """Epoch to its leader."""
    violations: list[Violation] = attrs.field(factory=list)
    names: list[tuple[int, str]] = attrs.field(factory=list)
    """Committed records: the end offset of the batch, and the record's name."""
    _stood_in: dict[int, int] = attrs.field(factory=dict)
    _turn: Any = attrs.field(factory=threading.RLock)

    def on_step(self, node: Any, event: Event | None, effects: Sequence[Effect]) -> None:
        with self._turn:
            try:
                super().on_step(node, event, effects)
            except Violation as violation:
                self.violations.append(violation)
                raise
            state = node.raft.state
            if isinstance(state.role, Candidate) and self._stood_in.get(node.id) != state.epoch:
                self._stood_in[node.id] = state.epoch
                self.stood[node.id] += 1
            if isinstance(state.role, Leader):
                self.led[state.epoch] = node.id

    def on_outcome(self, node: Any, outcome: Outcome) -> None:
        with self._turn:
            if isinstance(outcome, Send):
                self.sent[node.id, _kind(outcome.request)] += 1
            try:
                super().on_outcome(node, outcome)
            except Violation as violation:
                self.violations.append(violation)
                raise

    def _compare(self, node: Any, end_offset: int) -> None:
        before = self.committed_end
        super()._compare(node, end_offset)
        for base, following, data in batches_from(node, before):
            if before <= base and following <= self.committed_end:
                for batch in read_batches(data):
                    self.names += [(following, name) for name in names_in(batch.records)]

    def _check_snapshot(self, node: Any, end_offset: int) -> None:
        disk = node.storage.cache
        newest = max(disk.snapshots)
        reader = SnapshotReader(newest, disk.snapshots[newest])
        names = names_in(reader.records())
        if names != [name for end, name in self.names if end <= end_offset]:
            raise Violation(f"n{node.id}: a snapshot at {end_offset} of something else")
        place = (node.id, node.incarnation)
        epoch, compared = self.progress[place]
        self.progress[place] = (epoch, max(compared, end_offset))


def _kind(request: Any) -> str:
    """The name of a request; pre-votes have one of their own."""
    if isinstance(request, VoteRequest):
        partition = messages.partition_of(request)
        if partition is not None and partition.pre_vote:
            return "PreVote"
    return type(request).__name__.removesuffix("Request")
