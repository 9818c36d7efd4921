"""The quorum of a simulated node, which reports its steps and appends to the metadata checks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kwire import attrs
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.events import Effect
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.storage.levels import NEWEST
from kwire.records.build import Payload
from simulation.replication.metadata_checks import Books

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import Event


@attrs.define(eq=False)
class WatchedRaft:
    """A raft state machine that reports its steps to the books."""

    raft: Raft
    books: Books
    node_id: int

    @property
    def deadline(self) -> float:
        return self.raft.deadline

    def step(self, event: "Event | None", now: float, now_ms: int) -> tuple[Effect, ...]:
        state = self.raft.state
        leads = isinstance(state.role, Leader)
        effects = self.raft.step(event, now, now_ms)
        self.books.on_step(self.node_id, state, effects, leads=leads)
        return effects


class WatchedQuorum(RaftService):
    """A quorum service that reports to the books what it commits and in which epoch it appends."""

    books: Books
    node_id: int

    def watch(self, books: Books, node_id: int) -> None:
        """Start to report to ``books``."""
        self.books, self.node_id = books, node_id
        self._driver._machine = WatchedRaft(self._raft, books, node_id)

    def append_nowait(
        self,
        records: Sequence[MetadataRecord],
        epoch: int,
        level: int = NEWEST,
        packed: Payload | None = None,
    ) -> Commit:
        commit = super().append_nowait(records, epoch, level, packed)
        self.books.on_append(self.node_id, epoch)
        return commit
