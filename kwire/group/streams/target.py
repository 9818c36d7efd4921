"""The target assignment of a streams group: the tasks that each member should get."""

from collections.abc import Generator, Mapping
from typing import TypeAlias

from kwire.group.kind_tables import KindTables
from kwire.group.streams.assignor import TaskMember, TaskPlan, assign_sticky
from kwire.group.streams.configuration import Configuration
from kwire.group.streams.model import StreamsGroup, StreamsMember
from kwire.group.streams.settings import StreamsSettings
from kwire.group.streams.tasks import TaskSet
from kwire.group.streams.topology import Topology

Targets = dict[str, TaskSet]
"""The tasks that each member should get, by member id."""

NO_TASKS = TaskSet()


def computing(
    group: StreamsGroup,
    changes: Mapping[str, StreamsMember],
    topology: Topology,
    configuration: Configuration,
    standby_count: int,
) -> Generator[None, None, Targets]:
    """Compute the target of all members; ``changes`` are the current decision's.

    The group is read only before the first yield. Yields after each small piece of work. While the
    topology is not ready, no member gets tasks.
    """
    members = {**group.members, **changes}
    targets = dict(group.target)
    yield
    if not configuration.is_ready:
        return dict.fromkeys(members, NO_TASKS)
    task_members = []
    for member_id, member in members.items():
        current = targets.get(member_id, NO_TASKS)
        task_members.append(TaskMember(member_id, member.process_id, current))
        yield
    subtopologies = topology.subtopologies.items()
    stateful = frozenset(i for i, each in subtopologies if each.state_changelog_topics)
    plan = TaskPlan(configuration.task_counts, stateful, standby_count)
    return (yield from assign_sticky(task_members, plan))


def target_size(group: StreamsGroup, configuration: Configuration, standby_count: int) -> int:
    """Return how many members and tasks the target of a group has."""
    tasks = sum(configuration.task_counts.values())
    return len(group.members) + tasks * (1 + standby_count)


StreamsTables: TypeAlias = KindTables[StreamsGroup, TaskSet, StreamsSettings]
"""The streams groups of one partition of `__consumer_offsets`."""
