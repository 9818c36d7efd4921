"""Growth of a replayed node's log that none of its own frames shows.

A leader's controller appends, which is seen when a follower gets it; idle exchanges, of which
the proxy kept few, carry no-ops.
"""

from typing import TYPE_CHECKING, Final

import attrs

from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.metadata_records import NoOpRecord
from kwire.raftmeta.raft.events import Answered, Append, Received
from kwire.raftmeta.raft.roles import Follower, Leader
from kwire.raftmeta.storage.records import pack
from kwire.records.header import headers, parse
from kwire.records.iterate import records
from tests.support.raftmeta.conversations import Frame, Gap, batches, cluster_of, gaps
from tests.support.raftmeta.deviations import idle_log

if TYPE_CHECKING:
    from tests.support.raftmeta.replay import Replay

LINGER_MS: Final = 25


@attrs.define(eq=False)
class Growth:
    """The growth of one node's log."""

    replay: "Replay"
    library: dict[tuple[int, int], bytes] = attrs.field(init=False)
    """Every batch that was seen on the cluster."""
    stamps: list[tuple[tuple[int, int], int]] = attrs.field(init=False)
    """Timestamps of control batches, which a leader writes by itself."""
    wall_ms: int = 0
    _began_ms: float = 0.0
    """The wall clock when the scenario began, as far as the stamps of batches show."""

    def __attrs_post_init__(self) -> None:
        recorded = self.replay.recording
        self.library = batches(cluster_of(recorded.name.split("-")[0]))
        self._began_ms = max(
            (
                header.max_timestamp - frame.t
                for frame in recorded.frames
                if frame.is_raft and frame.api == "Fetch" and not frame.is_request
                for _, header in headers(frame.records)
            ),
            default=0.0,
        )
        self.stamps = sorted(
            (key, parse(data).max_timestamp)
            for key, data in self.library.items()
            if parse(data).is_control
        )
        self.wall_ms = self.stamps[0][1] if self.stamps else 0

    def stamp(self) -> int:
        """The wall clock: that of the control batch which the recording has next."""
        state = self.replay.raft.state
        for (epoch, offset), stamp in self.stamps:
            if offset >= state.log.end_offset and epoch >= state.log.last_epoch:
                return stamp
        return self.wall_ms

    def append_up_to(self, frame: Frame) -> None:
        """The leader's controller appended what this answer carries."""
        if frame.api == "Fetch" and isinstance(self.replay.raft.state.role, Leader):
            for _, header in headers(frame.records):
                self.append(header.next_offset)

    def append(self, end_offset: int) -> None:
        """Make the leader's log at least that long, with what is known of it."""
        state = self.replay.raft.state
        while isinstance(state.role, Leader) and state.log.end_offset < end_offset:
            recorded = self.library.get((state.epoch, state.log.end_offset))
            values: tuple[bytes, ...] = (pack(NoOpRecord()),)
            if recorded is not None:
                header = parse(recorded)
                if header.is_control:  # ours to write, and it was not
                    return
                stored = records(recorded, 0, header)
                values = tuple(bytes(r.value) for r in stored if r.value is not None)
                self._stamp_of(header.max_timestamp)
            self.replay.feed(Append("append", state.epoch, values))

    def _stamp_of(self, stamp: int) -> None:
        self.stamps.insert(0, ((1 << 30, 1 << 60), stamp))

    # Idle exchanges that were not recorded --------------------------------------------------
    def fill(self, gap: Gap, t: float, share: float) -> None:
        self.replay.advance(t)
        if not self.replay.running:
            return
        if gap.request.source == self.replay.name:
            self._fill_follower(gap, share)
        else:
            self._fill_leader(gap, t, share)

    def fill_now(self) -> None:
        """Voters whose idle exchanges were not recorded have what the leader has."""
        for gap in gaps(self.replay.recording, self.replay.name):
            is_ours = gap.request.target == self.replay.name
            if is_ours and gap.start < self.replay.now < gap.request.t - 50:
                self._fill_leader(gap, self.replay.now, 0.0)

    def _fill_leader(self, gap: Gap, t: float, share: float) -> None:
        state = self.replay.raft.state
        to = gap.offset + int((gap.request.part["fetchOffset"] - gap.offset) * share)
        while state.log.end_offset < to and not self._is_later(state.log.end_offset, t):
            before = state.log.end_offset
            self.append(before + 1)
            if state.log.end_offset == before:
                break
        self.append_what_is_due()
        request = gap.request.message()
        partition = request.topics[0].partitions[0]
        end = state.log.end_offset
        partition.fetch_offset = min(to if share else gap.request.part["fetchOffset"], end)
        partition.current_leader_epoch = state.epoch
        request.max_wait_ms = 0
        self.replay.feed(Received(f"idle {t} {share}", request))

    def _is_later(self, offset: int, t: float) -> bool:
        """Return whether the batch at an offset was written after ``t``, by its own stamp."""
        recorded = self.library.get((self.replay.raft.state.epoch, offset))
        return recorded is not None and self._written_at(recorded) > t

    def _written_at(self, data: bytes) -> float:
        """Return the time at which a batch was appended: its records had lingered, as in Kafka."""
        return parse(data).max_timestamp - self._began_ms + LINGER_MS

    def append_what_is_due(self) -> None:
        """The leader's log as long as the stamps of its batches say."""
        state = self.replay.raft.state
        while isinstance(state.role, Leader):
            recorded = self.library.get((state.epoch, state.log.end_offset))
            if recorded is None or self._written_at(recorded) > self.replay.now:
                return
            before = state.log.end_offset
            self.append(before + 1)
            if state.log.end_offset == before:
                return

    def _fill_follower(self, gap: Gap, share: float) -> None:
        state = self.replay.raft.state
        requests = self.replay.own_requests
        own = next((r for r in requests if r.api == "Fetch" and self.replay.is_open(r)), None)
        role = state.role
        if own is None or not isinstance(role, Follower) or own.target != gap.request.target:
            return
        part = gap.request.part
        end = state.log.end_offset
        to = end + int((part["fetchOffset"] - end) * share)
        topic = FetchResponse.FetchableTopicResponse
        answer = FetchResponse(
            responses=[
                topic(
                    topic_id=bytes(15) + b"\1",
                    partitions=[
                        topic.PartitionData(
                            partition_index=0,
                            high_watermark=min(part["highWatermark"], to),
                            current_leader=topic.PartitionData.LeaderIdAndEpoch(
                                leader_id=role.leader.id, leader_epoch=state.epoch
                            ),
                            records=self._idle_records(end, to),
                        )
                    ],
                )
            ]
        )
        self.replay.own_requests.remove(own)
        self.replay.feed(Answered(own.call_id, answer))

    def _idle_records(self, start: int, end: int) -> bytes:
        return idle_log(self.library, self.replay.raft.state.epoch, start, end)
