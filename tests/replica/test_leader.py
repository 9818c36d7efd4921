"""The in-sync replicas and the high watermark of a leader (invariants 14, 28, 29, 30, 35)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.log.partition_log import PartitionLog, create
from kwire.replica.leader import HighWatermarkChange, PartitionLeader, Proposal
from kwire.types import TopicPartition
from simulation.disk import SimDisk


def log_of(high_watermark: int) -> PartitionLog:
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=0)
    log.high_watermark = high_watermark
    return log


def leader(
    *,
    log_end: int = 10,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    min_isr: int = 1,
    high_watermark: int = 0,
) -> PartitionLeader:
    subject = PartitionLeader.take_over(
        node=1,
        leader_epoch=5,
        partition_epoch=9,
        replicas=replicas,
        isr=isr,
        log_end=0,
        log=log_of(high_watermark),
        min_isr=min_isr,
        now=0.0,
    )
    subject.on_appended(log_end, 0.0)
    return subject


def fetch(
    subject: PartitionLeader, node: int, offset: int, now: float = 0.0
) -> HighWatermarkChange | None:
    return subject.on_fetched(node, offset=offset, log_start=0, now=now)


@pytest.mark.parametrize(
    ("isr", "min_isr", "fetches", "expected"),
    [
        ((1, 2, 3), 1, [(2, 10)], None),  # 3 has fetched nothing yet.
        ((1, 2, 3), 1, [(2, 10), (3, 7)], HighWatermarkChange(0, 7)),
        ((1, 2), 1, [(2, 10)], HighWatermarkChange(0, 10)),  # 3 is not in the ISR.
        ((1, 2), 1, [(3, 10)], None),
        ((1, 2), 3, [(2, 10)], None),  # The ISR is smaller than min.insync.replicas.
        (
            (1, 2, 3),
            9,
            [(2, 10), (3, 10)],
            HighWatermarkChange(0, 10),
        ),  # It is at most the replica count.
    ],
)
def test_high_watermark_is_the_smallest_log_end_of_the_isr(
    isr: tuple[int, ...],
    min_isr: int,
    fetches: list[tuple[int, int]],
    expected: HighWatermarkChange | None,
):
    subject = leader(isr=isr, min_isr=min_isr)
    assert [fetch(subject, node, offset) for node, offset in fetches][-1] == expected


def test_leader_of_a_single_replica_commits_at_once():
    subject = leader(replicas=(1,), isr=(1,), min_isr=2, log_end=3)
    assert subject.log.high_watermark == 3
    assert not subject.under_min_isr
    assert subject.on_appended(8, 0.0) == HighWatermarkChange(3, 8)
    assert subject.on_appended(8, 0.0) is None


def test_high_watermark_waits_for_caught_up_follower_outside_the_isr():
    """Otherwise a follower that is always one batch behind would never join."""
    subject = leader(isr=(1, 2), log_end=10)
    fetch(subject, 3, 10)
    fetch(subject, 2, 10)
    subject.on_appended(12, 0.0)
    fetch(subject, 3, 11)
    assert fetch(subject, 2, 12) == HighWatermarkChange(10, 11)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (9, False),  # Below the high watermark.
        (10, True),
        (-1, False),  # It has never fetched.
    ],
)
def test_follower_may_join_the_isr_at_the_high_watermark(offset: int, expected: bool):
    subject = leader(isr=(1, 2))
    fetch(subject, 2, 10)
    if offset >= 0:
        fetch(subject, 3, offset)
    assert subject.may_join(3) is expected


def test_follower_joins_the_isr_only_after_deleting_what_the_leader_deleted():
    """Invariant 39: deleted records do not come back when that follower leads."""
    subject = leader(log_end=10, isr=(1, 2))
    fetch(subject, 2, 10)
    subject.log.log_start = 4
    fetch(subject, 3, 10)
    assert not subject.may_join(3)
    subject.on_fetched(3, offset=10, log_start=4, now=1.0)
    assert subject.may_join(3)


def test_follower_may_join_the_isr_only_at_the_epoch_start():
    """A follower above the high watermark may have records that this epoch lacks (KIP-101)."""
    subject = PartitionLeader.take_over(
        node=1,
        leader_epoch=2,
        partition_epoch=0,
        replicas=(1, 2),
        isr=(1,),
        log_end=20,
        log=log_of(5),
        min_isr=2,
        now=0.0,
    )
    fetch(subject, 2, 19)
    assert not subject.may_join(2)
    fetch(subject, 2, 20)
    assert subject.may_join(2)


def test_high_watermark_waits_for_the_members_of_a_proposed_isr():
    """Invariant 30: the high watermark waits for the maximal ISR."""
    subject = leader(isr=(1, 2), log_end=10)
    fetch(subject, 2, 10)
    fetch(subject, 3, 10)
    assert subject.propose(joins=[3]) == Proposal(frozenset({1, 2, 3}), 9, {2: -1, 3: -1})
    assert subject.propose(joins=[3]) is None  # One proposal is in flight.
    subject.on_appended(15, 0.0)
    fetch(subject, 3, 11, now=100.0)
    assert fetch(subject, 2, 15, now=100.0) == HighWatermarkChange(10, 11)
    assert subject.on_isr_committed([1, 2, 3], 10, 100.0) is None
    assert subject.isr == {1, 2, 3}
    assert subject.propose(leaves=[3]) is not None
    assert subject.maximal_isr == {1, 2, 3}
    assert subject.on_isr_committed([1, 2], 11, 100.0) == HighWatermarkChange(11, 15)


def test_isr_of_an_older_partition_epoch_is_ignored():
    subject = leader(isr=(1, 2))
    subject.on_isr_committed([1, 2, 3], 12, 100.0)
    subject.on_isr_committed([1], 11, 100.0)
    assert subject.isr == {1, 2, 3}


def test_member_that_leaves_by_an_answer_counts_until_the_metadata_have_that():
    """Invariants 22 and 39: it may be eligible, by metadata that the answer has overtaken."""
    subject = leader(log_end=10, isr=(1, 2))
    subject.on_fetched(2, offset=5, log_start=4, now=0.0)
    subject.is_eligible = lambda node, epoch: False
    proposal = subject.propose(leaves=[2])
    assert proposal is not None
    assert subject.on_isr_answered(proposal.isr, 12, 100.0) is None
    assert subject.on_isr_committed([1, 2], 11, 100.0) is None
    assert subject.isr == {1}
    assert subject.low_watermark(7) == 4
    assert subject.on_isr_committed([1], 12, 100.0) == HighWatermarkChange(5, 10)
    assert subject.low_watermark(7) == 7


def test_follower_that_is_behind_for_too_long_is_a_laggard():
    subject = leader(isr=(1, 2, 3))
    fetch(subject, 2, 10, now=50.0)
    fetch(subject, 3, 4, now=50.0)
    assert subject.laggards(now=50.0) == {3}
    assert subject.laggards(now=10.0) == frozenset()
    # At the end of the log no follower lags, however long ago that was.
    assert 2 not in subject.laggards(now=500.0)


def test_follower_is_caught_up_as_of_the_fetch_whose_log_end_it_reached():
    subject = leader(isr=(1, 2), log_end=10)
    fetch(subject, 2, 5, now=100.0)
    subject.on_appended(20, 0.0)
    fetch(subject, 2, 10, now=120.0)  # The log end at 100 s.
    assert subject.followers[2].caught_up_at == 100.0


def test_new_leader_lowers_a_high_watermark_above_its_log_end():
    subject = PartitionLeader.take_over(
        node=1,
        leader_epoch=2,
        partition_epoch=0,
        replicas=(1, 2),
        isr=(1, 2),
        log_end=3,
        log=log_of(8),
        min_isr=1,
        now=0.0,
    )
    assert subject.log.high_watermark == 3


class ReferenceLeader:
    """The high watermark by its definition: the smallest log end of the ISR, never decreasing."""

    def __init__(self) -> None:
        self.ends = {1: 0, 2: -1, 3: -1}
        self.high_watermark = 0

    def advance(self, isr: frozenset[int]) -> int:
        """Return the high watermark with this ISR."""
        lowest = min(self.ends[node] for node in isr)
        self.high_watermark = max(self.high_watermark, lowest)
        return self.high_watermark


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5)),
        st.tuples(st.just("fetch2"), st.integers(0, 30)),
        st.tuples(st.just("fetch3"), st.integers(0, 30)),
        st.tuples(st.just("isr"), st.sampled_from([(1,), (1, 2), (1, 3), (1, 2, 3)])),
    ),
    max_size=30,
)


@given(STEPS)
def test_high_watermark_equals_its_definition(steps: list[tuple[str, int | tuple[int, ...]]]):
    subject = leader(log_end=0)
    subject.lag_max = -1.0
    reference = ReferenceLeader()
    epoch = 9
    for kind, value in steps:
        if kind == "append":
            assert isinstance(value, int)
            reference.ends[1] += value
            subject.on_appended(reference.ends[1], 1e9)
        elif kind == "isr":
            assert isinstance(value, tuple)
            epoch += 1
            subject.on_isr_committed(value, epoch, 1e9)
        else:
            assert isinstance(value, int)
            node, offset = int(kind[-1]), min(value, reference.ends[1])
            # Long after the epoch began, so only the ISR counts and not joining replicas.
            previous = reference.ends[node]
            reference.ends[node] = offset
            subject.on_fetched(node, offset=offset, log_start=0, now=1e9)
            assert subject.followers[node].log_end == offset or previous == offset
        assert subject.log.high_watermark == reference.advance(subject.isr)
        assert subject.log.high_watermark <= subject.log_end


def test_follower_with_too_many_records_missing_leaves_until_it_is_back_within_the_limit() -> None:
    """``replica.lag.max.messages``; a follower outside of the ISR holds back nothing."""
    subject = leader(isr=(1, 2, 3), log_end=0)
    subject.lag_max_messages = 5
    for node in (2, 3):
        subject.on_fetched(node, offset=0, log_start=0, now=1.0)
    subject.on_appended(6, 1.0)
    subject.on_fetched(2, offset=1, log_start=0, now=1.0)
    assert subject.laggards(1.0) == {3}
    proposal = subject.propose(leaves=subject.laggards(1.0))
    assert proposal is not None
    subject.on_isr_answered(proposal.isr, 10, 1.0)
    subject.on_isr_committed(proposal.isr, 10, 1.0)
    subject.on_fetched(2, offset=6, log_start=0, now=1.1)
    assert subject.log.high_watermark == 6
    subject.on_appended(12, 1.2)
    subject.on_fetched(2, offset=12, log_start=0, now=1.3)
    subject.on_fetched(3, offset=6, log_start=0, now=1.4)
    assert not subject.may_join(3)
    subject.on_fetched(3, offset=12, log_start=0, now=1.5)
    assert subject.may_join(3)


def test_number_of_missing_records_does_not_matter_by_default() -> None:
    subject = leader(log_end=1 << 40)
    assert not subject.laggards(30.0)


@pytest.mark.parametrize(
    ("isr", "elr", "expected"),
    [
        ((1,), (), 7),  # 2 and 3 are down, and none of them can be elected.
        ((1,), (3,), 0),
        ((1, 2), (), 4),  # 2 is fenced, and leaves the ISR in a moment: it may become eligible.
        ((1, 2), (3,), 0),
    ],
)
def test_deletion_waits_for_replicas_that_may_be_elected(
    isr: tuple[int, ...], elr: tuple[int, ...], expected: int
):
    """Invariant 39."""
    subject = leader(isr=isr)
    subject.on_fetched(2, offset=10, log_start=4, now=0.0)
    subject.on_fetched(3, offset=5, log_start=0, now=0.0)
    subject.is_eligible = lambda node, epoch: False
    subject.elr = frozenset(elr)
    assert subject.low_watermark(7) == expected
