"""A broker repairs damaged batches with the bytes of another in-sync replica."""

import attrs
import pytest
import trio

from kwire.errors import CorruptMessage, KafkaError, KafkaStorageError
from kwire.replica import damage_repair
from kwire.replica.partition import Partition
from simulation.disk import SimDisk
from tests.support.log.batches import append, content
from tests.support.log.manager import OTHER
from tests.support.replica.damaged import (
    CONFIG,
    Cluster,
    Image,
    State,
    Topic,
    cluster,
    file_bytes,
    fill,
    filled_log,
)


@pytest.mark.parametrize("position", [3, 10, 13, 16, 18, 22, 26, 60, 80])
async def test_damaged_batch_is_copied_from_another_replica(autojump_clock, position: int) -> None:
    """Invariants 22 and 80; the replicas' segments begin at different offsets."""
    async with cluster() as c:
        before = file_bytes(c.log)
        c.rot(position)
        c.rot(position, 2)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before
        assert c.scrubber.damage_counts() == (0, 0)
        assert c.scrubber.restored_count == 2


async def test_a_whole_file_of_zeros_is_copied_in_pieces(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_repair, "PIECE_BYTES", 250)
    monkeypatch.setattr(damage_repair, "FETCH_BYTES", 250)
    async with cluster() as c:
        before, segment = file_bytes(c.log), c.log.segments[1]
        segment.file.write((bytes(segment.size),), 0)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before
        assert len(c.others[2].requests) > 3


async def test_second_replica_supplies_what_the_first_cannot(autojump_clock) -> None:
    async with cluster() as c:
        before = file_bytes(c.log)
        c.others[2].error = CorruptMessage()
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before


async def test_damaged_bytes_of_another_replica_are_not_copied(autojump_clock) -> None:
    async with cluster(state=State(isr=(1, 2))) as c:
        c.rot(70)
        offset = c.log.segments[1].base_offset
        disk, other = c.others[2].log.disk, c.others[2].log
        assert isinstance(disk, SimDisk)
        segment = other.segments[other.segments.index_of(offset)]
        located = segment.locate(offset)
        assert located is not None
        disk.rot(segment.file.path, located[0] + 70)
        await c.scrub()
        await trio.sleep(1)
        with pytest.raises(KafkaError):
            c.log.read(offset, 1, end_offset=c.log.end_offset)


async def test_batch_of_another_epoch_is_not_copied(autojump_clock) -> None:
    """Invariant 25: after an unclean election, the offset belongs to other records there."""
    async with cluster(state=State(isr=(1, 2))) as c:
        other = c.others[2].log
        other.truncate_to(10)
        for number in range(5, 40):
            append(other, [b"one of %d" % number, b"two of %d" % number], epoch=7)
        other.high_watermark = other.end_offset
        c.rot(70)
        damaged = file_bytes(c.log)
        await c.scrub()
        await trio.sleep(1)
        assert c.others[2].requests
        assert file_bytes(c.log) == damaged


async def test_replicas_that_are_not_in_sync_are_not_asked(autojump_clock) -> None:
    async with cluster(state=State(isr=(1, 3))) as c:
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        assert not c.others[2].requests
        assert c.others[3].requests


async def test_repair_is_retried_until_a_replica_answers(autojump_clock) -> None:
    """Clients retry at first; later they get the error that consumers report."""
    async with cluster() as c:
        before, offset = file_bytes(c.log), c.log.segments[1].base_offset
        for other in c.others.values():
            other.is_up = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        with pytest.raises(KafkaStorageError):
            c.log.read(offset, 1, end_offset=c.log.end_offset)
        await trio.sleep(60)
        with pytest.raises(CorruptMessage):
            c.log.read(offset, 1, end_offset=c.log.end_offset)
        c.others[3].is_up = True
        await trio.sleep(300)
        assert file_bytes(c.log) == before


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
async def test_without_another_replica_consumers_get_a_clear_error_at_once(
    autojump_clock, replicas: tuple[int, ...]
) -> None:
    """Only if there is none at all, coordinators load what comes behind."""
    async with cluster(state=State(replicas=replicas, isr=(1,))) as c:
        c.rot(70)
        await c.scrub()
        offset = c.log.segments[1].base_offset
        with pytest.raises(CorruptMessage) as raised:
            c.log.read(offset, 1, end_offset=c.log.end_offset)
        assert (raised.value.next_offset is not None) is (replicas == (1,))


async def test_log_that_no_leader_has_confirmed_is_not_repaired_yet(autojump_clock) -> None:
    async with cluster() as c:
        before = file_bytes(c.log)
        c.hosted.partition.is_confirmed = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        assert not c.others[2].requests
        c.hosted.partition.is_confirmed = True
        await trio.sleep(5)
        assert file_bytes(c.log) == before


COMPACTED = attrs.evolve(CONFIG, cleanup_compact=True)


@pytest.mark.parametrize("position", [3, 10, 13, 16, 18, 22, 26, 60, 80])
async def test_same_batch_of_a_compacted_log_is_copied(autojump_clock, position: int) -> None:
    async with cluster(COMPACTED) as c:
        before = file_bytes(c.log)
        c.rot(position)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before


async def test_batch_that_another_replica_has_compacted_is_not_copied_alone(
    autojump_clock,
) -> None:
    """Invariant 87: the other batch has the same size and offsets, but other records."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        offset = c.log.segments[1].base_offset
        other = c.others[2].log
        other.truncate_to(offset)
        append(other, [b"xne of %d" % (offset // 2), b"two of %d" % (offset // 2)], epoch=0)
        other.high_watermark = other.end_offset
        assert other.segments.active.locate(offset) is not None
        c.rot(70)
        damaged = file_bytes(c.log)
        await c.scrub()
        await trio.sleep(1)
        assert c.others[2].requests
        assert file_bytes(c.log) == damaged


async def test_truncated_damage_needs_no_repair(autojump_clock) -> None:
    async with cluster() as c:
        for other in c.others.values():
            other.is_up = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        await c.logs.truncate(c.log, c.log.segments[1].base_offset)
        end_offset = c.log.end_offset
        for other in c.others.values():
            other.is_up = True
        await trio.sleep(300)
        assert c.log.end_offset == end_offset
        assert not c.others[2].requests
        assert c.scrubber.damage_counts() == (0, 0)


def _compact_differently(c: Cluster) -> int:
    """Give the second broker other records from the second segment on; return its offset."""
    other, offset = c.others[2].log, c.log.segments[1].base_offset
    other.truncate_to(offset)
    for number in range(offset // 2, 40):
        append(other, [b"ONE of %d" % number, b"TWO of %d" % number], epoch=number // 15)
    other.high_watermark = other.end_offset
    return offset


async def test_replica_that_has_compacted_differently_supplies_all_closed_segments(
    autojump_clock,
) -> None:
    """Invariants 80 and 87."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        other, active = c.others[2].log, c.log.segments.active
        offset = _compact_differently(c)
        c.rot(70)
        await c.scrub()
        await trio.sleep(3)
        end_offset = active.base_offset
        assert content(c.log)[:end_offset] == content(other)[:end_offset]
        assert content(c.log)[offset] == (offset, b"ONE of %d" % (offset // 2))
        assert c.log.segments.active is active
        assert c.scrubber.damage_counts() == (0, 0)


async def test_broker_that_is_back_soon_spares_the_copy_of_all_closed_segments(
    autojump_clock,
) -> None:
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        before, closed = file_bytes(c.log), c.log.segments[1]
        c.others[2].is_up = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        c.others[2].is_up = True
        await trio.sleep(10)
        assert file_bytes(c.log) == before
        assert c.log.segments[1] is closed


async def test_first_attempt_copies_no_closed_segments(autojump_clock) -> None:
    """The copy takes long, and the repairs of other logs would wait for it."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        _compact_differently(c)
        c.rot(70)
        damaged = file_bytes(c.log)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == damaged
        assert len(c.others[2].requests) == 1


async def test_damage_in_the_active_segment_copies_no_closed_segments(autojump_clock) -> None:
    """The copy ends where the active segment begins."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        offset = c.log.segments[1].base_offset
        _compact_differently(c)
        c.rot(70)
        await c.scrub()
        closed = c.log.segments[0]
        await c.logs.truncate(c.log, c.log.segments[2].base_offset)
        assert c.log.segments.active.base_offset == offset
        await trio.sleep(60)
        assert c.scrubber.damage_counts() == (1, 1)
        assert c.log.segments[0] is closed


async def test_batch_of_another_epoch_does_not_replace_closed_segments(autojump_clock) -> None:
    """Invariant 25."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        other = c.others[2].log
        other.truncate_to(10)
        for number in range(5, 40):
            append(other, [b"one of %d" % number, b"two of %d" % number], epoch=7)
        other.high_watermark = other.end_offset
        c.rot(70)
        damaged = file_bytes(c.log)
        await c.scrub()
        await trio.sleep(3)
        assert c.others[2].requests
        assert file_bytes(c.log) == damaged


async def test_copy_of_closed_segments_does_not_hold_up_other_repairs(autojump_clock) -> None:
    """The copy of one log never ends, while another log is damaged and repaired."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        _compact_differently(c)
        c.rot(70)
        await c.scrub()
        c.others[2].is_stuck = lambda request: request.max_bytes == damage_repair.FETCH_BYTES
        await trio.sleep(3)
        assert c.scrubber.damage_counts() == (1, 1)
        log = c.logs.create("u", OTHER, 0, CONFIG)
        fill(log)
        c.others[2].more[OTHER] = filled_log("u")
        c.hosted.more["u"] = Partition("u", 0, OTHER, log, is_confirmed=True)
        topics = {**c.hosted.image.topics, OTHER: Topic({0: State(isr=(1, 2))})}
        c.hosted.image = Image(topics, c.hosted.image.brokers)
        before = file_bytes(log)
        c.rot(70, log=log)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(log) == before
        assert c.scrubber.damage_counts() == (1, 1)


async def test_copy_of_closed_segments_keeps_to_its_rate(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_repair, "FETCH_BYTES", 300)
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        _compact_differently(c)
        size = sum(segment.size for segment in c.log.segments[:-1])
        c.repair.copy_limit.bytes_per_s = size / 60
        c.rot(70)
        await c.scrub()
        await trio.sleep(40)
        assert c.scrubber.damage_counts() == (1, 1)
        await trio.sleep(40)
        assert c.scrubber.damage_counts() == (0, 0)
