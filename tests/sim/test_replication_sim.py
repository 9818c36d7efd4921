"""Whole clusters under simulation: quorum, replicas, coordinators, clients of all kinds, faults."""

import os

import pytest
import trio

from simulation.disk import PLENTY
from simulation.raft.mutations import Mutation
from simulation.replication.mutations.table import MUTATIONS
from simulation.replication.sharing.groups import SHARING
from simulation.replication.sim import (
    ReplicationSim,
    ReplicationSimFailure,
    simulate_replication,
)
from simulation.replication.staged_faults import DRAWN, STAGES
from tests.support.long_runs import parameters
from tests.support.sim.seeds import todays_seeds

STEPS = int(os.environ.get("KWIRE_SIM_STEPS", "14"))
MUTATION_SEEDS = 30
BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
STAGED = [mutation for mutation in MUTATIONS if mutation.stage in STAGES]
STAGED_STEPS = 8
FIRST = todays_seeds(1).start
QUICKLY_FOUND = (
    "acknowledge-before-the-high-watermark",
    "high-watermark-at-the-log-end",
    "one-partition-gets-no-marker",
    "every-marker-commits",
    "end-bumps-no-epoch",
    "open-transactions-are-stable",
    "no-list-of-aborted-transactions",
    "offsets-before-the-commit",
    "partitions-move-before-they-are-given-up",
    "two-members-hold-a-record",
    "half-of-the-voters-commits",
)
"""Mistakes that a few runs find; a run takes seconds, and ``sim.py --detect`` makes them all."""
AFTER_SEVERAL_RUNS = (
    "half-of-the-voters-commits",
    "end-bumps-no-epoch",
    "offsets-before-the-commit",
    "partitions-move-before-they-are-given-up",
)
"""Those of them that only the long run makes."""
IN_THE_LONG_RUN = (
    "replaced-disk-leads",
    "empty-log-beside-an-unread-directory",
    "commits-outlive-leadership",
    "verifications-end-with-the-epoch",
    "queued-writes-wait-for-the-next-append",
    "leases-stand-still-with-the-machine",
    "one-refusal-ends-all-controllers",
)
"""Mistakes of staged faults that the long run makes.

The first five take several runs to find. The other two need a run of their own each, and the staged
faults that show them have no other mistakes; any run may have such a suspension or firewall.
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(2))
def test_promises_of_the_cluster_survive_all_faults(seed: int) -> None:
    """Invariants 13 to 15, 21 to 26, 30 to 32, 34, 39, 41, 43 and 46 all the time.

    The replicas are looked at all the time: 14, a leader's high watermark only grows; 21 and 22,
    every in-sync or eligible replica has what was acknowledged, so any of them may lead; 23, logs
    are equal below the high watermarks; 24, an epoch has one leader; 30, what a leader acknowledges
    is on all members of the ISR that the controller may have committed; 32, in runs with eligible
    leader replicas the last in-sync replica may lose its tail; 39, in-sync and eligible replicas
    begin where records were deleted; 31 and 43, the committed metadata are on a majority,
    and add no fenced broker to an ISR. Each answer is checked as it comes: 13 and 15, what
    consumers see and which end they are given; 34, no fenced broker acknowledges or serves.
    Connections are cut in both directions or, 41, in one.

    Invariants 44, 48 and 49: administrators change topics meanwhile. 48, what an answer confirms
    was committed since the request; 49, every image is a prefix of the log, and no topic comes
    back; 44, with a minority of the voters dead all administrators get answers within a bound.

    Voters are added and removed meanwhile (43 and 46: what is committed is on a majority of the
    voters in the leader's log, who change one at a time), and nodes get a newer release one after
    the other (108): none gets metadata that it cannot read, and in the end all feature levels rise.

    Invariants 1, 3, 4, 6, 10, 12, 35, 36, 61 and 110 at the end, when the faults are mended: every
    acknowledged record is read, once if its producer is idempotent; transactions are visible wholly
    or not at all, and none hangs the last stable offset; all replicas are in sync and reassignments
    complete; clients go on, also with a minority of the voters dead.

    Invariants 2, 5, 7, 11, 19, 27, 54 to 57, 59, 62 and 72 with the answers to consumers, groups
    and transactional producers: one value an offset; nothing is read before its transaction is to
    commit, no position is lost by a truncation; offsets of groups never go back, nor does the
    coordinator of a former incarnation's late requests. 66, 69 and 70 with those to the members of
    a group: one owner of a partition in a generation, no commit of a former generation, and in the
    end one generation of all. 66, 69, 70, 72 and 74 with those to members whose partitions the
    coordinator assigns: one owner of a partition at an epoch and at a time, no commit of a former
    owner or of an epoch that was never given, and in the end each member owns its target.
    """
    sim = simulate_replication(seed, STEPS)
    assert any(sim.world.history.acknowledged.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(2))
def test_promises_to_share_members_survive_all_faults(seed: int) -> None:
    """Invariants 70, 72, 74 and 75 with each answer to a member of a share group, and at the end.

    75: a record is held by one member at a time, by the lock that its leader counts; it is not
    delivered again once its member knows that it is accepted or rejected; in the end everything is
    accepted, rejected, or archived by its delivery count. 72: the count never falls below what was
    stored, whichever leader and share coordinator follow. 70 and 74: members are not removed before
    their sessions end, and epochs of groups and sessions that were never given are rejected.
    """
    sim = simulate_replication(seed, STEPS, stage=SHARING)
    assert any(sim.world.history.read.values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", todays_seeds(2))
@pytest.mark.parametrize("stage", [name for name in STAGES if name not in DRAWN])
def test_promises_of_the_cluster_survive_a_staged_fault(stage: str, seed: int) -> None:
    """Invariants 1, 22, 33, 34 and 48: most of these faults are in no other run.

    A replica whose disk was replaced must not lead while others may have its records; what waits
    for room on a slow disk is written without a further append; what a controller decided before
    it was deposed is confirmed only if it was committed; and a leader whose machine was suspended,
    or which a firewall separates from the active controller, serves no longer than its lease.
    """
    sim = simulate_replication(seed, STAGED_STEPS, stage=stage)
    assert any(sim.world.history.acknowledged.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    parameters([BY_NAME[name] for name in QUICKLY_FOUND], AFTER_SEVERAL_RUNS),
)
def test_the_simulation_catches(mutation: Mutation) -> None:
    """A simulation that cannot fail shows nothing."""
    with mutation.active():
        for seed in range(FIRST, FIRST + MUTATION_SEEDS):
            try:
                simulate_replication(seed, STEPS, stage=mutation.stage)
            except ReplicationSimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", parameters(STAGED, IN_THE_LONG_RUN))
def test_the_simulation_catches_in_a_staged_fault(mutation: Mutation) -> None:
    """Runs without other faults are short, and most of them show the mistake."""
    with mutation.active():
        for seed in range(FIRST, FIRST + MUTATION_SEEDS):
            try:
                simulate_replication(seed, STAGED_STEPS, stage=mutation.stage)
            except ReplicationSimFailure:
                return
    pytest.fail(f"nothing noticed that {mutation.mistake}")


async def test_two_full_disks_in_a_row_leave_room(autojump_clock: object) -> None:
    """A machine whose disk is filled again while it is full has room when both faults are over."""
    sim = ReplicationSim(FIRST)
    machine = sim.machines[1]
    del machine.disks[1:]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.faults._keep_full, machine, 2.0)
        await trio.sleep(1.0)
        nursery.start_soon(sim.faults._keep_full, machine, 2.0)
    assert [disk.capacity for disk in machine.disks] == [PLENTY] * len(machine.disks)


async def test_suspended_machine_stands_still_and_resumes(autojump_clock: object) -> None:
    """The world goes on meanwhile: afterwards its clock is behind by the suspension."""
    sim = ReplicationSim(FIRST)
    machine, began_at = sim.machines[1], trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.faults.leases._suspend, machine, 20.0)
        await trio.sleep(15.0)
        assert machine.is_paused
        assert machine.clock.now() == began_at
    assert not machine.is_paused
    assert machine.clock.now() == began_at
    assert machine.clock.suspended_s() == pytest.approx(20.0)


async def test_machine_that_all_faults_have_left_is_not_resumed_again(
    autojump_clock: object,
) -> None:
    sim = ReplicationSim(FIRST)
    machine = sim.machines[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.faults.leases._suspend, machine, 20.0)
        await trio.sleep(5.0)
        sim.faults.mend_all()
    assert machine.clock.suspended_s() == pytest.approx(5.0)


@pytest.mark.long
@pytest.mark.slow
def test_same_seed_has_the_same_course() -> None:
    """Invariant 110: a failure can be had again from its seed."""

    def course(seed: int) -> tuple[list[str], int]:
        sim: ReplicationSim = simulate_replication(seed, 1)
        return list(sim.trace), sim.events

    assert course(FIRST) == course(FIRST)
