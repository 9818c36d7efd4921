"""The tasks of a streams group: who should get them, and which processes have them.

At most one process has a task as an active task; several may have it as a standby or warm-up task.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

Tasks = Mapping[str, frozenset[int]]
"""Tasks as partition numbers, by subtopology id."""
EpochTasks = Mapping[str, Mapping[int, int]]
"""Tasks by subtopology id, each with the epoch in which it was assigned to its member."""

NO_EPOCH: Final = -1
NO_TASKS: Final[Tasks] = {}
NO_EPOCH_TASKS: Final[EpochTasks] = {}
_Processes = dict[str, dict[int, set[str]]]


class TaskSet(NamedTuple):
    """The tasks that a member should get, by role."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS


class OwnedTasks(NamedTuple):
    """The tasks that a member has, or has to give up, by role."""

    active: EpochTasks = NO_EPOCH_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    def overlaps(self, tasks: TaskSet) -> bool:
        """Return whether any of these tasks is among ``tasks``, in the same role."""
        return any(
            not tasks_of_role[i].isdisjoint(numbers)
            for owned, tasks_of_role in zip(self, tasks, strict=True)
            for i, numbers in owned.items()
            if i in tasks_of_role
        )


NOTHING: Final = OwnedTasks()


@attrs.define(eq=False, repr=False)
class TaskOwners:
    """The processes of all members' tasks, including the tasks that members have to give up."""

    _active: dict[str, dict[int, str]] = attrs.field(factory=dict)
    _standby: _Processes = attrs.field(factory=dict)
    _warmup: _Processes = attrs.field(factory=dict)

    def active_process(self, subtopology_id: str, number: int) -> str | None:
        """Return the process that has an active task; None if the task is free."""
        return self._active.get(subtopology_id, {}).get(number)

    def has_copy(self, process_id: str, subtopology_id: str, number: int) -> bool:
        """Return whether a process has a task as a standby or warm-up task."""
        return any(
            process_id in processes.get(subtopology_id, {}).get(number, ())
            for processes in (self._standby, self._warmup)
        )

    def add(self, process_id: str, *owned: OwnedTasks) -> None:
        """Add the tasks of a member of this process."""
        for tasks in owned:
            for subtopology_id, numbers in tasks.active.items():
                of_subtopology = self._active.setdefault(subtopology_id, {})
                of_subtopology.update(dict.fromkeys(numbers, process_id))
            _add(self._standby, tasks.standby, process_id)
            _add(self._warmup, tasks.warmup, process_id)

    def remove(self, process_id: str, *owned: OwnedTasks) -> None:
        """Remove the tasks of a member, except those that another process has now.

        The replay of a compacted log may apply the records of two members in the other order.
        """
        for tasks in owned:
            for subtopology_id, numbers in tasks.active.items():
                of_subtopology = self._active.get(subtopology_id, {})
                for number in numbers:
                    if of_subtopology.get(number) == process_id:
                        del of_subtopology[number]
            _remove(self._standby, tasks.standby, process_id)
            _remove(self._warmup, tasks.warmup, process_id)


def _add(processes: _Processes, tasks: Tasks, process_id: str) -> None:
    for subtopology_id, numbers in tasks.items():
        of_subtopology = processes.setdefault(subtopology_id, {})
        for number in numbers:
            of_subtopology.setdefault(number, set()).add(process_id)


def _remove(processes: _Processes, tasks: Tasks, process_id: str) -> None:
    for subtopology_id, numbers in tasks.items():
        of_subtopology: Mapping[int, set[str]] = processes.get(subtopology_id, {})
        for number in numbers:
            of_subtopology.get(number, set()).discard(process_id)
