"""The scrub of one directory, whose disk is in memory."""

import trio

from kwire.log.config import LogConfig, ScrubSettings
from kwire.log.formats import names
from kwire.log.scrubber import LogScrubber, make_scrubber
from simulation.log.thread_workers import ThreadChecker
from tests.support.log.batches import TIME_MS, append, end_transaction
from tests.support.log.manager import ID
from tests.support.turns.table import Scene
from tests.turns.logs import Logs, fill, in_meter, logs_of_a_directory

SCRUBS = Scene("scrubs", logs_of_a_directory)


async def scrub(logs: Logs, seconds: float) -> LogScrubber:
    """Scrub all logs for a time, and return the scrub."""
    scrubber = make_scrubber(
        logs.manager.services.values(),
        lambda: ThreadChecker(in_meter(logs)),
        ScrubSettings(interval_s=seconds, bytes_per_second=1e12),
    )
    with logs.meter.measuring():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrubber.run, name="scrubber.run")
            await trio.sleep(1.5 * seconds)
            nursery.cancel_scope.cancel()
        scrubber.damage_counts()
    return scrubber


@SCRUBS.operation("scrub of many logs", "logs", 3_000, "log.scrubber._run")
async def scrub_logs(logs: Logs, size: int) -> None:
    for number in range(size):
        log = logs.manager.create("scrubbed", ID, number, LogConfig())
        if not number % 10:
            append(log, [b"v"])
            log.roll(TIME_MS)
            log.flush_state.flush()
        await trio.lowlevel.checkpoint()
    scrubber = await scrub(logs, 50.0)
    assert scrubber.byte_count > 0
    assert scrubber.scrubs[0].last_pass_ms > 0


@SCRUBS.operation("scrub of a log whose indexes are all wrong", "batches", 20_000)
async def scrub_indexes(logs: Logs, size: int) -> None:
    """Each tenth of the batches is a segment."""
    log = logs.create("misled", index_interval_bytes=100)
    for _ in range(10):
        fill(log, size // 10, producer_id=5, producer_epoch=0, transactional=True)
        append(log, [b"v"])
        end_transaction(log, 5, commit=False)
        log.roll(TIME_MS)
    await logs.manager.flush(log, indexes=True)
    for segment in log.segments[:-1]:
        for suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX):
            logs.disk.write(segment.files.path(suffix), b"")
    scrubber = await scrub(logs, 50.0)
    assert scrubber.index_counts() == (30, 30)


@SCRUBS.operation("scrub of a log with damage in every segment", "segments", 300)
async def scrub_segments(logs: Logs, size: int) -> None:
    """Each damaged segment is then restored."""
    log = logs.create("rotten", segment_bytes=200)
    fill(log, 2 * size + 10)
    intact = [bytes(segment.file.read(0, segment.size)) for segment in log.segments]
    for segment in log.segments[:size]:
        logs.disk.rot(segment.file.path, 65)
        await trio.lowlevel.checkpoint()
    scrubber = await scrub(logs, 50.0)
    assert scrubber.damage_counts()[0] == size
    with logs.meter.measuring():
        for data, damaged in zip(intact, scrubber.damage_of(log), strict=False):
            await scrubber.restore(log, damaged, data[: damaged.size], damaged.end_offset)
    assert scrubber.damage_counts() == (0, 0)
