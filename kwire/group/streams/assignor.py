"""The server's assignor `sticky`, which decides on the tasks of each member of a streams group.

Members keep their active tasks up to their quota; a task that loses its member goes to a member
that has it as a standby, otherwise to the process with the least load. A process's load is the
number of its tasks per member. Standby tasks of stateful subtopologies are then assigned in the
same way, but never to a process that already has the task.

The results are those of Apache Kafka's assignor, which visits members and processes in the order of
its hash tables and queues. It is a generator that yields after each small piece of work, so that a
large group is assigned in slices.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import attrs

from kwire.coordinator.partitioning import java_hash
from kwire.group.streams.java_queue import JavaQueue
from kwire.group.streams.tasks import TaskSet
from kwire.hash_order import listing

Task = tuple[str, int]
"""A subtopology's id and a partition number."""
Steps = Generator[None, None, dict[str, TaskSet]]

_TASKS_A_STEP: Final = 32


class TaskMember(NamedTuple):
    """A member, as the assignor sees it."""

    member_id: str
    process_id: str
    current: TaskSet
    """The member's tasks in the last target."""


class TaskPlan(NamedTuple):
    """The tasks to assign."""

    counts: Mapping[str, int]
    """By subtopology id, in the order of the ids."""
    stateful: frozenset[str]
    """The subtopologies that have state."""
    standby_count: int
    """The number of standby tasks of each stateful task."""


def assign_sticky(members: Sequence[TaskMember], plan: TaskPlan) -> Steps:
    """Assign all tasks; the steps return each member's tasks."""
    if not members:
        return {}
    by_id = {member.member_id: member for member in members}
    order = yield from listing(by_id, java_hash)
    processes = yield from _find_processes([by_id[member_id] for member_id in order])
    total = sum(plan.counts.values())
    copies = plan.standby_count * sum(plan.counts[i] for i in plan.stateful)
    assigning = _Assigning(
        processes,
        {member_id: by_id[member_id].process_id for member_id in order},
        _Quota(total, len(members)),
        _Quota(total + copies, len(members)),
    )
    yield from assigning.note_current([by_id[member_id] for member_id in order])
    yield from assigning.assign_active(
        [(i, n) for i, count in plan.counts.items() for n in range(count)]
    )
    if plan.standby_count:
        stateful = [(i, n) for i, c in plan.counts.items() if i in plan.stateful for n in range(c)]
        yield from assigning.assign_standby(stateful, plan.standby_count)
    return (yield from _results(order, assigning))


@attrs.define(eq=False, repr=False)
class _Process:
    """A process and its members' tasks."""

    members: list[str]
    """In the iteration order of Kafka's table."""
    counts: dict[str, int] = attrs.field(init=False)
    """The number of tasks of each member."""
    tasks: set[Task] = attrs.field(factory=set)
    added: int = 0
    _by_count: JavaQueue[str] | None = None
    """The members by their counts; None after a particular member was given a task."""

    def __attrs_post_init__(self) -> None:
        self.counts = dict.fromkeys(self.members, 0)

    @property
    def load(self) -> float:
        return self.added / len(self.members)

    def add(self, member_id: str, task: Task) -> int:
        """Give a task to a member; return the member's number of tasks."""
        self._by_count = None
        return self._add(member_id, task)

    def add_to_least_loaded(self, task: Task) -> tuple[str, int]:
        """Give a task to the member with the fewest; return the member and its number of tasks."""
        if self._by_count is None:
            self._by_count = JavaQueue(self.counts.__getitem__)
            self._by_count.add_all(self.members)
        member_id = self._by_count.pop()
        count = self._add(member_id, task)
        self._by_count.add(member_id)
        return member_id, count

    def _add(self, member_id: str, task: Task) -> int:
        self.tasks.add(task)
        self.added += 1
        self.counts[member_id] += 1
        return self.counts[member_id]


def _find_processes(
    members: Sequence[TaskMember],
) -> Generator[None, None, dict[str, _Process]]:
    """Return the processes of the members, in the iteration order of Kafka's table."""
    by_process: dict[str, list[str]] = {}
    for member in members:
        by_process.setdefault(member.process_id, []).append(member.member_id)
    buckets = 1 << (len(members) - 1).bit_length()
    order = yield from listing(by_process, java_hash, buckets)
    processes = {}
    for process_id in order:
        ids = yield from listing(by_process[process_id], java_hash)
        processes[process_id] = _Process(ids)
    return processes


@attrs.define(eq=False, repr=False)
class _Quota:
    """The number of tasks that each member should get, updated while tasks are assigned."""

    task_count: int
    """The number of tasks of the members below the quota."""
    member_count: int
    """The number of members below the quota."""
    each: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._divide()

    def _divide(self) -> None:
        self.each = -(-self.task_count // self.member_count) if self.member_count else 0

    def note(self, count: int) -> None:
        """Record that a member now has ``count`` tasks."""
        if count == self.each:
            self.member_count -= 1
            self.task_count -= count
            self._divide()


@attrs.define(eq=False, repr=False)
class _Assigning:
    """The state of one assignment."""

    processes: Mapping[str, _Process]
    process_ids: Mapping[str, str]
    """Process ids by member id."""
    active_quota: _Quota
    quota: _Quota
    """The quota of active and standby tasks together."""
    active: dict[str, list[Task]] = attrs.field(factory=dict)
    standby: dict[str, list[Task]] = attrs.field(factory=dict)
    _former: dict[Task, str] = attrs.field(factory=dict)
    """The member that last had each active task."""
    _former_standbys: dict[Task, list[str]] = attrs.field(factory=dict)
    """The members that last had each standby task."""

    def note_current(self, members: Sequence[TaskMember]) -> Generator[None, None, None]:
        """Record the tasks that members had in the last target."""
        for member in members:
            for subtopology_id, numbers in member.current.active.items():
                for number in numbers:
                    self._former[subtopology_id, number] = member.member_id
            for subtopology_id, numbers in member.current.standby.items():
                for number in numbers:
                    standbys = self._former_standbys.setdefault((subtopology_id, number), [])
                    standbys.append(member.member_id)
            yield

    def _process_of(self, member_id: str) -> _Process:
        return self.processes[self.process_ids[member_id]]

    # Active tasks

    def assign_active(self, tasks: Iterable[Task]) -> Generator[None, None, None]:
        rest = sorted(tasks, key=lambda task: (task[1], task[0]))
        rest = yield from self._keep_active(rest, self._former.get)
        rest = yield from self._keep_active(rest, self._least_loaded_standby)
        queue: JavaQueue[_Process] = JavaQueue(lambda process: process.load)
        queue.add_all(self.processes.values())
        for index, task in enumerate(sorted(rest)):
            process = queue.pop()
            member_id, count = process.add_to_least_loaded(task)
            self._note_active(member_id, task, count)
            queue.add(process)
            if index % _TASKS_A_STEP == 0:
                yield

    def _keep_active(
        self, tasks: Sequence[Task], find: Callable[[Task], str | None]
    ) -> Generator[None, None, list[Task]]:
        """Give tasks to the members that ``find`` returns, up to their quota; return the rest."""
        rest = []
        for index, task in enumerate(tasks):
            member_id = find(task)
            if member_id is not None and self._count(member_id) < self.active_quota.each:
                count = self._process_of(member_id).add(member_id, task)
                self._note_active(member_id, task, count)
            else:
                rest.append(task)
            if index % _TASKS_A_STEP == 0:
                yield
        return rest

    def _note_active(self, member_id: str, task: Task, count: int) -> None:
        self.active.setdefault(member_id, []).append(task)
        self.active_quota.note(count)
        self.quota.note(count)

    def _count(self, member_id: str) -> int:
        return self._process_of(member_id).counts[member_id]

    def _least_loaded_standby(self, task: Task) -> str | None:
        return self._find_standby(task, is_new=False)

    def _find_standby(self, task: Task, *, is_new: bool) -> str | None:
        """Return the member with the least load among those that had a standby task.

        With ``is_new``, the member's process must not have the task already. As in Kafka, this is
        checked for the first of these members even if another one is chosen.
        """
        members = self._former_standbys.get(task)
        if not members:
            return None
        chosen = members[0]
        first = self._process_of(chosen)
        load, count = first.load, first.counts[chosen]
        for member_id in members[1:]:
            process = self._process_of(member_id)
            if (
                process.load < load
                and process.counts[member_id] < count
                and not (is_new and task in process.tasks)
            ):
                load, count, chosen = process.load, process.counts[member_id], member_id
        return None if is_new and task in first.tasks else chosen

    # Standby tasks

    def assign_standby(
        self, tasks: Iterable[Task], standby_count: int
    ) -> Generator[None, None, None]:
        missing: list[tuple[Task, int]] = []
        ordered = sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True)
        for index, task in enumerate(ordered):
            count = 0
            while count < standby_count and (member_id := self._former_owner(task)) is not None:
                self._add_standby(member_id, task)
                count += 1
            missing.append((task, standby_count - count))
            if index % _TASKS_A_STEP == 0:
                yield
        queue: JavaQueue[_Process] = JavaQueue(lambda process: process.load)
        queue.add_all(self.processes.values())
        for index, (task, count) in enumerate(sorted(missing, reverse=True)):
            for _ in range(count):
                if not self._place_standby(queue, task):
                    break  # There are fewer processes than copies.
            if index % _TASKS_A_STEP == 0:
                yield

    def _former_owner(self, task: Task) -> str | None:
        """Return a member that previously had the task and may get it as a standby."""
        former = self._former.get(task)
        if former is not None and self._may_have_standby(former, task):
            return former
        former = self._find_standby(task, is_new=True)
        if former is not None and self._count(former) < self.quota.each:
            return former
        return None

    def _may_have_standby(self, member_id: str, task: Task) -> bool:
        process = self._process_of(member_id)
        return task not in process.tasks and process.counts[member_id] < self.quota.each

    def _add_standby(self, member_id: str, task: Task) -> None:
        count = self._process_of(member_id).add(member_id, task)
        self.standby.setdefault(member_id, []).append(task)
        self.quota.note(count)

    def _place_standby(self, queue: JavaQueue[_Process], task: Task) -> bool:
        """Give a standby task to the process with the least load that does not have the task."""
        visited: list[_Process] = []
        is_placed = False
        while len(queue) and not is_placed:
            process = queue.pop()
            visited.append(process)
            if task not in process.tasks:
                member_id, count = process.add_to_least_loaded(task)
                self.standby.setdefault(member_id, []).append(task)
                self.quota.note(count)
                is_placed = True
        queue.add_all(reversed(visited))
        return is_placed


def _results(order: Sequence[str], assigning: _Assigning) -> Steps:
    """Return the tasks of all members."""
    results = {}
    for member_id in order:
        active, standby = assigning.active.get(member_id, ()), assigning.standby.get(member_id, ())
        results[member_id] = TaskSet(_by_subtopology(active), _by_subtopology(standby))
        yield
    return results


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, frozenset[int]]:
    numbers: dict[str, set[int]] = {}
    for subtopology_id, number in tasks:
        numbers.setdefault(subtopology_id, set()).add(number)
    return {subtopology_id: frozenset(each) for subtopology_id, each in numbers.items()}
