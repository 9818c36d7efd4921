"""The simulated world: one thread, virtual time, a network and disks in memory, all from a seed.

Disks are of two kinds: the storage that the simulation of faults uses, and the node's own files
on a disk in memory that can lose power.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import attrs

from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.errors import NotController
from kwire.raftmeta.raft.events import (
    Append,
    Appended,
    Committed,
    Received,
    Refused,
    Reply,
    Shutdown,
    SnapshotTaken,
    UpgradeKraftVersion,
)
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.roles import Leader, Resigned
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.records import pack, snapshot_chunks
from kwire.raftmeta.storage.storage_turn import Outcome
from simulation.disk import SimDisk
from simulation.raft.files import Files
from simulation.raft.network import SimNetwork
from simulation.raft.node import Caller, SimNode
from simulation.raft.storage import SimStorage
from simulation.scheduler import Scheduler, Trace
from tests.support.quorum.cluster import Cluster, Shape, Ticket, record

LIMIT_S: Final = 300.0
"""Virtual seconds."""
LIMIT_EVENTS: Final = 8_000


@attrs.define(eq=False)
class _Waiting:
    """A ticket for something that was appended."""

    ticket: Ticket
    node: SimNode
    incarnation: int
    epoch: int
    end_offset: int


@attrs.define(eq=False)
class _Node(SimNode):
    """A node whose answers may be damaged on their way."""

    on_answer: Callable[[int, int, Any], Any] = lambda source, target, response: response

    def _answer(self, caller: Caller, response: Any) -> None:
        super()._answer(caller, self.on_answer(self.id, caller.node, response))


class SimulatedCluster(Cluster):
    """A quorum in virtual time."""

    def __init__(self, shape: Shape, *, files: bool, seed: int = 1) -> None:
        super().__init__(shape)
        self.has_files = files
        self.random = Random(seed)
        self.scheduler = Scheduler()
        self.network = SimNetwork(self.scheduler, self.random)
        self.trace = Trace.of(200)
        self._waiting: list[_Waiting] = []
        self._tickets: dict[Any, Ticket] = {}
        self._damage: tuple[int, int, bytes] | None = None
        for node_id in (*shape.voters, *shape.others):
            self._make(node_id)
        for node_id in self.nodes:
            self.start(node_id)

    def _make(self, node_id: int) -> None:
        shape = self.shape
        node = _Node(
            shape.config(node_id),
            VoterSet() if shape.is_dynamic else shape.voter_set,
            self.scheduler,
            self.network,
            self.random,
            self.trace,
            self.nodes,
            self.watch.on_step,
            self._on_outcome,
            self.watch.on_delivery,
            self.empty_disk(node_id),
            on_answer=self._damage_once,
        )
        if shape.is_dynamic and node_id in shape.voters:
            node.storage.format(SnapshotId(0, 0), shape.first_checkpoint())
        self.nodes[node_id] = node

    def empty_disk(self, node_id: int) -> Any:
        return Files(SimDisk()) if self.has_files else SimStorage()

    # Time -----------------------------------------------------------------------------------
    def until(self, condition: Callable[..., Any], what: str) -> None:
        limit, events = self.scheduler.now + LIMIT_S, self.scheduler.events + LIMIT_EVENTS
        while not condition():
            is_late = self.scheduler.now > limit or self.scheduler.events > events
            if is_late or not self.scheduler.step():
                raise AssertionError(f"never: {what}\n{self.trace.text()}\n{self.describe()}")

    # Nodes ----------------------------------------------------------------------------------
    def start(self, node_id: int) -> None:
        self.nodes[node_id].start()

    def stop(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.feed(Shutdown())
        state = node.raft.state
        until = self.scheduler.now + 1
        self.until(
            lambda: not isinstance(state.role, Resigned) or self.scheduler.now > until,
            "a resigned leader to end",
        )
        self.until(lambda: not node._is_busy, "its disk")
        node.storage.sync()
        node.storage.close()
        node.crash()

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].crash()

    def pause(self, node_id: int) -> None:
        self.nodes[node_id].pause()

    def resume(self, node_id: int) -> None:
        self.nodes[node_id].resume()

    def cut(self, source: int, target: int) -> None:
        self.network.cut.add((source, target))

    def heal(self) -> None:
        self.network.cut.clear()

    def damage(self, source: int, target: int, marker: str) -> None:
        self._damage = (source, target, marker.encode())

    def is_damaged(self) -> bool:
        return self._damage is None

    def _damage_once(self, source: int, target: int, response: Any) -> Any:
        if self._damage is None or self._damage[:2] != (source, target):
            return response
        part: Any
        match response:
            case FetchResponse(responses=[topic]):
                part, field = topic.partitions[0], "records"
            case FetchSnapshotResponse(topics=[topic]):
                part, field = topic.partitions[0], "unaligned_records"
            case _:
                return response
        data = bytes(getattr(part, field) or b"")
        place = data.find(self._damage[2])
        if place >= 0:
            setattr(part, field, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            self._damage = None
        return response

    # What is asked of them ------------------------------------------------------------------
    def append(self, node_id: int, name: str) -> Ticket:
        node = self.nodes[node_id]
        event = Append(name, node.raft.state.epoch, (pack(record(name)),))
        return self._ticket(node, node.feed(event))

    def upgrade(self, node_id: int) -> Ticket:
        node = self.nodes[node_id]
        return self._ticket(node, node.feed(UpgradeKraftVersion("upgrade", 1)))

    def _ticket(self, node: SimNode, effects: Any) -> Ticket:
        assert node.raft is not None
        ticket = Ticket()
        for effect in effects:
            if isinstance(effect, Refused):
                ticket.error = effect.error
            elif isinstance(effect, Appended):
                end = effect.last_offset + 1
                epoch = node.raft.state.epoch
                self._waiting.append(_Waiting(ticket, node, node.incarnation, epoch, end))
        return ticket

    def _on_outcome(self, node: SimNode, outcome: Outcome) -> None:
        self.watch.on_outcome(node, outcome)
        if isinstance(outcome, Reply) and outcome.token in self._tickets:
            self._tickets.pop(outcome.token).outcome = outcome.response
        for waiting in [w for w in self._waiting if w.node is node]:
            state = node.raft.state if node.raft is not None else None
            if state is None or node.incarnation != waiting.incarnation:
                self._waiting.remove(waiting)
            elif not isinstance(state.role, Leader) or state.epoch != waiting.epoch:
                waiting.ticket.error = NotController()
                self._waiting.remove(waiting)
            elif isinstance(outcome, Committed) and outcome.end_offset >= waiting.end_offset:
                waiting.ticket.outcome = True
                self._waiting.remove(waiting)

    def ask(self, node_id: int, request: Any) -> Ticket:
        ticket = Ticket()
        token = ("tool", self.scheduler.events, len(self._tickets))
        self._tickets[token] = ticket
        self.nodes[node_id].feed(Received(token, request))
        return ticket

    def snapshot(self, node_id: int) -> None:
        node = self.nodes[node_id]
        self.until(lambda: not node._is_busy, "its disk")
        state = self.state(node_id)
        end = state.high_watermark or 0
        named = SnapshotId(end, state.log.epoch_at(end - 1))
        voters, version = state.history.at(end)
        chunks = snapshot_chunks(
            named,
            [[record(name) for name in self.committed_names(node_id)]],
            voters=voters,
            kraft_version=version,
            last_timestamp_ms=0,
            now_ms=0,
        )
        node.storage.store_snapshot(named, chunks)
        node.feed(SnapshotTaken(named))

    def check_more(self) -> None:
        """Check nothing more: the checks of each step see everything."""

    def close(self) -> None:
        for node in self.nodes.values():
            node.raft = None
