"""The passes of one fetch: the first, and those after a wait.

A fetch that finds fewer than ``min_bytes`` waits for more (once, or repeatedly for read_committed),
for at most its maximum wait in total, and then gets the available bytes. Rules:

* A pass over many partitions lets other tasks run in between. Partitions that changed meanwhile are
  read again before the wait begins, so no append is missed.
* After a wait, a consumer's fetch reads only the partitions that have changed or that had records,
  unless a partition's role or log start has changed.
* Lookups on the event loop do not wait for a disk: threads read data that is not in the page cache.
* The work is a generator, so a fetch that waits has no task: it yields its wait. It yields a
  function only where it pauses or reads from a disk.
"""

from functools import partial
from typing import Final

from kwire.drive import give_way
from kwire.log.cold_lookups import MAY_WAIT
from kwire.replica.fetch_pass import CONSUMER, FetchOptions, FetchPass
from kwire.replica.fetch_sessions import FetchContext, FetchPartition
from kwire.replica.fetch_waits import FetchWait, SessionWatch
from kwire.replica.partition import FetchIsolation
from kwire.replica.replicas import ReplicaService
from kwire.waits import Steps

TURN_PARTITIONS: Final = 64
"""The number of partitions read before other tasks get a turn: about a millisecond."""


def read_partitions(
    replicas: ReplicaService,
    context: FetchContext,
    options: FetchOptions,
    watch: "SessionWatch | None",
) -> Steps[FetchPass]:
    """Return a pass with the results of all partitions, in the order of ``context.partitions``.

    If the fetch must wait, :func:`wait_for_bytes` continues the pass. The caller drops the pass if
    it does not send the results.
    """
    reading = FetchPass(replicas, options, watch)
    if len(context.partitions) <= TURN_PARTITIONS:
        reading.visit_all(context.partitions)
    else:
        yield partial(_visit_in_turns, reading, context.partitions)
    if reading.cold:
        reading = yield partial(_read_cold, reading, context.partitions)
    return reading


def wait_for_bytes(reading: FetchPass, context: FetchContext, max_wait_ms: int) -> Steps[None]:
    """Wait until there are enough bytes or the time is over, and read again.

    The caller has found that the fetch must wait.
    """
    replicas, options = reading.replicas, reading.options
    deadline = replicas.now() + max_wait_ms / 1000
    must_wait = True
    while must_wait and replicas.now() < deadline:
        wait = yield from _begin_wait(reading)
        if wait is None:
            yield from _read_again(reading, context)
            must_wait = reading.must_wait
            continue
        reading.release()
        waits, timed = replicas.fetch_waits, wait.waiter
        timed.begin(deadline)
        try:
            yield timed
            yield from waits.ending(wait)
        except BaseException:
            waits.end(wait)
            raise
        is_consumer = options.reader == CONSUMER
        reading.shared_reads = wait.shared_reads if is_consumer else None
        yield from _read_again(reading, context, everything=wait.is_outdated or not is_consumer)
        if options.isolation is not FetchIsolation.STABLE:
            break  # Only the end of a transaction wakes fetches that still lack bytes.
        must_wait = reading.must_wait


async def _read_cold(reading: FetchPass, requested: list[FetchPartition]) -> FetchPass:
    """Return another pass, after threads have read the data that lookups need."""
    replicas, options = reading.replicas, reading.options
    for attempt in range(1, len(MAY_WAIT)):
        reading.drop()
        await replicas.warm(reading.cold)
        reading = FetchPass(replicas, options, reading.watch, reading.shared_reads, attempt=attempt)
        await _visit_in_turns(reading, requested)
        if not reading.cold:
            break
    return reading


async def _visit_in_turns(reading: FetchPass, requested: list[FetchPartition]) -> None:
    """Read many partitions, letting other tasks run in between."""
    for first in range(0, len(requested), TURN_PARTITIONS):
        reading.visit_all(requested[first : first + TURN_PARTITIONS])
        try:
            await give_way()
        except BaseException:
            reading.drop()
            raise


def _begin_wait(reading: FetchPass) -> Steps[FetchWait | None]:
    """Start a wait for the partitions of ``reading``; return None if any has changed meanwhile.

    No other task runs between comparing a partition and adding it, so no append is missed: an
    append either changes the partition before the comparison or counts for the wait.
    """
    waits, count = reading.replicas.fetch_waits, 0
    wait = waits.begin(reading.missing_bytes, reading.options.isolation, reading.watch)
    try:
        has_changed = False
        if reading.watch is not None:
            has_changed = reading.watch.has_changes
        elif len(reading.results) < TURN_PARTITIONS and not reading.attempt:
            read_now = [each.partition for each in reading.results if each.partition]
            waits.add(wait, read_now)  # None of them can have changed in this turn.
        else:
            for result in reading.results:
                if result.partition is None:
                    continue
                has_changed = reading.has_changed(result)
                if has_changed or wait.is_over:
                    break
                waits.add(wait, (result.partition,))
                count += 1
                if count % TURN_PARTITIONS == 0:
                    yield give_way
        if has_changed:
            yield from waits.ending(wait)
    except BaseException:
        waits.end(wait)
        reading.drop()
        raise
    return None if has_changed else wait


def _read_again(
    reading: FetchPass, context: FetchContext, *, everything: bool = False
) -> Steps[None]:
    """Reread the partitions that have changed since ``reading``, and replace their results.

    Partitions that could not be read are read again, too. With ``everything``, or if the lease is
    over, all partitions are read again. A session also adds other partitions that have changed. As
    in the first pass, other tasks run in between, and threads read the data that lookups need.
    """
    reading.on_turn()
    everything = everything or reading.is_lease_over
    reported = set(context.add_changed())
    pending = list(enumerate(context.partitions))
    try:
        for reading.attempt in range(len(MAY_WAIT)):
            reading.cold, cold = [], []
            for count, (position, each) in enumerate(pending, 1):
                if everything or each in reported or _is_outdated(reading, position):
                    cold_count = len(reading.cold)
                    reading.visit_again(each, position)
                    if len(reading.cold) > cold_count:
                        cold.append((position, each))
                if count % TURN_PARTITIONS == 0:
                    yield give_way
            if not cold:
                break
            yield partial(reading.replicas.warm, reading.cold)
            pending = cold
    except BaseException:
        reading.drop()
        raise


def _is_outdated(reading: FetchPass, position: int) -> bool:
    """Return whether a partition was not read, or changed without its session's knowledge."""
    if position >= len(reading.results):
        return True
    result = reading.results[position]
    return result.partition is None or (reading.watch is None and reading.has_changed(result))
