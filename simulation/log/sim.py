"""A simulation of a broker's logs: the event loop and its threads, with a power loss at any moment.

One seed determines appends, rolls, truncations, retention, deletions, flushes, checkpoints, slow
disks and stops, and how the threads' disk calls interleave with them. Power may be lost at any
moment; then the logs are opened on a copy of the surviving disk and checked:

- records covered by an acknowledged flush or the recovery point exist, with their values;
- every record was once written at its offset;
- a log starts at or after the last acknowledged DeleteRecords offset, and not after the last
  requested one;
- epochs, producers, aborted transactions and times match the remaining batches;
- no thread works for a deleted log, and a deleted log is never reused.

In some runs the real compaction passes run too. Then a record may also be missing if the log has a
later record with its key, or had a committed one before a truncation. Truncations are frequent
while a pass replaces segments. A reopened log has no duplicate batch and no file of a pass.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random

import attrs
import trio
import trio.testing

from kwire.errors import KafkaError, KafkaStorageError
from kwire.log import timestamp_search
from kwire.log.aborted_transactions import find_aborted
from kwire.log.compaction.clean import clean
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import Disk
from kwire.log.flush import Flush
from kwire.log.formats import names
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.producers import ProducerStates
from kwire.log.threads import DiskThreads
from kwire.log.write_queue import Job
from kwire.records.build import New, batch
from kwire.records.control import end_txn_marker
from kwire.records.header import CONTROL, BatchHeader, headers, parse
from kwire.records.iterate import records
from kwire.types import ZERO_UUID
from simulation.disk import SimDisk
from simulation.log.thread_workers import ThreadRunner
from simulation.log.threads import SteppedDisk, SteppedThreads, Worker
from simulation.scheduler import deterministic_trio

TIME_MS = 1_700_000_000_000
PARTITIONS = 2
TRACE_LINES = 40
CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    retention_ms=-1,
    flush_ms=3_000,
    file_delete_delay_ms=2_000,
    producer_id_expiration_ms=1 << 50,
)
COMPACTED = attrs.evolve(
    CONFIG, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.01
)
KEYS = 4
CLEANER = CleanerSettings(backoff_ms=400, map_bytes=24_000, buffer_bytes=2_000)


class LogSimFailure(AssertionError):
    """A failed run: its seed and the broken invariant."""


@attrs.define(eq=False)
class Model:
    """The records of one partition, and the offsets it has acknowledged."""

    log: PartitionLog
    topic_id: bytes
    written: dict[int, set[bytes]] = attrs.Factory(dict)
    """All values that were ever written at each offset."""
    current: dict[int, bytes] = attrs.Factory(dict)
    bases: list[int] = attrs.Factory(list)
    """The base offsets of the batches."""
    flushed: int = 0
    """The end offset of the records acknowledged as durable; exclusive."""
    start: int = 0
    """The highest start offset that DeleteRecords has requested."""
    role: int = 0
    """Increased when the broker's role changes, which cancels a pending truncation."""
    kept_start: int = 0
    """The highest start offset that DeleteRecords has acknowledged."""
    superseded: set[int] = attrs.Factory(set)
    """Offsets that compaction may have removed because of later records that were then cut."""
    former_start: int = 0
    """The highest start offset that a power loss may restore which undoes a cut: the start before
    the cut, of the log or requested, or the base of the last segment, if it alone comes back."""
    cuts: list[int] = attrs.Factory(list)
    """The end offset after each cut, in order."""

    @property
    def durable_end_offset(self) -> int:
        """The end offset of the records that must survive a power loss; exclusive."""
        return max(self.flushed, self.log.flush_state.recovery_point)

    def wrote(self, base_offset: int, values: list[bytes]) -> None:
        self.bases.append(base_offset)
        for offset, value in enumerate(values, base_offset):
            self.current[offset] = value
            self.written.setdefault(offset, set()).add(value)

    def note_superseded(self) -> None:
        """Record which records compaction may have removed, before a cut hides the reason."""
        last: dict[bytes, int] = {}
        for offset in sorted(self.current, reverse=True):
            key = key_of(self.current[offset])
            if offset < self.log.high_watermark and last.setdefault(key, offset) > offset:
                self.superseded.add(offset)

    def cut(self, offset: int) -> None:
        self.former_start = max(self.former_start, self.start)
        self.superseded = {at for at in self.superseded if at < offset}
        self.current = {at: value for at, value in self.current.items() if at < offset}
        self.bases = [base for base in self.bases if base < offset]
        self.flushed = min(self.flushed, offset)
        self.start = min(self.start, offset)
        self.kept_start = min(self.kept_start, offset)
        self.cuts.append(offset)

    def acknowledge_deletion(self, offset: int, earlier_cuts: int) -> None:
        """Record an acknowledged DeleteRecords whose request came after ``earlier_cuts`` cuts.

        Later cuts limit the deletion: it does not cover records appended after a cut, even if
        another request moves the start past ``offset``.
        """
        self.kept_start = max(self.kept_start, min([offset, *self.cuts[earlier_cuts:]]))


@attrs.define(eq=False)
class SimClock:
    """The monotonic clock of a run, and a wall clock that advances with it."""

    clock: trio.testing.MockClock

    def now(self) -> float:
        return self.clock.current_time()

    def now_ms(self) -> int:
        return TIME_MS + int(self.now() * 1000)


@attrs.define(eq=False)
class LogSim:
    """One run of the simulation."""

    seed: int
    clock: trio.testing.MockClock
    config: LogConfig = CONFIG
    random: Random = attrs.field(init=False)
    disk: SteppedDisk = attrs.field(factory=SteppedDisk)
    threads: SteppedThreads = attrs.field(init=False)
    logs: LogManager = attrs.field(init=False)
    models: dict[int, Model] = attrs.field(factory=dict)
    trace: list[str] = attrs.field(factory=list)
    busy: set[int] = attrs.field(factory=set)
    """Partitions that are being truncated or deleted."""
    deleted: list[PartitionLog] = attrs.field(factory=list)
    """Logs that were deleted without waiting for their threads."""
    ids: int = 0
    epoch: int = 1
    count: int = 0

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.seed)
        self.threads = SteppedThreads(self.random, partial(check_job, self))
        self.logs = manager(
            self.disk, self.threads, self.clock, compacts=self.config.cleanup_compact
        )

    # -- events

    async def run(self, steps: int) -> None:
        await self.logs.open(lambda topic: self.config)
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(self.logs.run)
                await self._live(nursery, steps)
            finally:
                self.threads.abandon()  # No task can wait for the threads after this.
            nursery.cancel_scope.cancel()

    async def _live(self, nursery: trio.Nursery, steps: int) -> None:
        for partition in range(PARTITIONS):
            self._create(partition)
        for _ in range(steps):
            self._act(nursery)
            await trio.testing.wait_all_tasks_blocked()
            if self.random.random() < 0.05:
                await self._lose_power()
        stop = self.random.random() < 0.5
        if stop:
            await close_logs(self, nursery)
        await self._lose_power(all_written=stop)

    def _act(self, nursery: trio.Nursery) -> None:
        is_compacted = self.config.cleanup_compact
        if is_compacted and self._cut_in_a_swap(nursery):
            return
        # A pass makes many calls.
        if self.random.random() < (0.92 if is_compacted else 0.4):
            self.threads.step()
            return
        partition = self.random.randrange(PARTITIONS)
        model = self.models[partition]
        acts: list[tuple[int, Callable[[int, Model, trio.Nursery], None]]] = [
            (12, self._append),
            (4, self._follow),
            (8 if is_compacted else 2, self._roll),  # Passes join small segments.
            (4, self._flush),
            (2, self._truncate),
            (3, self._delete_records),
            (2, self._retain),
            (1, self._delete),
            (1, self._delete_soon),
            (2, self._slow),
            (4, self._wait),
            (1, self._configure),
        ]
        weights = [weight for weight, _ in acts]
        (_, act) = self.random.choices(acts, weights)[0]
        if act in (self._slow, self._wait) or partition not in self.busy:
            ends = (
                f"end={model.log.end_offset} recovery_point={model.log.flush_state.recovery_point}"
            )
            self.trace.append(f"{act.__name__[1:]} partition={partition} {ends}")
            if act not in (self._slow, self._wait):
                model.role += 1
            act(partition, model, nursery)

    def _cut_in_a_swap(self, nursery: trio.Nursery) -> bool:
        """Sometimes truncate a log while a pass replaces its segments; return whether it did."""
        claimed = self.logs.services[self.disk].busy.cuts
        for partition, model in self.models.items():
            is_swapped = model.log in claimed and partition not in self.busy
            if is_swapped and self.random.random() < 0.1:
                model.role += 1
                self._truncate(partition, model, nursery)
                return True
        return False

    def _create(self, partition: int) -> None:
        self.ids += 1
        topic_id = self.ids.to_bytes(16, "big")
        log = self.logs.create("t", topic_id, partition, self.config)
        self.models[partition] = follow_cuts(Model(log, topic_id))

    def _values(self) -> list[bytes]:
        self.count += 1
        keys = [self.random.randrange(KEYS) for _ in range(self.random.randint(1, 3))]
        return [b"%d:%d.%d" % (key, self.count, n) for n, key in enumerate(keys)]

    def _append(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        log, values = model.log, self._values()
        producer_id = self.random.choice([-1, 1, 2, 3])
        state = log.producers.get(producer_id)
        if self.random.random() < 0.1:
            self.epoch += 1
        if state is not None and state.open_from >= 0 and self.random.random() < 0.4:
            data = end_txn_marker(
                commit=self.random.random() < 0.5,
                coordinator_epoch=0,
                producer_id=producer_id,
                producer_epoch=0,
                timestamp_ms=self._time(),
            )
            done = log.append_leader(
                memoryview(data), parse(data), self.epoch, TIME_MS, from_client=False
            )
            model.wrote(done.base_offset, [b"marker"])
            return
        sequence = -1 if producer_id < 0 else 0
        if state is not None:
            sequence = state.last_sequence + 1
        data = batch(
            records_of(values, self.config),
            timestamp_ms=self._time(),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=producer_id >= 0 and not self.config.cleanup_compact,
        )
        done = log.append_leader(memoryview(data), parse(data), self.epoch, TIME_MS)
        model.wrote(done.base_offset, values)

    def _time(self) -> int:
        return TIME_MS + self.count * 10 + self.random.randint(-50, 50)

    def _follow(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        offset, data = model.log.end_offset, b""
        wrote = []
        for _ in range(self.random.randint(1, 6)):
            values = self._values()
            data += batch(
                records_of(values, self.config),
                timestamp_ms=self._time(),
                base_offset=offset,
                leader_epoch=self.epoch,
            )
            wrote.append((offset, values))
            offset += len(values)
        model.log.append_follower(data, TIME_MS)
        for base_offset, values in wrote:
            model.wrote(base_offset, values)

    def _roll(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        log = model.log
        log.roll(TIME_MS)
        if self.config.cleanup_compact:  # Passes clean what is committed.
            log.high_watermark = max(
                log.high_watermark, min(log.writer.written_offset, log.end_offset)
            )

    def _flush(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        end_offset = model.log.end_offset

        async def flush() -> None:
            with suppress(KafkaError):
                await self.logs.flush(model.log, end_offset)
                synced_end = min(end_offset, model.log.flush_state.recovery_point)
                model.flushed = max(model.flushed, synced_end)
                if self.config.cleanup_compact:  # Passes clean what is committed.
                    log = model.log
                    log.high_watermark = max(log.high_watermark, min(synced_end, log.end_offset))

        nursery.start_soon(flush)

    def _truncate(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        if self.random.random() < 0.5:
            return
        log, role = model.log, model.role
        start = max(model.start, log.log_start)
        bases = [base for base in model.bases if base >= start][-12:]
        is_alone = self.random.random() < 0.7
        if is_alone and self.random.random() < 0.3:  # An unclean leader's log may end lower.
            bases = [base for base in model.bases if base < start][-4:]
        if self.config.cleanup_compact and not is_alone:
            bases = [base for base in bases if base >= log.high_watermark]
        if not bases:
            return
        offset = self.random.choice(bases)

        def is_wanted() -> bool:
            return is_alone or model.role == role

        async def truncate() -> None:
            with suppress(KafkaStorageError):
                await self.logs.truncate(log, offset, is_wanted)

        if is_alone:
            self._alone(partition, nursery, truncate)
        else:
            nursery.start_soon(truncate)

    def _delete_records(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        log = model.log
        log.high_watermark = min(log.writer.written_offset, log.end_offset)
        if log.high_watermark <= log.log_start:
            return
        offset = self.random.randint(log.log_start + 1, log.high_watermark)
        log.advance_log_start(offset)
        model.start = max(model.start, offset)
        earlier_cuts = len(model.cuts)

        async def keep() -> None:
            if not await self.logs.keep_starts([log]):
                model.acknowledge_deletion(offset, earlier_cuts)

        nursery.start_soon(keep)

    def _retain(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.logs.retain, model.log)

    def _delete(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        async def delete() -> None:
            await self.logs.delete("t", partition)
            self._create(partition)

        if self.random.random() < 0.5:
            self._alone(partition, nursery, delete)

    def _delete_soon(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        """Delete a log as a controller does, and meanwhile create the partition for a new topic."""
        self.logs.delete_soon(model.log)
        self.deleted.append(model.log)
        if self.logs.get("t", partition) is model.log:  # A thread works on it.
            with suppress(KafkaStorageError):
                self.logs.create("t", model.topic_id, partition, self.config)
                check(False, f"partition {partition} is created though its deletion runs")

        async def create() -> None:
            while True:
                with suppress(KafkaStorageError):
                    self._create(partition)
                    break
                await trio.sleep(0.1)
            check(self.models[partition].log is not model.log, f"{partition} has its deleted log")

        self._alone(partition, nursery, create)

    def _alone(
        self, partition: int, nursery: trio.Nursery, work: Callable[[], Awaitable[object]]
    ) -> None:
        """Start ``work`` as a task, and send the partition no other request until it is done."""
        self.busy.add(partition)

        async def run() -> None:
            await work()
            self.busy.discard(partition)

        nursery.start_soon(run)

    def _slow(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        self.disk.slow = self.random.random() < 0.4

    def _wait(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        self.clock.jump(self.random.choice([0.5, 3.0, 6.0, 70.0]))

    def _configure(self, partition: int, model: Model, nursery: trio.Nursery) -> None:
        flush_ms = self.random.choice([500, 3_000, (1 << 63) - 1])
        model.log.configure(attrs.evolve(self.config, flush_ms=flush_ms))

    # -- invariants

    async def _lose_power(self, *, all_written: bool = False) -> None:
        survivor = self.disk.power_loss(Random(self.random.random()))
        again = manager(survivor, at_once, self.clock)
        await again.open(lambda topic: self.config)
        for partition, model in self.models.items():
            if partition in self.busy:
                continue
            log = again.get("t", partition)
            if log is not None and log.topic_id not in (model.topic_id, ZERO_UUID):
                log = None
            if log is None:
                check(model.durable_end_offset == 0, f"partition {partition} is gone")
                continue
            end_offset = model.durable_end_offset
            if all_written:
                end_offset = model.log.writer.written_offset
            judge(partition, model, log, end_offset)


def follow_cuts(model: Model) -> Model:
    """Make a model follow the truncations of its log; return the model."""
    log = model.log
    truncate_to = log.truncate_to

    def truncate_both(
        offset: int, now_ms: int = 0, producers: ProducerStates | None = None
    ) -> bool:
        if log.config.cleanup_compact:
            model.note_superseded()
        last_base = log.segments.active.base_offset
        model.former_start = max(model.former_start, log.log_start, last_base)
        is_truncated = truncate_to(offset, now_ms, producers)
        model.cut(log.end_offset)
        return is_truncated

    log.truncate_to = truncate_both  # type: ignore[method-assign]
    return model


def check_job(sim: LogSim, worker: Worker) -> None:
    """Check that the log for which a thread works has not been deleted."""
    owner = getattr(worker.call, "__self__", None)
    if isinstance(owner, Flush | Job):
        works: list[object] = []
        for log in sim.logs.directories[0].logs.values():
            works += [log.flush_state.running, log.writer.queue.running]
        check(owner in works, f"a thread works for a log that is gone: {owner}")


async def close_logs(sim: LogSim, nursery: trio.Nursery) -> None:
    """Close the logs cleanly, after the threads have finished their jobs."""
    while sim.threads.workers:
        sim.threads.step()
        await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(sim.logs.close)
    await trio.testing.wait_all_tasks_blocked()
    while sim.threads.workers:
        sim.threads.step()
        await trio.testing.wait_all_tasks_blocked()
    logs = sim.logs.directories[0].logs.values()
    check(not any(log in logs for log in sim.deleted), "a deleted log is there after a stop")


def records_of(values: list[bytes], config: LogConfig) -> list[New]:
    """Return records with these values; in compacted logs, a value starts with its key."""
    return [New(key_of(value) if config.cleanup_compact else None, value) for value in values]


def judge(partition: int, model: Model, log: PartitionLog, durable_end_offset: int) -> None:
    """Check that a log that survived a power loss has what its partition acknowledged."""
    starts = f"start {model.kept_start}..{model.start}"
    name = f"partition {partition} (flushed {durable_end_offset}, {starts})"
    values = dict(contents(log))
    check(log.log_start >= model.kept_start, f"{name} starts at {log.log_start} again")
    skipped = set(range(model.start, log.log_start))
    skipped -= model.superseded  # A roll moves the start of a log that has no records.
    is_cut_undone = log.log_start <= model.former_start
    is_skip_allowed = not skipped or (is_cut_undone and min(skipped) >= durable_end_offset)
    check(is_skip_allowed, f"{name} starts at {log.log_start}: too late")
    last = {key_of(value): offset for offset, value in values.items()}
    is_compacted = log.config.cleanup_compact
    for offset in range(log.log_start, durable_end_offset):
        value, current = values.get(offset), model.current[offset]
        is_superseded = value is None and (
            last.get(key_of(current), -1) > offset or offset in model.superseded
        )
        check(
            value == current or (is_compacted and is_superseded),
            f"{name} has {value!r} at {offset}, not {current!r}",
        )
    for offset, value in values.items():
        check(value in model.written[offset], f"{name} has {value!r} at {offset}: never written")
    batches = list(batches_of(log))
    bases = [header.base_offset for _, _, header in batches]
    check(bases == sorted(set(bases)), f"{name} has batches twice, or in a wrong order: {bases}")
    files = [entry.name for entry in log.disk.entries(log.segments.directory)]
    pass_files = [file for file in files if file.endswith((names.CLEANED, names.SWAP))]
    check(not pass_files, f"{name} has files of a pass: {pass_files}")
    for base_offset, epoch in (
        (header.base_offset, header.leader_epoch) for _, _, header in batches
    ):
        if base_offset >= log.log_start:
            check(log.epochs.at(base_offset) == epoch, f"{name}: epoch of {base_offset} is {epoch}")
    times = [
        (record.timestamp, record.offset)
        for data, pos, header in batches
        for record in records(data, pos, header)
        if record.offset >= log.log_start
    ]
    for timestamp, _ in times[:: max(1, len(times) // 8)]:
        first = next((o, t) for t, o in times if t >= timestamp)
        spot = timestamp_search.run(timestamp_search.first_at_least(log, timestamp))
        check(spot == first, f"{name}: time {timestamp} is at {spot}, not {first}")
    if log.segments[0].base_offset == 0 and not is_compacted:
        states, aborted = replay(log)
        check(producers(log.producers) == producers(states), f"{name}: producers differ")
        indexed = find_aborted(log.segments, 0, log.end_offset)
        check(indexed == aborted, f"{name}: aborted transactions differ")


def key_of(value: bytes) -> bytes:
    return value.partition(b":")[0]


def check(holds: bool, problem: str) -> None:
    if not holds:
        raise LogSimFailure(problem)


def producers(states: ProducerStates) -> list[tuple[int, int, int, int]]:
    return sorted((p.producer_id, p.epoch, p.last_sequence, p.open_from) for p in states.all())


def replay(log: PartitionLog) -> tuple[ProducerStates, list[AbortedTxn]]:
    """Replay every batch; return the resulting producers and aborted transactions."""
    states, aborted = ProducerStates(), []
    for data, pos, header in batches_of(log):
        if header.producer_id >= 0:
            ended = states.replay(data, pos, header)
            if ended is not None:
                aborted.append(ended)
    return states, sorted(aborted, key=lambda entry: entry.first_offset)


def batches_of(log: PartitionLog) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield every batch in the segment files."""
    for segment in log.segments:
        data = segment.file.read(0, segment.size)
        for pos, header in headers(data):
            yield data, pos, header


def contents(log: PartitionLog) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and value of every record that a reader gets."""
    offset = log.log_start
    while offset < log.writer.written_offset:
        with log.read(offset, 1_000, end_offset=log.writer.written_offset) as region:
            data = region.read()
        before = offset
        for pos, header in headers(data):
            for record in records(data, pos, header):
                if record.offset >= before:
                    value = b"marker" if header.attributes & CONTROL else record.value or b""
                    yield record.offset, value
            offset = header.next_offset
        if offset == before and log.config.cleanup_compact:
            return  # Recovery attributes a gap above the recovery point to compaction.
        check(offset > before, f"nothing can be read at {before}")


async def at_once(call: Callable[[], None]) -> None:
    call()


def manager(
    disk: SimDisk,
    in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    clock: trio.testing.MockClock,
    *,
    compacts: bool = False,
) -> LogManager:
    """Return a log manager for one directory."""

    async def clean_in_thread(disk: Disk, call: Callable[[], None]) -> None:
        await in_thread(call)

    directories = [LogDirectory(disk, "dir")]
    return LogManager(
        directories,
        SimClock(clock),
        threads=DiskThreads(in_thread),
        random=Random(0),
        make_runner=(lambda: ThreadRunner(clean_in_thread, clean)) if compacts else None,
        cleaner_settings=CLEANER,
    )


def simulate(seed: int, steps: int = 150, config: LogConfig = CONFIG) -> None:
    """Run one seed; raise LogSimFailure, which names the seed, if a check fails."""
    clock = trio.testing.MockClock()
    sim = LogSim(seed, clock, config)
    try:
        with deterministic_trio(seed):
            trio.run(sim.run, steps, clock=clock)
    except Exception as error:
        story = "\n".join(sim.trace[-TRACE_LINES:])
        raise LogSimFailure(f"seed {seed}, {steps} steps: {error!r}\n{story}") from error
