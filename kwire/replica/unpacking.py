"""Unpacks payloads, whose size and content clients choose.

Rules: the event loop unpacks only payloads that stay small. Larger payloads are unpacked in
threads, up to a size limit, and only a few at once, because each may hold as much memory as the
limit allows. The records of produced batches are checked where they are unpacked. Payloads are read
by the threads of their own disk: a task that waits for a disk does not occupy a thread or slot that
is needed for payloads on other disks or in memory.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import trio

from kwire.errors import InvalidRecord, KafkaError, UnknownServerError
from kwire.log.disk import Disk
from kwire.log.threads import DiskThreads
from kwire.log.timestamp_search import OffsetAndTimestamp, Search
from kwire.records import build
from kwire.records.compression import BadPayload, PayloadTooLarge, decompress
from kwire.records.header import CODEC_MASK, HEADER_SIZE, LENGTH_END, BatchHeader, Buffer, parse
from kwire.records.iterate import BadRecords
from kwire.records.validate import keyless, newest_timestamp, untimely
from kwire.records.walked import CheckedRecords
from kwire.speedups import IMPLEMENTATION, check_records

THREADS: Final = 2
"""The number of payloads that are unpacked at once."""
PAYLOAD_MAX: Final = 256 * 1024 * 1024
HERE_BYTES: Final = 32 * 1024
"""The payload size, packed or unpacked, above which a thread costs less than the loop's time."""
_WALK_HERE_BYTES: Final = 256 * 1024 if IMPLEMENTATION == "c" else 4 * 1024
"""The size of records that the loop checks: at most about half a millisecond, if they are tiny."""


@attrs.define(eq=False, repr=False)
class Unpacker:
    """The threads that unpack payloads."""

    readers: DiskThreads = attrs.field(factory=DiskThreads)
    """The threads that read payloads."""
    threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS))
    _searches: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS))
    """Places for searches that look into an unpacked payload."""
    _reads: dict[Disk, trio.CapacityLimiter] = attrs.field(factory=dict)
    """Places, by disk, for searches that have read a payload: each may hold one in memory."""

    async def search(self, search: Search) -> OffsetAndTimestamp | None:
        """Run a search, letting other tasks run between its slices."""
        answer: bytes | None = None
        async with AsyncExitStack() as read, AsyncExitStack() as unpacked:
            is_reading = False
            while True:
                try:
                    job = search.send(answer)
                except StopIteration as done:
                    record: OffsetAndTimestamp | None = done.value
                    return record
                if job is None:
                    answer = None
                    await trio.lowlevel.checkpoint()
                    continue
                if job.disk is None:
                    await unpacked.enter_async_context(self._searches)
                    answer = await trio.to_thread.run_sync(job.call, limiter=self.threads)
                    continue
                await unpacked.aclose()  # the search no longer needs the previous payload
                if not is_reading:
                    await read.enter_async_context(self._places(job.disk))
                    is_reading = True
                answer = await self.readers.run(job.disk, job.call)

    def _places(self, disk: Disk) -> trio.CapacityLimiter:
        places = self._reads.get(disk)
        if places is None:
            places = self._reads[disk] = trio.CapacityLimiter(THREADS)
        return places

    def check_here(
        self, batch: Buffer, header: BatchHeader, *, keys: bool
    ) -> CheckedRecords | None:
        """Check the records of a small batch; return None if that needs a thread.

        ``keys``: also reject records without a key. Raises InvalidRecord.
        """
        plain: Buffer = memoryview(batch)[HEADER_SIZE : header.length + LENGTH_END]
        codec = header.attributes & CODEC_MASK
        if codec:
            if len(plain) > HERE_BYTES:
                return None
            try:
                plain = decompress(codec, plain, HERE_BYTES)
            except BadPayload:
                return None  # The payload is damaged, or larger than the limit.
        if len(plain) > _WALK_HERE_BYTES:
            return None
        return _check_records(plain, header, keys)

    async def check_in_thread(
        self, batch: Buffer, header: BatchHeader, *, keys: bool
    ) -> CheckedRecords:
        """Check the records of a batch for which :meth:`check_here` returned None.

        Raises InvalidRecord, or UnknownServerError, Kafka's error for a payload that does not
        decompress.
        """
        payload = memoryview(batch)[HEADER_SIZE : header.size]
        work = partial(check_payload, payload, header, keys, PAYLOAD_MAX)
        try:
            return await trio.to_thread.run_sync(work, limiter=self.threads)
        except BadPayload as error:
            raise _refusal(error) from None

    async def find_untimely(
        self, batch: Buffer, header: BatchHeader, now_ms: int, before_ms: int, after_ms: int
    ) -> tuple[tuple[int, str], ...]:
        """Return the index of each record that is too old or too new, with the reason.

        The batch's records have been checked, or the result may be empty.
        """
        payload = memoryview(batch)[HEADER_SIZE : header.size]

        def find() -> tuple[tuple[int, str], ...]:
            plain = bytes(decompress(header.compression, payload, PAYLOAD_MAX))
            return tuple(untimely(plain, header, now_ms, before_ms, after_ms))

        try:
            return await trio.to_thread.run_sync(find, limiter=self.threads)
        except (BadPayload, BadRecords):
            return ()

    async def recompress(
        self, batch: Buffer, header: BatchHeader, codec: int, level: int | None = None
    ) -> bytes:
        """Return the batch with its payload in another codec.

        Only the default level, None, is fast enough for the loop. Raises InvalidRecord if the
        payload is too large, UnknownServerError if it is damaged.
        """
        if header.size <= HERE_BYTES and level is None:
            try:
                return build.recompress(batch, header, codec, HERE_BYTES)
            except BadPayload:
                pass  # The payload is damaged, or larger than the limit.
        work = partial(build.recompress, batch, header, codec, PAYLOAD_MAX, level)
        try:
            return await trio.to_thread.run_sync(work, limiter=self.threads)
        except BadPayload as error:
            raise _refusal(error) from None


def correct_timestamp(
    batch: Buffer, header: BatchHeader, max_delta: int
) -> tuple[Buffer, BatchHeader]:
    """Return a checked batch and its header with the largest timestamp of its records.

    Both are unchanged if the producer's header already has it. Raises InvalidTimestamp.
    """
    newest = newest_timestamp(header, max_delta)
    if newest == header.max_timestamp:
        return batch, header
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    corrected = build.assemble(header._replace(max_timestamp=newest), payload)
    return corrected, parse(corrected)


def _refusal(error: BadPayload) -> KafkaError:
    """Return Kafka's error for a bad payload, or InvalidRecord if it is only too large here."""
    is_large = isinstance(error, PayloadTooLarge)
    return InvalidRecord(str(error)) if is_large else UnknownServerError(str(error))


def check_payload(payload: Buffer, header: BatchHeader, keys: bool, limit: int) -> CheckedRecords:
    """Decompress a payload and check its records; raises BadPayload and InvalidRecord."""
    return _check_records(decompress(header.compression, payload, limit), header, keys)


def _check_records(plain: Buffer, header: BatchHeader, keys: bool) -> CheckedRecords:
    """Raise InvalidRecord if a decompressed payload does not match the batch's header.

    Kafka renumbers the records of a compressed batch whose offset deltas are not consecutive, and
    stores them unchanged in any other batch.
    """
    try:
        checked = check_records(plain, header.record_count, keys=keys)
    except BadRecords as error:
        raise InvalidRecord(str(error)) from None
    without_key, are_consecutive, _, _ = checked
    if without_key:
        raise keyless(without_key)
    if not are_consecutive and header.attributes & CODEC_MASK:
        raise InvalidRecord("the offset deltas of a compressed batch are not consecutive")
    return checked
