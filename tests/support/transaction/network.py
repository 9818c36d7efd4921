"""Partitions of topics, and marker requests that a test delivers when and as often as it likes.

A partition keeps the product's own producer states, so late and repeated markers meet the checks
that they meet in a broker.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from kwire.errors import NONE, KafkaError, NetworkException, NotLeaderOrFollower
from kwire.log.producers import ProducerStates
from kwire.records.build import New, batch
from kwire.records.control import end_txn_marker
from kwire.records.header import parse
from kwire.replica.transaction_ports import TransactionMarker
from kwire.types import NO_LEADER, TopicPartition
from tests.support.transaction.reference import Identity

STRICT: Final = 2
"""The `transaction.version` from which the epoch of a late marker gives it away."""


TransactionKey: TypeAlias = tuple[str, int, int]
"""A transactional id, a producer id, and the time of the transaction's start."""


@attrs.frozen
class Write:
    """A record in a partition, and the transaction that it belongs to."""

    transaction: TransactionKey
    producer: Identity


@attrs.define(eq=False)
class DataPartition:
    """A partition: its leader, its producers, its records and markers in order."""

    leader: int
    states: ProducerStates = attrs.field(factory=ProducerStates)
    entries: list[Write | TransactionMarker] = attrs.field(factory=list)

    def write(self, transaction: TransactionKey, producer: Identity) -> bool:
        """Append a record; False if the producer is fenced here."""
        data = batch(
            [New(b"k", b"v")],
            timestamp_ms=0,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transactional=True,
        )
        try:
            self.states.check_epoch(parse(data))
        except KafkaError:
            return False
        self._append(data, Write(transaction, producer))
        return True

    def end(self, marker: TransactionMarker) -> int:
        """Append a marker; return its error code."""
        try:
            self.states.check_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                is_strict=marker.transaction_version >= STRICT,
            )
        except KafkaError as error:
            return error.code
        data = end_txn_marker(
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=0,
        )
        self._append(data, marker)
        return NONE

    def _append(self, data: bytes, entry: Write | TransactionMarker) -> None:
        self.states.append(data, 0, parse(data), len(self.entries), 0)
        self.entries.append(entry)

    def marker_count(self, producer_id: int) -> int:
        return sum(
            isinstance(entry, TransactionMarker) and entry.producer_id == producer_id
            for entry in self.entries
        )

    def is_open(self, producer_id: int) -> bool:
        state = self.states.get(producer_id)
        return state is not None and state.open_from >= 0

    @property
    def is_stable(self) -> bool:
        """True if the last stable offset is at the end."""
        return self.states.first_open() is None


@attrs.define(eq=False)
class MarkerRequest:
    """A request on its way to a broker."""

    broker: int
    markers: Sequence[TransactionMarker]
    is_over: trio.Event = attrs.field(factory=trio.Event)
    """Set when its sender has an answer, or no longer waits for one."""
    answer: Sequence[Mapping[TopicPartition, int]] | None = None


@attrs.define(eq=False)
class Network:
    """The brokers as coordinators see them: requests wait here until they are delivered."""

    partitions: dict[TopicPartition, DataPartition]
    under_way: list[MarkerRequest] = attrs.field(factory=list)
    """The requests whose senders wait."""
    late: list[MarkerRequest] = attrs.field(factory=list)
    """The requests of senders that do not wait; they may arrive at any time, or again."""
    is_healed: bool = False
    """Whether each request is delivered at once."""
    faults: list[str] = attrs.field(factory=list)
    """The rules that a coordinator broke."""

    async def pass_on(self, request: MarkerRequest) -> Sequence[Mapping[TopicPartition, int]]:
        """Return the answer once the request is delivered; raises NetworkException."""
        self.under_way.append(request)
        try:
            if self.is_healed:
                self.deliver(request)
            await request.is_over.wait()
        finally:
            self.under_way.remove(request)
            self.late.append(request)
        if request.answer is None:
            raise NetworkException
        return request.answer

    def deliver(self, request: MarkerRequest, *, is_answered: bool = True) -> None:
        """Serve a request whose sender waits; without an answer the connection breaks."""
        answer = [
            {partition: self._end(request, partition, marker) for partition in marker.partitions}
            for marker in request.markers
        ]
        request.answer = answer if is_answered else None
        request.is_over.set()

    def deliver_late(self, request: MarkerRequest) -> None:
        """Serve a request that its sender has sent anew, or whose sender is no more.

        Up to `transaction.version` 1 a late marker ends the next transaction of its producer; this
        is why version 2 bumps the epoch at each end.  Such markers are lost here.
        """
        for marker in request.markers:
            for partition in marker.partitions:
                state = self.partitions[partition]
                if marker.transaction_version >= STRICT or not state.is_open(marker.producer_id):
                    self._end(request, partition, marker)

    def _end(
        self, request: MarkerRequest, partition: TopicPartition, marker: TransactionMarker
    ) -> int:
        state = self.partitions[partition]
        if state.leader != request.broker:
            return NotLeaderOrFollower.code
        return state.end(marker)

    def heal(self) -> None:
        """Give each partition a leader and deliver everything from now on."""
        self.is_healed = True
        for state in self.partitions.values():
            if state.leader == NO_LEADER:
                state.leader = 1
        for request in list(self.under_way):
            self.deliver(request)


@attrs.define(eq=False)
class Sender:
    """The brokers, as one coordinator sees them."""

    network: Network
    coordinator_epoch: int
    is_former: bool = False
    """Whether it knows of its successor, and so must not send markers."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        state = self.network.partitions.get(partition)
        return None if state is None else state.leader

    async def write_markers(
        self, broker: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        if self.is_former and markers:
            self.network.faults.append("markers of a former coordinator")
        if any(marker.coordinator_epoch != self.coordinator_epoch for marker in markers):
            self.network.faults.append("markers with another coordinator's epoch")
        return await self.network.pass_on(MarkerRequest(broker, markers))
