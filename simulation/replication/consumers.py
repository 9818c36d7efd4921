"""Consumers of the simulated cluster, and clients that commit offsets of groups.

Each consumer reads one partition from its start with one isolation level, without a group.
Invariants 7, 8, 13, 14, 15, 19 and 27 are checked with each response, and 11 with each fetched
offset.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import attrs
import trio

from kwire import errors
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.records.control import ControlType, parse_key
from kwire.records.header import BatchHeader, headers
from kwire.records.iterate import records
from simulation.replication.checks import TOPIC
from simulation.replication.clients import BEFORE_TOPIC_IDS, SimClient
from simulation.replication.history import SimTransaction, demand

_BEFORE_GROUPS: Final = 7
"""The last version of OffsetFetch for one group."""
_OUT_OF_RANGE: Final = errors.OffsetOutOfRange.code
_LATEST: Final = -1

Answer = FetchResponse.FetchableTopicResponse.PartitionData


class CommittedOffset(Protocol):
    """The committed offset of a partition in a response."""

    partition_index: int
    committed_offset: int
    error_code: int


def take_committed(
    results: Iterable[CommittedOffset],
    least: Mapping[int, int],
    offsets: dict[int, int],
    group: str,
) -> bool:
    """Put committed offsets into ``offsets``; return False at the first error.

    ``least``: by partition, the offset of the last commit that was acknowledged before the request.
    """
    for result in results:
        if result.error_code != errors.NONE:
            return False
        partition, offset = result.partition_index, max(0, result.committed_offset)
        demand(
            offset >= least[partition],
            f"group {group}: {offset} is committed of {partition}, {least[partition]} was",
        )
        offsets[partition] = offset
    return True


@attrs.define(eq=False)
class Consumer(SimClient):
    """A consumer of one partition."""

    index: int = 0
    is_committed: bool = False
    """True if the consumer reads with read_committed."""
    position: int = 0
    values: dict[int, bytes] = attrs.field(factory=dict)
    """The values of the records read so far, by offset."""
    _open: dict[int, SimTransaction] = attrs.field(factory=dict)
    """By producer id, the transaction that no marker has ended so far."""
    _seen_end: int = 0
    """The highest end of readable offsets in any response so far."""

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.1, 0.8))
            if self.random.random() < 0.1:
                await self.list_end()
            else:
                await self.poll()

    async def poll(self) -> bool:
        """Fetch once; return whether a leader answered."""
        topic = FetchRequest.FetchTopic
        node = self.leader_of(TOPIC, self.index)
        partition = topic.FetchPartition(
            partition=self.index,
            current_leader_epoch=self.epoch_of(TOPIC, self.index),
            fetch_offset=self.position,
            partition_max_bytes=600,
        )
        request = FetchRequest(
            max_wait_ms=300,
            min_bytes=1,
            isolation_level=int(self.is_committed),
            topics=[topic(topic=TOPIC, partitions=[partition])],
        )
        response = await self.call(node, request, version=BEFORE_TOPIC_IDS)
        if response is None or response.error_code or not response.responses:
            return False
        (answer,) = response.responses[0].partitions
        if answer.error_code == _OUT_OF_RANGE:
            self._reset()
        elif answer.error_code == errors.NONE:
            self.demand_unfenced()
            self._take(answer)
            return True
        return False

    def _reset(self) -> None:
        """Skip deleted records; nothing else may put a position out of range."""
        end = self.world.history.delete_end[self.index]
        demand(
            self.position < end,
            f"consumer {self.id} of {self.index}: {self.position} is out of range, deleted are "
            f"records below {end}",
        )
        self.position = end
        self._open.clear()

    def _take(self, answer: Answer) -> None:
        end = answer.last_stable_offset if self.is_committed else answer.high_watermark
        self._see_end(end)
        where = f"consumer {self.id} of {self.index} at {self.position}"
        stable, committed = answer.last_stable_offset, answer.high_watermark
        demand(stable <= committed, f"{where}: last stable offset {stable} above {committed}")
        data = bytes(answer.records or b"")
        aborted = deque(sorted((a.first_offset, a.producer_id) for a in _list_aborted(answer)))
        open_aborted: set[int] = set()
        for place, header in headers(data):
            while aborted and aborted[0][0] <= header.last_offset:
                open_aborted.add(aborted.popleft()[1])
            if header.next_offset <= self.position:
                if _is_abort(data, place, header):
                    open_aborted.discard(header.producer_id)
                continue
            demand(header.next_offset <= end, f"{where}: {header} is at or above {end}")
            if header.is_transactional:
                self._check_marked(data, place, header)
            if header.is_control:
                if _is_abort(data, place, header):
                    open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                for record in records(data, place, header):
                    if record.offset >= self.position:
                        self._read(record.offset, bytes(record.value or b""))
            self.position = header.next_offset

    def _check_marked(self, data: bytes, place: int, header: BatchHeader) -> None:
        """Check that a marker ended a producer's transaction before its next one starts."""
        if header.is_control:
            self._open.pop(header.producer_id, None)
            return
        for record in records(data, place, header):
            transaction = self.world.history.transactions[bytes(record.value or b"")]
            former = self._open.setdefault(header.producer_id, transaction)
            demand(
                former is transaction,
                f"partition {self.index} offset {record.offset}: no marker between "
                f"{former.name} and {transaction.name}",
            )

    def _read(self, offset: int, value: bytes) -> None:
        history = self.world.history
        history.on_read(self.index, offset, value, is_committed=self.is_committed)
        self.values[offset] = value

    def _see_end(self, end: int) -> None:
        """Remember the end of readable offsets in a response; later responses must not be below it.

        A last stable offset at or below a requested deletion is ignored. It may be the log start,
        which passes open transactions as in Kafka, and move back on a leader without the deletion.
        """
        if self.is_committed and end <= self.world.history.delete_end[self.index]:
            return
        self._seen_end = max(self._seen_end, end)
        if not self.is_committed:
            self.world.history.on_latest(self.index, end)

    async def list_end(self) -> None:
        """Request the latest offset, which must not be below any committed end known to clients."""
        history = self.world.history
        known_end = self._seen_end if self.is_committed else history.latest[self.index]
        topic = ListOffsetsRequest.ListOffsetsTopic
        node = self.leader_of(TOPIC, self.index)
        partition = topic.ListOffsetsPartition(
            partition_index=self.index,
            current_leader_epoch=self.epoch_of(TOPIC, self.index),
            timestamp=_LATEST,
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(self.is_committed),
            topics=[topic(name=TOPIC, partitions=[partition])],
        )
        response = await self.call(node, request)
        if response is None:
            return
        (answer,) = response.topics[0].partitions
        if answer.error_code == errors.NONE:
            self.demand_unfenced()
            demand(
                answer.offset >= known_end,
                f"partition {self.index}: latest is {answer.offset}, {known_end} was known before",
            )
            self._see_end(answer.offset)


def _list_aborted(answer: Answer) -> list[Answer.AbortedTransaction]:
    return answer.aborted_transactions or []


def _is_abort(data: bytes, place: int, header: BatchHeader) -> bool:
    """Return whether a batch is an abort marker."""
    if not header.is_control:
        return False
    control = parse_key(next(iter(records(data, place, header))).key)
    return control is not None and control.type == ControlType.ABORT


@attrs.define(eq=False)
class Committer(SimClient):
    """The only client that commits offsets of one group; each offset is larger than the last."""

    group: str = "g"
    _offset: int = 0
    _acknowledged: int = -1

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.1, 0.8))
            if self.random.random() < 0.6:
                await self._commit()
            else:
                await self.check()

    async def _commit(self) -> None:
        self._offset += 1
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=self._offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            member_id="",
            topics=[topic(name=TOPIC, partitions=[partition])],
        )
        answer, _ = await self.call_coordinator(self.group, request, version=9)
        if answer is not None and answer.topics[0].partitions[0].error_code == errors.NONE:
            self._acknowledged = self._offset

    async def check(self) -> bool:
        """Fetch the committed offset and compare; return whether a coordinator answered."""
        least = self._acknowledged
        offset = await fetch_offset(self, self.group)
        if offset is None:
            return False
        demand(
            least <= offset <= self._offset,
            f"group {self.group}: committed is {offset}, acknowledged was {least}, the last "
            f"request had {self._offset}",
        )
        return True


async def fetch_offset(client: SimClient, group: str, *, is_stable: bool = False) -> int | None:
    """Return a group's committed offset of partition 0, -1 without one, or None on an error.

    A former coordinator of the group may not know the newest one, which is an error.
    """
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=is_stable)
    answer, is_current = await client.call_coordinator(group, request, version=_BEFORE_GROUPS)
    if answer is None or not is_current or answer.error_code != errors.NONE:
        return None
    (result,) = answer.topics[0].partitions
    return int(result.committed_offset) if result.error_code == errors.NONE else None
