"""The load of a coordinator's partition that compaction has left with gaps and empty batches."""

import logging

import pytest

from kwire.group.coordinator import GroupCoordinator
from kwire.records.build import New, batch, rebuild_empty
from kwire.records.control import end_txn_marker
from kwire.records.header import parse
from tests.support.coordinator.node import (
    FakeLog,
    commit_request,
    fetch_offset,
    loaded_successor,
    make_node,
    wait_result,
)

PRODUCER = 7


def without_records(stored: bytes) -> bytes:
    """Return a batch as a pass leaves it whose records are all replaced."""
    return rebuild_empty(parse(stored))


async def write(groups: GroupCoordinator, *offsets: int) -> None:
    for offset in offsets:
        await wait_result(groups.commit(commit_request(offset)))


def marker_at(offset: int) -> bytes:
    return end_txn_marker(
        commit=True,
        coordinator_epoch=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=offset,
    )


@pytest.mark.parametrize("page_batches", [1, 2, 7])
@pytest.mark.parametrize("end", ["empty batch", "empty marker", "gap"])
async def test_load_passes_gaps_and_empty_batches(
    caplog: pytest.LogCaptureFixture, page_batches: int, end: str
) -> None:
    caplog.set_level(logging.INFO)
    node = make_node(FakeLog(page_batches=page_batches))
    log, index = node.log, node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    await write(node.groups, 1, 2, 3, 4, 5, 6, 7, 8)
    batches = log.data[index]
    # Offsets 0, 1 and 5 no longer have a batch; the batches of 2, 4 and 7 have no records.
    log.data[index] = [
        without_records(batches[2]),
        batches[3],
        without_records(batches[4]),
        batches[6],
    ]
    log.data[index].append(without_records(batches[7]))
    if end == "empty marker":
        log.data[index].append(without_records(marker_at(log.ends[index])))
        log.ends[index] += 1
    elif end == "gap":
        log.data[index].pop()
        log.ends[index] += 3
    log.high_watermarks[index] = log.ends[index]
    async with loaded_successor(log, index) as successor:
        assert await fetch_offset(successor) == 7
        await write(successor.groups, 9)
        assert await fetch_offset(successor) == 9
    loaded = [r.getMessage() for r in caplog.records if "coordinator loaded" in r.getMessage()]
    end_offset = {"empty batch": 8, "empty marker": 9, "gap": 11}[end]
    assert f"end={end_offset}" in loaded[-1]


async def test_emptied_data_of_a_transaction_and_its_marker_leave_the_offset() -> None:
    """The marker stays for as long as the data's batch; the commit that replaced it counts."""
    node = make_node()
    log, index = node.log, node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    await write(node.groups, 1)
    (stored,) = log.data[index]
    in_transaction = batch(
        [New(b"", b"")],
        timestamp_ms=1,
        base_offset=1,
        producer_id=PRODUCER,
        producer_epoch=0,
        transactional=True,
    )
    log.data[index] = [without_records(stored), without_records(in_transaction), marker_at(2)]
    log.ends[index] = log.high_watermarks[index] = 3
    await write(node.groups, 5)
    last = batch([New(b"", b"")], timestamp_ms=1, base_offset=log.ends[index])
    log.data[index].append(without_records(last))
    log.ends[index] = log.high_watermarks[index] = 5
    async with loaded_successor(log, index) as successor:
        assert await fetch_offset(successor) == 5
