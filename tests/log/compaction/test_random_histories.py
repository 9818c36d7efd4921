"""Random logs, cleaned several times, against a plain model of the rules: invariants 65 and 87."""

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.log.compaction.job import ActiveProducers, CleaningJob
from kwire.log.config import LogConfig
from kwire.log.formats import names, txn_index
from kwire.log.scrub.job import SegmentJob
from kwire.log.scrub.segment_check import check_segment
from kwire.log.segments.segment import Segment
from kwire.records.header import BatchHeader, crc_ok
from tests.support.log.compaction import DIRECTORY, NOW_MS, MadeLog, ReadBatch, path, transaction

RETENTION_MS = 50
CONFIG = LogConfig(delete_retention_ms=RETENTION_MS, segment_bytes=700, index_interval_bytes=150)
NO_LIMIT = 1000
Key = bytes | None


@attrs.define(eq=False)
class Transaction:
    """A transaction of the model, with its outcome once it has one."""

    producer_id: int
    first_offset: int
    is_aborted: bool = False


@attrs.define(eq=False)
class Batch:
    """A batch of the model."""

    header: BatchHeader
    records: list[tuple[int, int, bytes | None, bytes | None]]
    """Offset, timestamp, key and value."""
    transaction: Transaction | None
    horizon_ms: int | None = None
    entry: txn_index.AbortedTxn | None = None
    """The index entry of an abort marker."""


@attrs.define(eq=False)
class History:
    """A log and its model."""

    log: MadeLog
    segments: list[list[Batch]] = attrs.Factory(lambda: [[]])
    open: dict[int, Transaction] = attrs.Factory(dict)
    sequences: dict[int, int] = attrs.Factory(dict)
    last_offsets: dict[int, int] = attrs.Factory(dict)
    clean_end: int = 0
    now_ms: int = NOW_MS

    # -- writing

    def put(
        self, pairs: list[tuple[Key, Key, int]], producer_id: int, in_transaction: bool, codec: int
    ) -> None:
        fields: dict[str, Any] = {}
        if producer_id:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(pairs)
            fields = transaction(producer_id, sequence)
            fields["transactional"] = in_transaction = in_transaction or producer_id in self.open
        else:
            in_transaction = False
        times = [NOW_MS - 1000 + time for _, _, time in pairs]
        header = self.log.put(
            *((k, v) for k, v, _ in pairs), timestamps=times, compression=codec, **fields
        )
        own = None
        if in_transaction:
            own = self.open.setdefault(producer_id, Transaction(producer_id, header.base_offset))
        if producer_id:
            self.last_offsets[producer_id] = header.last_offset
        records = [
            (header.base_offset + n, time, pair[0], pair[1])
            for n, (pair, time) in enumerate(zip(pairs, times, strict=True))
        ]
        self.segments[-1].append(Batch(header, records, own))

    def mark(self, producer_id: int, commit: bool) -> None:
        own = self.open.pop(producer_id, None) or Transaction(producer_id, self.log.end_offset)
        own.is_aborted = not commit
        before = len(self.log._aborted)
        header = self.log.mark(producer_id, commit=commit)
        batch = Batch(header, [], own)
        batch.records = [(header.base_offset, NOW_MS, b"", b"")]
        if len(self.log._aborted) > before:
            batch.entry = self.log._aborted[-1]
        self.segments[-1].append(batch)

    def roll(self) -> None:
        if self.segments[-1]:
            self.log.roll()
            self.segments.append([])

    # -- cleaning

    def clean(self, capacity: int, active: ActiveProducers) -> None:
        """Clean what is below the last stable offset, and do the same with the model."""
        log = self.log
        stable = min((t.first_offset for t in self.open.values()), default=log.end_offset)
        bases = [s.base_offset for s in log.sources]
        ends = [*bases, log._base][1:]
        count = sum(end <= stable for end in ends)
        if not count:
            return
        end_offset = ends[count - 1]
        later = [
            b.entry for segment in self.segments[count:] for b in segment if b.entry is not None
        ]
        job: CleaningJob = log.job(
            segments=tuple(log.sources[:count]),
            next_base=end_offset,
            first_dirty=self.clean_end,
            end_offset=end_offset,
            now_ms=self.now_ms,
            later_aborted=tuple(e for e in later if e.first_offset < end_offset),
            memory_bytes=(capacity + 1) * 24,
            load_factor=1.0,
            buffer_bytes=400,
            active_producers=active,
        )
        newest, latest = self._newest(ends[:count], capacity)
        cleaned_segments: list[list[Batch]] = []
        data_seen: set[Transaction] = set()
        cleaned = 0
        for base_offset, segment in zip(bases[:count], self.segments, strict=False):
            if base_offset > latest:
                break
            cleaned += 1
            remaining = []
            for batch in segment:
                after = self._keep(batch, newest, latest, data_seen, active, end_offset)
                if after is not None:
                    remaining.append(after)
            cleaned_segments.append(remaining)
        done = log.run(job)
        assert done.summary.clean_end == latest + 1
        merged, rest = [], cleaned_segments
        for group in done.groups:
            own, rest = rest[: len(group.sources)], rest[len(group.sources) :]
            merged.append([batch for segment in own for batch in segment])
        assert not rest
        self.segments[:cleaned] = merged
        self.clean_end = latest + 1

    def _newest(self, ends: list[int], capacity: int) -> tuple[dict[bytes, int], int]:
        """Return the newest offset of each key, and the last offset up to which they are known."""
        newest: dict[bytes, int] = {}
        latest = self.clean_end - 1
        for end, segment in zip(ends, self.segments, strict=False):
            if end <= self.clean_end:
                continue
            for batch in segment:
                header = batch.header
                aborted = batch.transaction is not None and batch.transaction.is_aborted
                if not header.is_control and not aborted:
                    for offset, _, key, _ in batch.records:
                        if key is not None and offset >= self.clean_end:
                            if len(newest) == capacity:
                                return newest, latest
                            newest[key] = latest = offset
                latest = max(latest, header.last_offset)
            latest = end - 1
        return newest, latest

    def _keep(
        self,
        batch: Batch,
        newest: dict[bytes, int],
        latest: int,
        data_seen: set[Transaction],
        active: ActiveProducers,
        end_offset: int,
    ) -> Batch | None:
        """Return what is remaining of a batch."""
        header, own, records = batch.header, batch.transaction, batch.records
        horizon_ms, entry = batch.horizon_ms, None
        has_passed = horizon_ms is not None and horizon_ms <= self.now_ms
        needs_horizon = False
        if header.is_control:
            assert own is not None
            if own not in data_seen:
                records = [] if has_passed else records
                needs_horizon = bool(records)
            elif batch.records:
                entry = batch.entry
        else:
            if own is not None:
                data_seen.add(own)
            if own is not None and own.is_aborted:
                records = []
            records = [
                (offset, time, key, value)
                for offset, time, key, value in records
                if offset > latest
                or (
                    key is not None
                    and offset >= newest.get(key, -1)
                    and (value is not None or not has_passed)
                )
            ]
            needs_horizon = any(value is None for _, _, _, value in records)
        if not records:
            is_last = header.producer_id >= 0 and (
                active.get(header.producer_id) == (header.producer_epoch, header.last_offset)
                or (
                    header.is_control
                    and active.get(header.producer_id) == (header.producer_epoch, None)
                )
            )
            if not is_last and header.next_offset != end_offset:
                return None
            return Batch(header._replace(attributes=header.attributes & ~7), [], own)
        if needs_horizon and horizon_ms is None:
            horizon_ms = self.now_ms + RETENTION_MS
        return Batch(header, records, own, horizon_ms, entry)

    # -- comparing

    def compare(self) -> None:
        """Compare the whole log with the model, and each index with its segment."""
        actual = self.log.batches()
        expected = [batch for segment in self.segments[:-1] for batch in segment]
        assert [b.header.base_offset for b in actual] == [b.header.base_offset for b in expected]
        for actual_batch, batch in zip(actual, expected, strict=True):
            self._compare(actual_batch, batch)
        assert self.log.aborted_entries() == [b.entry for b in expected if b.entry is not None]
        for source, segment in zip(self.log.sources, self.segments, strict=False):
            base_offset = source.base_offset
            assert source.size == len(self.log.disk.read(path(base_offset, names.LOG)))
            index, times = self.log.index(base_offset), self.log.times(base_offset)
            job = SegmentJob(
                directory=DIRECTORY,
                base_offset=base_offset,
                end_offset=1 << 40,
                size=source.size,
                epochs=((0, 0),),
                bytes_per_second=1.0,
                index_interval=CONFIG.index_interval_bytes,
            )
            report = check_segment(self.log.disk, job, lambda size: None)
            assert (report.damage, report.wrong) == ((), ())
            rebuilt = Segment(self.log.disk, DIRECTORY, base_offset, source.size, CONFIG)
            rebuilt.reindex()
            assert (self.log.index(base_offset), self.log.times(base_offset)) == (index, times)
            assert source.has_txn_index == any(b.entry is not None for b in segment)

    @staticmethod
    def _compare(actual_batch: ReadBatch, batch: Batch) -> None:
        header, before = actual_batch.header, batch.header
        assert crc_ok(actual_batch.data, 0, header)
        times = [time for _, time, _, _ in batch.records]
        if not header.is_control:
            records = [(r.offset, r.timestamp, r.key, r.value) for r in actual_batch.records]
            assert records == batch.records
        assert header.record_count == len(batch.records)
        assert header.delete_horizon_ms == batch.horizon_ms
        assert header.max_timestamp == max(times, default=header.max_timestamp)
        assert header.attributes & 0x3F == before.attributes & 0x3F
        fields = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id")
        for field in (*fields, "producer_epoch", "base_sequence"):
            assert getattr(header, field) == getattr(before, field)


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", None])
VALUES = st.sampled_from([b"", b"1", b"22" * 20, None])
PAIRS = st.lists(st.tuples(KEYS, VALUES, st.integers(0, 200)), min_size=1, max_size=4)
PUTS = st.tuples(st.just("put"), PAIRS, st.integers(0, 3), st.booleans(), st.integers(0, 4))
MARKS = st.tuples(st.just("mark"), st.integers(1, 3), st.booleans())
GAPS = st.tuples(st.just("gap"), st.integers(1, 3))
ROLLS = st.tuples(st.just("roll"))
ACTIVE = st.lists(st.sampled_from(["data", "marker", "expired"]), min_size=4, max_size=4)
CLEANS = st.tuples(
    st.just("clean"), st.sampled_from([1, 2, 4, NO_LIMIT, NO_LIMIT]), ACTIVE, st.integers(0, 60)
)
STEPS = st.lists(st.one_of(PUTS, PUTS, PUTS, MARKS, GAPS, ROLLS, CLEANS), min_size=5, max_size=60)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_random_history_is_cleaned_as_the_rules_say(steps) -> None:
    history = History(MadeLog(config=CONFIG))
    passes = [("clean", NO_LIMIT, [state] * 4, 60) for state in ("data", *["expired"] * 3)]
    for kind, *arguments in (*steps, ("roll",), *passes):
        if kind == "put":
            history.put(*arguments)
        elif kind == "mark":
            history.mark(*arguments)
        elif kind == "gap":
            history.log.skip(*arguments)
        elif kind == "roll":
            history.roll()
        else:
            capacity, states, elapsed_ms = arguments
            history.now_ms += elapsed_ms
            active: dict[int, tuple[int, int | None]] = {
                producer_id: (0, last if states[producer_id] == "data" else None)
                for producer_id, last in history.last_offsets.items()
                if states[producer_id] != "expired"
            }
            history.clean(capacity, active)
            history.compare()
