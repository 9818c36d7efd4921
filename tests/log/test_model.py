"""A log against a list, through crashes: no durable record is lost.

Crashes are ``kill -9`` in the middle of any write (the page cache stays), and the loss of power
(everything not synced may be lost, torn or reordered).
"""

from contextlib import suppress
from random import Random

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.log.segments import growing_index
from kwire.records.header import headers, parse
from kwire.types import TopicPartition
from simulation.disk import PLENTY, Killed, SimDisk
from tests.support.log.batches import TIME_MS, append, content, encode

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, segment_index_bytes=200)
COMPACTED = attrs.evolve(CONFIG, cleanup_compact=True)
PARTITION = TopicPartition("t", 0)


class LogModel(RuleBasedStateMachine):
    """A log, and its batches as (base offset, values, leader epoch)."""

    config = CONFIG

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.disk.make_directory("t-0")
        self.start = 0
        self.log: PartitionLog = self.reopen(clean=False)
        self.batches: list[tuple[int, list[bytes], int]] = []
        self.end = 0
        self.durable = 0
        self.epoch = 0
        self.count = 0
        self.cut_unsynced = False
        """Whether a truncation is not synced: its records may reappear after a power loss."""

    def reopen(self, *, clean: bool, recovery_point: int = 0) -> PartitionLog:
        offsets = StoredOffsets(clean=clean, recovery_point=recovery_point, log_start=self.start)
        return open_log(
            self.disk, "t-0", PARTITION, now_ms=TIME_MS, config=self.config, offsets=offsets
        )

    def values(self, count: int) -> list[bytes]:
        self.count += 1
        return [b"%d-%d" % (self.count, n) for n in range(count)]

    def settle_end(self) -> None:
        """Adopt the log's end: a restart after a truncation into a gap finds the last batch's."""
        last = max((base + len(values) for base, values, _ in self.batches), default=self.start)
        end = self.log.end_offset
        assert min(last, self.end) <= end <= self.end or end == self.start
        self.end = end
        self.start, self.durable = min(self.start, end), min(self.durable, end)

    @rule(count=st.integers(1, 4), size=st.sampled_from([0, 0, 50, 700]))
    def append_as_leader(self, count: int, size: int) -> None:
        values = [v + b"." * size for v in self.values(count)]
        done = append(self.log, values, epoch=self.epoch)
        assert done.base_offset == self.end
        self.batches.append((self.end, values, self.epoch))
        self.end += count
        self.note_start()

    @rule(counts=st.lists(st.integers(1, 3), max_size=4))
    def append_as_follower(self, counts: list[int]) -> None:
        self.follow(0, counts)

    def follow(self, gap: int, counts: list[int]) -> None:
        data = b""
        for count in counts:
            values, base = self.values(count), self.end + gap
            data += encode(values, base_offset=base, leader_epoch=self.epoch)
            self.batches.append((base, values, self.epoch))
            self.end, gap = base + count, 0
        self.log.append_follower(data)
        self.note_start()

    def note_start(self) -> None:
        """Adopt the first segment's base offset if the log has no record below it."""
        self.start = max(self.start, self.log.segments[0].base_offset)

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(TIME_MS)
        self.note_start()

    @rule()
    def flush(self) -> None:
        self.log.flush_state.flush()
        self.durable, self.cut_unsynced = self.end, False

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        if not self.batches:
            return
        place = data.draw(st.integers(0, len(self.batches) - 1))
        self.log.truncate_to(self.batches[place][0])
        self.end, self.cut_unsynced = self.batches[place][0], True
        self.batches = self.batches[:place]
        self.start, self.durable = min(self.start, self.end), min(self.durable, self.end)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.log.advance_log_start(self.start)

    @precondition(lambda self: len(self.log.segments) > 1)
    @rule(data=st.data())
    def drop_segments(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.log.segments) - 1))
        for path in self.log.drop_segments(count):
            if data.draw(st.booleans()):
                self.disk.remove(path)
        self.start = max(self.start, self.log.segments[0].base_offset)

    @rule()
    def stop_and_start(self) -> None:
        self.log.flush_state.flush()
        self.log.close()
        self.durable = self.end

        self.log = self.reopen(clean=True, recovery_point=self.end)
        self.settle_end()

    @rule()
    def kill(self) -> None:
        """Kill the process between two calls: all written data stays."""
        self.disk = self.disk.after_kill()
        self.log = self.reopen(clean=False, recovery_point=self.log.flush_state.recovery_point)
        self.settle_end()

    @rule(count=st.integers(1, 4), data=st.data())
    def kill_in_an_append(self, count: int, data: st.DataObject) -> None:
        """Invariant 77: the batch is stored as a whole or not at all."""
        values = self.values(count)
        size = len(encode(values))
        self.disk.cut = data.draw(st.integers(0, size + 40))
        point = self.log.flush_state.recovery_point
        with suppress(Killed):
            append(self.log, values, epoch=self.epoch)
        self.disk = self.disk.after_kill()
        self.log = self.reopen(clean=False, recovery_point=point)
        if any(value == values[0] for _, value in content(self.log)):
            self.batches.append((self.end, values, self.epoch))
            self.end += count
        self.settle_end()

    @precondition(lambda self: not self.cut_unsynced)
    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        """Check that all synced batches survive, and of the rest only a prefix."""
        point = self.log.flush_state.recovery_point
        self.disk = self.disk.power_loss(Random(seed))
        self.disk.make_directory("t-0")  # It is lost if no flush has synced it.
        self.log = self.reopen(clean=False, recovery_point=point)
        end = self.log.end_offset
        assert self.durable <= end <= self.end
        self.batches = [b for b in self.batches if b[0] + len(b[1]) <= end]
        self.end = end
        self.start = min(self.start, end)

    @rule(count=st.integers(1, 3), restart=st.booleans(), roll=st.booleans())
    def run_out_of_space(self, count: int, restart: bool, roll: bool) -> None:
        """Invariant 88: no acknowledgement, reads go on, a start needs no space."""
        point = self.log.flush_state.recovery_point
        self.disk.capacity = sum(i.room for i in self.disk.files.values()) + 30
        if roll:
            with suppress(KafkaStorageError):
                self.log.roll(TIME_MS)
        for _ in range(count):
            with pytest.raises(KafkaStorageError):
                append(self.log, self.values(2), epoch=self.epoch)
        self.every_record_can_be_read()
        if restart:
            self.disk = self.disk.after_kill()
            self.log = self.reopen(clean=False, recovery_point=point)
            self.every_record_can_be_read()
            self.settle_end()
        self.disk.capacity = PLENTY

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        assert self.log.end_offset == self.log.writer.written_offset == self.end
        assert self.log.log_start == self.start
        assert self.log.flush_state.recovery_point <= self.end

    @invariant()
    def every_record_can_be_read(self) -> None:
        expected = [
            (base + n, value)
            for base, values, _ in self.batches
            for n, value in enumerate(values)
            if base + n >= self.start
        ]
        assert content(self.log) == expected

    @invariant()
    def every_offset_finds_its_batch(self) -> None:
        """Invariant 16."""
        for base, values, _ in self.batches[-6:]:
            for offset in (base, base + len(values) - 1):
                if offset >= self.start:
                    with self.log.read(offset, 1, end_offset=self.end) as region:
                        header = parse(region.read())
                    assert header.base_offset <= offset < header.next_offset

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        """Invariant 85."""
        for base, _, epoch in self.batches:
            if base >= self.start:
                assert self.log.epochs.at(base) == epoch

    @invariant()
    def segments_are_in_order_and_whole(self) -> None:
        ends = [s.base_offset for s in self.log.segments]
        assert ends == sorted(set(ends))
        for segment in self.log.segments:
            data = segment.file.read(0, segment.size)
            assert sum(h.size for _, h in headers(data)) == len(data) == segment.size


class GapsModel(LogModel):
    """The log of a follower of a compacted log: batches and long ranges of offsets are missing."""

    config = COMPACTED

    @rule(gap=st.sampled_from([3, 1 << 31]), counts=st.lists(st.integers(1, 3), max_size=4))
    def append_after_a_gap(self, gap: int, counts: list[int]) -> None:
        self.follow(gap, counts)

    def lose_power(self, seed: int) -> None:
        """Do nothing: a lost batch looks like a gap."""


class GrowingIndexModel(LogModel):
    """A log whose index entries are moved to files all the time, and searched there."""

    config = attrs.evolve(CONFIG, index_interval_bytes=0)

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(growing_index, "PIECE_ENTRIES", 2)
        super().__init__()

    def teardown(self) -> None:
        self.patch.undo()

    @invariant()
    def forget_recent_positions(self) -> None:
        """Have all offsets looked up in the index."""
        for segment in self.log.segments:
            del segment._recent_next[:], segment._recent_position[:]

    @rule(number=st.integers(0, 5))
    def damage_index(self, number: int) -> None:
        """Invariant 79: move a position in the file of the active segment's index."""
        index = self.log.segments.active.indexes.offsets
        if index is None or number * 8 >= index.file_size:
            return
        for suffix in (names.GROWING, "") if index.is_new else ("",):
            path = self.log.segments.active.files.path(names.INDEX + suffix)
            if path in self.disk.files:
                self.disk.inode(path).data[number * 8 + 7] ^= 2
                return


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestGapsModel = GapsModel.TestCase
TestGapsModel.settings = TestLogModel.settings
TestGrowingIndexModel = GrowingIndexModel.TestCase
TestGrowingIndexModel.settings = TestLogModel.settings
