"""The next tasks of one member, on its way to the target.

A member first gives up the tasks that the target takes away (UNREVOKED). Then it moves to the
target's epoch, gets the tasks that are free, and waits for tasks that others have not given up yet
(UNRELEASED). So an active task never has two owners, and a process never has a task twice. Each
function is pure and returns the member, unchanged if there is nothing to do.
"""

from collections.abc import Callable
from typing import NamedTuple

from kwire.errors import FencedMemberEpoch
from kwire.group.streams.model import MemberState, StreamsGroup, StreamsMember
from kwire.group.streams.tasks import OwnedTasks, Tasks, TaskSet


def reconcile(
    group: StreamsGroup,
    member: StreamsMember,
    target_epoch: int,
    target: TaskSet,
    owned: TaskSet | None,
) -> StreamsMember:
    """Return a member that has not reached its target, after one step towards it.

    ``owned`` are the tasks that the member claims to have; None if it does not say.
    """
    revoking_epoch = member.epoch
    match member.state:
        case MemberState.UNREVOKED:
            if owned is None or member.revoking.overlaps(owned):
                return member
            revoking_epoch += 1
        case MemberState.UNKNOWN:
            if owned is None or any(owned):
                raise FencedMemberEpoch(
                    "The streams group member is in a unknown state. The member must abandon all "
                    "its tasks and rejoin."
                )
            revoking_epoch = target_epoch
    return _advance(group, member, revoking_epoch, target_epoch, target, owned)


class _Difference(NamedTuple):
    """The difference between the tasks that a member has in one role, and its target."""

    same: Tasks
    lost: Tasks
    gained: Tasks
    waits: bool
    """True if some tasks of the target are not free yet."""


def _compare(current: Tasks, target: Tasks, is_taken: Callable[[str, int], bool]) -> _Difference:
    same: dict[str, frozenset[int]] = {}
    lost: dict[str, frozenset[int]] = {}
    gained: dict[str, frozenset[int]] = {}
    waits = False
    for i in {**dict.fromkeys(target), **dict.fromkeys(current)}:
        has, shall_have = current.get(i, frozenset[int]()), target.get(i, frozenset[int]())
        missing = shall_have - has
        free = frozenset(number for number in missing if not is_taken(i, number))
        waits = waits or len(free) < len(missing)
        for tasks, numbers in ((same, has & shall_have), (lost, has - shall_have), (gained, free)):
            if numbers:
                tasks[i] = numbers
    return _Difference(same, lost, gained, waits)


def _advance(
    group: StreamsGroup,
    member: StreamsMember,
    revoking_epoch: int,
    target_epoch: int,
    target: TaskSet,
    owned: TaskSet | None,
) -> StreamsMember:
    owners, process_id, assigned = group.owners, member.process_id, member.assigned

    def is_active_taken(i: str, number: int) -> bool:
        return owners.active_process(i, number) is not None or owners.has_copy(
            process_id, i, number
        )

    def is_copy_taken(i: str, number: int) -> bool:
        return owners.active_process(i, number) == process_id or owners.has_copy(
            process_id, i, number
        )

    active_now = {i: frozenset(epochs) for i, epochs in assigned.active.items()}
    active = _compare(active_now, target.active, is_active_taken)
    standby = _compare(assigned.standby, target.standby, is_copy_taken)
    warmup = _compare(assigned.warmup, target.warmup, is_copy_taken)
    kept_epochs = {
        i: {number: assigned.active[i][number] for number in numbers}
        for i, numbers in active.same.items()
    }
    lost_epochs = {
        i: {number: assigned.active[i][number] for number in numbers}
        for i, numbers in active.lost.items()
    }
    revoking = OwnedTasks(lost_epochs, standby.lost, warmup.lost)
    if any(revoking) and (owned is None or revoking.overlaps(owned)):
        return member.move_to(revoking_epoch)._replace(
            state=MemberState.UNREVOKED,
            assigned=OwnedTasks(kept_epochs, standby.same, warmup.same),
            revoking=revoking,
        )
    for i, numbers in active.gained.items():
        kept_epochs[i] = {**kept_epochs.get(i, {}), **dict.fromkeys(numbers, target_epoch)}
    waits = active.waits or standby.waits or warmup.waits
    return member.move_to(target_epoch)._replace(
        state=MemberState.UNRELEASED if waits else MemberState.STABLE,
        assigned=OwnedTasks(
            kept_epochs,
            _unite(standby.same, standby.gained),
            _unite(warmup.same, warmup.gained),
        ),
        revoking=OwnedTasks(),
    )


def _unite(first: Tasks, second: Tasks) -> Tasks:
    united = dict(first)
    for i, numbers in second.items():
        united[i] = united.get(i, frozenset()) | numbers
    return united
