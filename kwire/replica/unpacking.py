"""Unpacking of payloads, whose size and content are the clients' choice.

Rules: the loop unpacks only what stays small; whatever grows does so in a thread, up to a limit,
and no more than a few at once, for each may hold as much memory as the limit allows. A payload is
read by threads of its own disk: whoever waits for a disk holds no thread or place that others,
with payloads on another disk or in memory, could need.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import trio

from kwire import attrs
from kwire.errors import InvalidRecord
from kwire.log.disk import Disk
from kwire.log.threads import DiskThreads
from kwire.log.timestamp_search import OffsetAndTimestamp, Search
from kwire.records import build, iterate
from kwire.records.compression import BadPayload, decompress
from kwire.records.header import HEADER_SIZE, BatchHeader, Buffer
from kwire.records.validate import keyless

THREADS: Final = 2
"""The number of payloads that are unpacked at once."""
PAYLOAD_MAX: Final = 256 * 1024 * 1024
HERE_BYTES: Final = 32 * 1024
"""The payload size, packed or unpacked, above which a thread costs less than the loop's time."""
KEYLESS_MAX: Final = 1000
"""The number of records without a key that an error names: a small batch can hold millions."""
_SLICE_RECORDS: Final = 500
"""Records checked between two pauses, about two milliseconds."""


@attrs.define(eq=False)
class Unpacker:
    """The threads that unpack payloads."""

    readers: DiskThreads = attrs.field(factory=DiskThreads)
    """The threads that read payloads."""
    threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS))
    _walks: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS))
    """The limit of unpacked payloads in memory whose records are being checked."""
    _searches: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS))
    """Places of the searches that look into an unpacked payload."""
    _reads: dict[Disk, trio.CapacityLimiter] = attrs.field(factory=dict)
    """Places of the searches that have read a payload of a disk: each may hold one in memory."""

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
                await unpacked.aclose()  # the search is done with the payload before
                if not is_reading:
                    await read.enter_async_context(self._places(job.disk))
                    is_reading = True
                answer = await self.readers.run(job.disk, job.call)

    def _places(self, disk: Disk) -> trio.CapacityLimiter:
        places = self._reads.get(disk)
        if places is None:
            places = self._reads[disk] = trio.CapacityLimiter(THREADS)
        return places

    async def check_keys(self, batch: Buffer, header: BatchHeader) -> None:
        """Refuse a batch for a compacted topic if records have no key.

        Other tasks run every couple of milliseconds. Raises InvalidRecord.
        """
        payload = memoryview(batch)[HEADER_SIZE : header.size]
        try:
            plain = _unpack_small(payload, header.compression)
            if plain is not None:
                return await _check_record_keys(plain, header)
            async with self._walks:
                work = partial(_unpack, payload, header.compression, PAYLOAD_MAX)
                plain = await trio.to_thread.run_sync(work, limiter=self.threads)
                return await _check_record_keys(plain, header)
        except (BadPayload, iterate.BadRecords) as error:
            raise InvalidRecord(str(error)) from None

    async def recompress(self, batch: Buffer, header: BatchHeader, codec: int) -> bytes:
        """Return the batch with its payload in another codec; raises InvalidRecord if damaged."""
        if header.size <= HERE_BYTES:
            try:
                return build.recompress(batch, header, codec, HERE_BYTES)
            except BadPayload:
                pass  # The payload is damaged, or larger than that.
        work = partial(build.recompress, batch, header, codec, PAYLOAD_MAX)
        try:
            return await trio.to_thread.run_sync(work, limiter=self.threads)
        except BadPayload as error:
            raise InvalidRecord(str(error)) from None


def _unpack(payload: memoryview, codec: int, limit: int) -> bytes:
    return bytes(decompress(codec, payload, limit))


def _unpack_small(payload: memoryview, codec: int) -> bytes | None:
    """Unpack a payload that stays small; None if it is large or damaged."""
    if not codec:
        return bytes(payload)
    if len(payload) > HERE_BYTES:
        return None
    try:
        return _unpack(payload, codec, HERE_BYTES)
    except BadPayload:
        return None


async def _check_record_keys(plain: bytes, header: BatchHeader) -> None:
    """Raise InvalidRecord for a batch with records that have no key."""
    bad: list[int] = []
    for index, has_key in enumerate(iterate.keys(plain, header)):
        if not has_key:
            bad.append(index)
            if len(bad) == KEYLESS_MAX:
                break
        if index % _SLICE_RECORDS == _SLICE_RECORDS - 1:
            await trio.lowlevel.checkpoint()
    if bad:
        raise keyless(bad)
