"""Fetches of more aborted transactions than one response lists."""

from trio.testing import MockClock

from kwire.log.formats.txn_index import LISTED_MAX
from kwire.records.header import headers
from tests.support.handlers.broker import broker, create_topic
from tests.support.handlers.fetch import PartitionData, at, fetch
from tests.support.log.batches import abort_transactions

READ_COMMITTED = 1
COUNT = 3 * LISTED_MAX // 2


def next_offset(answer: PartitionData, offset: int) -> int:
    """Return where the reader of a partition continues."""
    ends = [header.next_offset for _, header in headers(bytes(answer.records))]
    return ends[-1] if ends else offset


async def test_full_list_is_answered_at_once_and_the_rest_follows(
    autojump_clock: MockClock,
) -> None:
    """Invariants 18 and 19: a list counts for all partitions, and the fetch waits for no bytes."""
    subject = broker()
    offsets: dict[str, int] = {}
    for name in ("a", "b"):
        abort_transactions((await create_topic(subject, name)).log, COUNT)
        offsets[name] = 0
    listed: dict[str, set[int]] = {"a": set(), "b": set()}
    lengths: list[list[int]] = []
    began = autojump_clock.current_time()
    for _ in range(4):
        answers = await fetch(
            subject,
            *(at(name, offset, max_bytes=50 << 20) for name, offset in offsets.items()),
            isolation_level=READ_COMMITTED,
            max_wait_ms=60_000,
            min_bytes=50 << 20,
            max_bytes=50 << 20,
        )
        lengths.append([len(answer.aborted_transactions or ()) for answer in answers])
        for name, answer in zip(offsets, answers, strict=True):
            assert answer.last_stable_offset == 2 * COUNT
            listed[name].update(each.first_offset for each in answer.aborted_transactions or ())
            offsets[name] = next_offset(answer, offsets[name])
        if lengths[-1] == [0, LISTED_MAX // 2]:
            break
        assert autojump_clock.current_time() == began
    full = LISTED_MAX + 1  # One transaction begins in the range and ends behind it.
    assert lengths == [[full, 0], [LISTED_MAX // 2, full], [0, LISTED_MAX // 2]]
    assert listed["a"] == listed["b"] == set(range(0, 2 * COUNT, 2))
