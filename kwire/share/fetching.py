"""A member's fetch: reading its partitions, waiting for records, and acquiring them.

Rules:

* A fetch acquires records only when its response is about to be sent. Until then other members may
  acquire them.
* Record bytes are not read: an answer refers to the region of the file with the acquired batches.
* A fetch waits like a consumer's (:mod:`kwire.replica.fetch_waits`); released records, a new start
  offset, the end of the leadership and the end of a load also wake it. The wait begins before the
  last read, so that no change in between is missed.
* A partition succeeds or fails on its own; an error answers the whole fetch at once.
"""

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

import attrs

from kwire.drive import give_way, run_in_slices, run_steps
from kwire.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.log.cold_lookups import MAY_WAIT, WouldWait
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.partition_log import Elsewhere
from kwire.log.region import FileRegion
from kwire.records.header import BatchHeader
from kwire.replica.fetch_waits import FetchWait
from kwire.replica.partition import FetchIsolation, Partition
from kwire.share.in_flight import Acquired, Fetched, Limits
from kwire.share.keys import SharePartition
from kwire.share.led_share import LedShare
from kwire.share.loads import Load
from kwire.share.settings import ShareSettings
from kwire.share.share_partitions import ShareService

AT_ONCE_BYTES: Final = 16 << 10
"""The largest region whose headers are read without pauses."""
_NOT_URGENT: Final = (UnknownTopicOrPartition, UnknownTopicId, TopicAuthorizationFailed)
"""The errors for which a fetch still waits, because clients would repeat it at once."""
LOAD_S: Final = 0.1
"""The time for which a fetch waits for loads even if it does not wait for records, so that the
first fetch of a client that does not wait gets records if the share coordinator answers soon."""
LOAD_GRAIN_S: Final = 0.02
"""The pause of a fetch after a load, so that loads that end at about the same time do not have it
read all other partitions again for each."""
TURN_PARTITIONS: Final = 32
"""The number of partitions read before other tasks get a turn."""


class Target(NamedTuple):
    """A partition to fetch from, or the reason why that is impossible."""

    topic_id: bytes
    partition: int
    replica: Partition | None
    error: KafkaError | None = None


class Options(NamedTuple):
    """The arguments of a fetch that apply to all its partitions."""

    group_id: str
    member_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    by_record: bool


@attrs.define(eq=False, repr=False)
class Answer:
    """The result for one partition."""

    target: Target
    error: KafkaError | None = None
    acquired: Sequence[Acquired] = ()
    records: FileRegion | None = None


class _Read(NamedTuple):
    """The records in a partition's log that a member may acquire."""

    offset: int
    """The offset from which the log was read."""
    region: FileRegion
    aborted: Sequence[AbortedTxn]


class _Batch(NamedTuple):
    """A batch of the log; both offsets are inclusive."""

    first: int
    last: int
    position: int
    end_position: int
    is_aborted: bool


async def fetch(service: ShareService, targets: Sequence[Target], options: Options) -> list[Answer]:
    """Return the results of all partitions; the caller sends or discards their records."""
    answers = [Answer(each, each.error) for each in targets]
    if not answers or options.max_records <= 0 or options.max_bytes <= 0:
        return answers
    fetching = ShareFetch(service, options, service.settings(options.group_id), answers)
    fetching.load()
    return await fetching.run()


def discard(answers: Sequence[Answer]) -> None:
    """Close the files of results that will not be sent."""
    for answer in answers:
        if answer.records is not None:
            answer.records.close()


@attrs.define(eq=False, repr=False)
class ShareFetch:
    """One fetch."""

    service: ShareService
    options: Options
    settings: ShareSettings
    answers: list[Answer]
    _led: dict[int, LedShare] = attrs.field(factory=dict)
    """The share partitions without an error, by the positions of their answers."""
    _loads: dict[int, Load] = attrs.field(factory=dict)
    """The loads in progress, by the positions of their answers."""
    _reads: dict[int, _Read] = attrs.field(factory=dict)

    @property
    def _isolation(self) -> FetchIsolation:
        committed = self.settings.reads_committed
        return FetchIsolation.STABLE if committed else FetchIsolation.HIGH_WATERMARK

    # Loading.

    def load(self) -> None:
        """Find the share partitions; begin to load those that no member has fetched from yet."""
        for position, answer in enumerate(self.answers):
            target, replica = answer.target, answer.target.replica
            if replica is None:
                continue
            key = SharePartition(self.options.group_id, target.topic_id, target.partition)
            led = self.service.find(key)
            if led is None:
                self._loads[position] = self.service.load(key, replica)
            else:
                self._led[position] = led

    def _take_loaded(self) -> bool:
        """Take over the results of loads; return whether there were any."""
        over = [position for position, load in self._loads.items() if load.is_over]
        for position in over:
            load = self._loads.pop(position)
            self.answers[position].error = load.error
            if load.led is not None:
                self._led[position] = load.led
        return bool(over)

    async def run(self) -> list[Answer]:
        """Read, wait if necessary, and acquire."""
        now = self.service.replicas.now
        began_at = now()
        wait: FetchWait | None = None
        try:
            while True:
                has_loaded = self._take_loaded()
                if has_loaded and wait is not None:
                    self._end_wait(wait)
                    wait = None
                size = await self._read_all()
                deadline = began_at + self._wait_s
                if size >= self.options.min_bytes or now() >= deadline or self._is_urgent:
                    await self._acquire_all()
                    return self.answers
                self._release()
                if wait is None:
                    wait = self._begin_wait(self.options.min_bytes - size)
                    if has_loaded and self._loads:
                        await self.service.sleep(LOAD_GRAIN_S)
                    continue
                wait.waiter.begin(deadline)
                await wait.waiter.wait()
                self._end_wait(wait)
                wait = None
        except BaseException:
            discard(self.answers)
            raise
        finally:
            self._release()
            if wait is not None:
                self._end_wait(wait)

    @property
    def _wait_s(self) -> float:
        """The time for which the fetch may wait in all."""
        wait_s = self.options.max_wait_ms / 1000
        return max(wait_s, LOAD_S) if self._loads else wait_s

    @property
    def _is_urgent(self) -> bool:
        """True if a partition has an error that the client should learn of at once."""
        errors = (answer.error for answer in self.answers if answer.error is not None)
        return any(not isinstance(error, _NOT_URGENT) for error in errors)

    # Waiting.

    def _begin_wait(self, missing_bytes: int) -> FetchWait:
        waits = self.service.replicas.fetch_waits
        wait = waits.begin(missing_bytes, self._isolation)
        for led in self._led.values():
            waits.add(wait, (led.partition,))
            led.waits[wait] = None
        for load in self._loads.values():
            load.waits[wait] = None
        return wait

    def _end_wait(self, wait: FetchWait) -> None:
        for led in self._led.values():
            led.waits.pop(wait, None)
        for load in self._loads.values():
            load.waits.pop(wait, None)
        self.service.replicas.fetch_waits.end(wait)

    # Reading.

    async def _read_all(self) -> int:
        """Read the partitions that may have records, and return the total size of these records."""
        readable = [
            position
            for position in sorted(self._led)
            if self._led[position].in_flight.can_acquire(self.settings.max_in_flight)
        ]
        max_bytes = self.options.max_bytes // max(1, len(readable))
        size = 0
        for count, position in enumerate(readable, 1):
            try:
                read = await self._read(self._led[position], max_bytes, at_least_one=not size)
            except KafkaError as error:
                self.answers[position].error = error
                del self._led[position]
                continue
            if read is not None:
                self._reads[position] = read
                size += len(read.region)
            if count % TURN_PARTITIONS == 0:
                await give_way()
        return size

    async def _read(self, led: LedShare, max_bytes: int, *, at_least_one: bool) -> _Read | None:
        """Return the part of a partition's log that starts at the group's next offset."""
        for waits_for_disk in MAY_WAIT:
            led.check()
            self.service.replicas.check_lease()
            if led.in_flight.move_start(led.partition.log.log_start):
                led.wake()
            offset = led.in_flight.next_fetch_offset
            try:
                result = led.partition.read(
                    offset,
                    max_bytes,
                    isolation=self._isolation,
                    at_least_one=at_least_one,
                    wait=waits_for_disk,
                )
            except WouldWait as cold:
                await self.service.replicas.warm([cold])
                continue
            except OffsetOutOfRange:
                return None
            except (OSError, Elsewhere) as error:
                raise KafkaStorageError(str(error)) from error
            if result.records is None:
                return None
            assert isinstance(result.records, FileRegion), "nobody shares this read"
            return _Read(offset, result.records, result.aborted or ())
        raise AssertionError("a read that may wait does not raise WouldWait")

    def _release(self) -> None:
        """Close the files of reads that will not be sent."""
        for read in self._reads.values():
            read.region.close()
        self._reads.clear()

    # Acquiring.

    async def _acquire_all(self) -> None:
        room = self.options.max_records
        for position in sorted(self._reads):
            if room <= 0:
                return
            answer, led, read = self.answers[position], self._led[position], self._reads[position]
            try:
                batches = await self._batches(led, read)
                led.check()
                answer.acquired = self._acquire(led, read, batches, room)
            except KafkaError as error:
                answer.error = error
            except OSError as error:
                answer.error = KafkaStorageError(str(error))
            if answer.acquired:
                answer.records = self._reads.pop(position).region
                _narrow(answer.records, batches, answer.acquired)
                room -= sum(last - first + 1 for first, last, _ in answer.acquired)

    async def _batches(self, led: LedShare, read: _Read) -> list[_Batch]:
        """Return the batches of a region with records to acquire, and the batches between them."""
        stop = max(led.in_flight.end, led.in_flight.start + self.settings.max_in_flight)
        try:
            return await _collect(led, read, stop, wait=False)
        except WouldWait as cold:
            await self.service.replicas.warm([cold])
            return await _collect(led, read, stop, wait=True)

    def _acquire(
        self, led: LedShare, read: _Read, batches: Sequence[_Batch], max_records: int
    ) -> Sequence[Acquired]:
        if not batches:
            return ()
        options, settings = self.options, self.settings
        acquired = led.in_flight.acquire(
            options.member_id,
            Fetched(
                read.offset,
                [(batch.first, batch.last) for batch in batches],
                [(batch.first, batch.last) for batch in batches if batch.is_aborted],
            ),
            Limits(
                max_records,
                options.batch_size,
                settings.max_in_flight,
                settings.max_deliveries,
                options.by_record,
            ),
            self.service.clock.now() + settings.lock_s,
        )
        self.service.on_deadline(led)
        return acquired


async def _collect(led: LedShare, read: _Read, stop: int, *, wait: bool) -> list[_Batch]:
    """Return the batches of a region that begin before the offset ``stop``."""
    steps = _scanning(led, read, stop, wait=wait)
    return run_steps(steps) if len(read.region) <= AT_ONCE_BYTES else await run_in_slices(steps)


def _scanning(
    led: LedShare, read: _Read, stop: int, *, wait: bool
) -> Generator[None, None, list[_Batch]]:
    end_position = read.region.position + len(read.region)
    batches: list[_Batch] = []
    headers = led.partition.log.segments.scan_region(read.offset, read.region, wait=wait)
    for position, header in headers:
        # The first batch is kept, however far away it is: everything before it was compacted.
        if (batches and header.base_offset >= stop) or position + header.size > end_position:
            break  # The last batch may be incomplete.
        batches.append(
            _Batch(
                header.base_offset,
                header.last_offset,
                position,
                position + header.size,
                bool(read.aborted) and _is_aborted(header, read.aborted),
            )
        )
        yield
    return batches


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTxn]) -> bool:
    """Return whether a batch belongs to an aborted transaction."""
    return (
        header.is_transactional
        and not header.is_control
        and any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in aborted
        )
    )


def _narrow(region: FileRegion, batches: Sequence[_Batch], acquired: Sequence[Acquired]) -> None:
    """Keep only the bytes from the first to the last batch with acquired records."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    sent = [batch for batch in batches if batch.last >= first and batch.first <= last]
    if sent:
        region.narrow(sent[0].position, sent[-1].end_position - sent[0].position)
    else:  # Compaction has removed all records; the member acknowledges gaps.
        region.narrow(region.position, 0)
