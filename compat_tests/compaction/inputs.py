"""Partitions' directories for the cleaner, drawn from a seed and written by kwire's own log.

One :class:`History` is the life of one partition: rounds of appends, each followed by a pass of a
cleaner (not run here). Everything (keys, timestamps, the clock, producers, gaps, rolls) comes from
a seed and a shape, which name a history. Producers go on across the rounds. A log is written
through :class:`PartitionLog`, which makes indexes, snapshots and leader epochs.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Final

import attrs

from compat_tests.compaction.shapes import SHAPES, WIDE_GAP, Shape
from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.coordinator.decision import Record
from kwire.group import records as group_records
from kwire.log.config import DAY_MS, LogConfig
from kwire.log.disk import RealDisk
from kwire.log.partition_log import PartitionLog, create
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.build import New, batch
from kwire.records.control import ControlType, end_txn_marker
from kwire.records.header import parse
from kwire.types import TopicPartition

START_MS: Final = 1_700_000_000_000
RETENTION_MS: Final = 60_000
"""``delete.retention.ms`` of most histories; the clock moves by about as much in a round."""
SEQUENCE_MASK: Final = 0x7FFFFFFF


@attrs.define
class Producer:
    """A producer as its client knows it."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False
    """Whether it has written to a transaction that is not ended."""


@attrs.frozen(kw_only=True)
class Pass:
    """The arguments of a cleaning pass beside the directory."""

    now_ms: int
    first_dirty: int
    high_watermark: int
    """The high watermark, so that nothing at or above it is cleaned; -1: the log's end."""
    memory_bytes: int
    load_factor: float = 0.9
    buffer_bytes: int = 4_096
    start_offset: int
    """The log start offset, as in the log directory's checkpoint."""
    config: LogConfig


@attrs.define
class History:
    """The life of one partition, round by round."""

    root: Path
    """The folder that holds the partition's directory."""
    shape: Shape
    source: random.Random
    now_ms: int = START_MS
    clean_end: int = 0
    start_offset: int = 0
    leader_epoch: int = 0
    producers: list[Producer] = attrs.Factory(list)
    next_producer_id: int = 1_000
    version: int = 0
    """Counts the values, so that no two are equal."""

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition("__consumer_offsets" if self.shape.is_offsets_topic else "t", 0)

    @property
    def directory(self) -> Path:
        return self.root / f"{self.partition.topic}-0"

    @property
    def config(self) -> LogConfig:
        shape = self.shape
        return LogConfig(
            segment_bytes=shape.segment_bytes,
            segment_index_bytes=shape.segment_index_bytes,
            index_interval_bytes=shape.index_interval_bytes,
            segment_ms=30 * DAY_MS,
            retention_ms=-1,
            delete_retention_ms=shape.delete_retention_ms,
            max_message_bytes=shape.max_message_bytes,
            cleanup_compact=True,
            cleanup_delete=shape.also_delete,
            log_append_time=shape.append_time,
            timestamp_after_max_ms=(1 << 62),
        )

    def may(self, probability: float) -> bool:
        return self.source.random() < probability

    # -- rounds

    def write_round(self) -> Pass:
        """Append a round's batches to the directory and return what the next pass gets."""
        if self.may(self.shape.idle_producers):
            self.now_ms += 2 * DAY_MS
        log = self.open()
        self.producers = [p for p in self.producers if log.producers.get(p.producer_id)]
        for _ in range(self.source.randint(*self.shape.batches)):
            self.append_something(log)
        if self.may(0.7):
            self.end_all(log)
        if self.may(0.8):
            log.roll(self.now_ms)
            if self.may(0.5):
                self.append_plain(log)
        if self.may(self.shape.start_moves):
            self.move_start(log)
        end_offset = log.end_offset
        log.close()
        self.open().close()  # What an open repairs in indexes is repaired before both cleaners.
        self.now_ms += self.source.choice(
            (1, 10, RETENTION_MS // 2, RETENTION_MS, 2 * RETENTION_MS)
        )
        return self.next_pass(end_offset)

    def next_pass(self, end_offset: int) -> Pass:
        first_dirty = max(self.clean_end, self.start_offset)
        if self.may(self.shape.restarts_dirty):
            first_dirty = self.source.randint(self.start_offset, first_dirty)
        high_watermark = -1
        if self.may(self.shape.bounds):
            high_watermark = self.source.randint(first_dirty, end_offset)
        return Pass(
            now_ms=self.now_ms,
            first_dirty=first_dirty,
            high_watermark=high_watermark,
            memory_bytes=24 * self.source.randint(*self.shape.slots),
            buffer_bytes=self.source.choice((512, 4_096, 1 << 19)),
            start_offset=self.start_offset,
            config=self.config,
        )

    def open(self) -> PartitionLog:
        """Open the log as after a clean stop, or create it."""
        disk = RealDisk(str(self.root))
        name = self.directory.name
        if not self.directory.exists():
            disk.make_directory(name)
            return create(disk, name, self.partition, now_ms=self.now_ms, config=self.config)
        offsets = StoredOffsets(
            clean=True, recovery_point=1 << 62, log_start=self.start_offset, high_watermark=0
        )
        return open_log(
            disk, name, self.partition, now_ms=self.now_ms, config=self.config, offsets=offsets
        )

    # -- events

    def append_something(self, log: PartitionLog) -> None:
        """Append one batch, and what surrounds it."""
        shape = self.shape
        self.now_ms += self.source.choice((0, 1, 5, 100, 3_000))
        if self.may(shape.rolls):
            log.roll(self.now_ms)
        if self.may(shape.leader_changes):
            self.leader_epoch += 1
        if self.may(shape.gaps):
            self.append_behind_gap(log)
        if self.may(shape.foreign_markers):
            self.append_foreign_marker(log)
        draw = self.source.random()
        if draw < shape.transactional:
            self.append_transactional(log)
        elif draw < shape.transactional + shape.idempotent:
            self.append_idempotent(log)
        else:
            self.append_plain(log)
        if self.may(shape.empty_transactions):
            self.append_lone_marker(log)

    def append(self, log: PartitionLog, data: bytes, *, from_client: bool = True) -> None:
        log.append_leader(
            data, parse(data), self.leader_epoch, self.now_ms, from_client=from_client
        )

    def append_plain(self, log: PartitionLog) -> None:
        self.append(log, self.build())

    def append_behind_gap(self, log: PartitionLog) -> None:
        """Append a batch as a follower does whose leader's log was compacted."""
        shape = self.shape
        gap = self.source.randint(1, shape.gap_max)
        if shape.gap_max == WIDE_GAP and self.may(0.3):
            gap = (1 << 31) - self.source.randint(-3, 10)
        data = self.build(base_offset=log.end_offset + gap, leader_epoch=self.leader_epoch)
        log.append_follower(data, self.now_ms)

    def append_foreign_marker(self, log: PartitionLog) -> None:
        """Append a control batch that ends no transaction, as a newer Kafka may write."""
        kind = self.source.choice((ControlType.LEADER_CHANGE, 77))
        data = batch(
            [New(struct.pack(">hh", 0, kind), b"value", (), self.now_ms)],
            timestamp_ms=self.now_ms,
            control=True,
            base_offset=log.end_offset,
            leader_epoch=self.leader_epoch,
        )
        log.append_follower(data, self.now_ms)

    def append_idempotent(self, log: PartitionLog) -> None:
        producer = self.choose_producer(is_open=False)
        self.append(log, self.build(producer))

    def append_transactional(self, log: PartitionLog) -> None:
        producer = self.choose_producer(is_open=self.may(0.6))
        if producer.is_open and self.may(0.45):
            self.end(log, producer)
        else:
            self.append(log, self.build(producer, transactional=True))
            producer.is_open = True

    def end(self, log: PartitionLog, producer: Producer) -> None:
        """Write the marker of a producer's transaction."""
        is_bumped = self.may(self.shape.epoch_bumps)
        if is_bumped:
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        marker = end_txn_marker(
            commit=self.may(0.6),
            coordinator_epoch=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=self.now_ms,
        )
        producer.is_open = False
        self.append(log, marker, from_client=False)

    def append_lone_marker(self, log: PartitionLog) -> None:
        """Write a marker of a transaction without data, of a producer that may be new."""
        if self.may(0.5):
            self.next_producer_id += 1
            self.producers.append(Producer(self.next_producer_id))
        producer = self.choose_producer(is_open=False)
        self.end(log, producer)
        state = log.producers.get(producer.producer_id)
        if state is None or not state.batches:
            producer.sequence = 0  # After a marker alone, a producer must begin with 0.

    def end_all(self, log: PartitionLog) -> None:
        for producer in self.producers:
            if producer.is_open:
                self.end(log, producer)

    def move_start(self, log: PartitionLog) -> None:
        """Delete records from the front, with whole segments if that is far enough."""
        self.start_offset = self.source.randint(log.log_start, log.end_offset)
        log.advance_log_start(self.start_offset)
        bases = [segment.base_offset for segment in log.segments][1:]
        count = sum(base <= self.start_offset for base in bases)
        if count and self.may(0.7):
            for path in log.drop_segments(count):
                log.disk.remove(path)

    def choose_producer(self, *, is_open: bool) -> Producer:
        candidates = [producer for producer in self.producers if producer.is_open == is_open]
        if not candidates or (len(self.producers) < 6 and self.may(0.1)):
            self.next_producer_id += 1
            sequence = self.source.choice((0, 0, SEQUENCE_MASK - 5))
            producer = Producer(self.next_producer_id, sequence=sequence)
            self.producers.append(producer)
            return producer
        return self.source.choice(candidates)

    # -- bytes

    def build(
        self,
        producer: Producer | None = None,
        *,
        transactional: bool = False,
        base_offset: int = 0,
        leader_epoch: int = 0,
    ) -> bytes:
        """Build a batch of random records, in the name of ``producer`` if there is one."""
        source = self.source
        is_untimed = self.may(self.shape.untimed)
        values = [
            self.record(-1 if is_untimed else self.now_ms - source.choice((0, 0, 1, 500, 90_000)))
            for _ in range(source.randint(1, self.shape.records_max))
        ]
        producer_id, epoch, sequence = -1, -1, -1
        if producer is not None:
            producer_id, epoch, sequence = producer.producer_id, producer.epoch, producer.sequence
            producer.sequence = (sequence + len(values)) & SEQUENCE_MASK
        return batch(
            values,
            timestamp_ms=values[0].timestamp or 0,
            compression=source.choice(self.shape.codecs),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )

    def record(self, timestamp: int) -> New:
        source = self.source
        self.version += 1
        number = min(source.randrange(self.shape.key_count), source.randrange(self.shape.key_count))
        is_tombstone = self.may(self.shape.tombstones)
        if self.shape.is_offsets_topic:
            return self.commit(number, is_tombstone)._replace(timestamp=timestamp)
        key: bytes | None = b"key-%d" % number if number else b""
        if self.may(self.shape.keyless):
            key = None
        value = None if is_tombstone else self.value()
        headers = [(b"h", None), (b"", b"x" * number)] if self.may(0.1) else []
        return New(key, value, headers, timestamp)

    def value(self) -> bytes:
        if self.may(0.05):
            return b""
        return b"v%d" % self.version + bytes(self.source.randrange(self.shape.value_max))

    def commit(self, number: int, is_tombstone: bool) -> New:
        """Return the record of a group's committed offset, or of its removal."""
        group, topic = f"group-{number % 3}", f"topic-{number}"
        if is_tombstone:
            return New(*group_records.store(group_records.offset_tombstone(group, topic, 0)))
        value = OffsetCommitValue(
            offset=self.version, metadata="m" * number, commit_timestamp=self.now_ms
        )
        record = Record(OffsetCommitKey(group=group, topic=topic, partition=0), value)
        return New(*group_records.store(record))


def make_history(name: str, seed: int, root: Path) -> History:
    """Return the history of a shape and a seed; its directory will be below ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    return History(root, SHAPES[name], random.Random(f"{name}, {seed}"))
