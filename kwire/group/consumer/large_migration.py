"""Changes of the protocol of large groups, built in slices as further steps of a decision.

The group's other requests run between the steps. The change is installed as one decision, with one
batch, if the group has not changed since it was read; otherwise the change is decided again. After
a few attempts, the change is built and installed in one decision, so that even a group that changes
constantly can change its protocol.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import attrs

from kwire.coordinator.decision import NOTHING, Decision, Moment, Record, Step, Timer
from kwire.coordinator.draft import Draft
from kwire.errors import KafkaError
from kwire.group.consumer import fencing, migration
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember
from kwire.group.consumer.target import ConsumerTables
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.model import ProtocolChange

_MEMBERS_AT_ONCE: Final = 100
"""The largest group whose protocol is changed within one decision, which takes 10 ms."""
_ATTEMPTS_MAX: Final = 3
_ITEMS_A_STEP: Final = 16
_TIMERS_A_STEP: Final = 64


class Change(Protocol):
    """A change of a group's protocol that has been built."""

    @property
    def records(self) -> list[Record]: ...


C = TypeVar("C", bound=Change)


def is_large(member_count: int, attempts: int) -> bool:
    """Return whether to build a change in slices; ``attempts`` counts the failed attempts."""
    return member_count > _MEMBERS_AT_ONCE and attempts < _ATTEMPTS_MAX


@attrs.define(eq=False, repr=False)
class LargeMigration(Generic[C]):
    """One change of a large group's protocol, as steps."""

    tables: ConsumerTables
    group_id: str
    ticket: int
    """The request that waits for the change; -1 if there is none."""
    build: Callable[[Moment], Generator[None, None, C]]
    """Builds the change from the group as it is now; yields after each member."""
    is_current: Callable[[], bool]
    """Returns whether the group has not changed since the change was built from it."""
    install: Callable[[C, Draft[ProtocolChange], Moment], Decision]
    """Returns the decision that writes the draft with the change's records."""
    again: Callable[[Moment], Decision]
    """Makes the decision again, because the group has changed."""
    _work: Generator[None, None, tuple[C, Draft[ProtocolChange]]] | None = None
    _built: tuple[C, Draft[ProtocolChange]] | None = None
    """The change, once it is built; the next step installs it, in its own turn."""
    _is_done: bool = False

    def steps(self) -> Iterator[Step]:
        """Yield steps until the change is installed, or decided again."""
        while not self._is_done:
            yield self._step

    def _step(self, moment: Moment) -> Decision:
        try:
            return self._advance(moment)
        except KafkaError as error:
            self._is_done = True
            if self.ticket < 0:
                raise
            return self._refuse(error, moment)

    def _advance(self, moment: Moment) -> Decision:
        """Build the change for a few more members; the last step only installs the change."""
        built, self._built = self._built, None
        if not self.is_current():
            self._work, self._is_done = None, True
            return self.again(moment)
        if built is not None:
            self._is_done = True
            return self.install(*built, moment)
        if self._work is None:
            self._is_done = False  # A step that could not be written is repeated.
            self._work = self._encode(moment)
        try:
            for _ in range(_ITEMS_A_STEP):
                next(self._work)
        except StopIteration as end:
            self._work, self._built = None, end.value
        return NOTHING

    def _encode(self, moment: Moment) -> Generator[None, None, tuple[C, Draft[ProtocolChange]]]:
        change = yield from self.build(moment)
        draft = Draft(moment.wall_ms, ProtocolChange(self.group_id))
        for record in change.records:
            draft.add(*self.tables.store(record))
            yield
        return change, draft

    def _refuse(self, error: KafkaError, moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, self.tables.settings(), self.ticket)
        builder.refuse(error)
        return builder.build()


def large_downgrade(
    tables: ConsumerTables,
    builder: DecisionBuilder,
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    again: Callable[[Moment], Decision],
    joining: ConsumerMember | None = None,
    *,
    rebalances: bool = True,
) -> LargeMigration[migration.Downgrade]:
    """Return the steps after which the group is a classic group without these members.

    The builder has the other records and answers of the decision.
    """
    revision, earlier = group.revision, list(builder.records)

    def build(moment: Moment) -> Generator[None, None, migration.Downgrade]:
        change = yield from migration.downgrading(
            group, leaving, tables.topics(), joining, moment.wall_ms
        )
        return change._replace(records=[*earlier, *change.records])

    def is_current() -> bool:
        return tables.groups.get(group.group_id) is group and group.revision == revision

    def install(
        change: migration.Downgrade, draft: Draft[ProtocolChange], moment: Moment
    ) -> Decision:
        last = DecisionBuilder(moment, tables.settings(), builder.ticket)
        last.answers, last.timers = list(builder.answers), list(builder.timers)
        classic = migration.finish_downgrade(last, change, rebalances=rebalances)
        otherwise = partial(_stay, tables, builder.ticket, group, leaving)
        return last.build(classic)._replace(
            draft=draft, otherwise=otherwise, steps=_ending(change.timers)
        )

    return LargeMigration(tables, group.group_id, builder.ticket, build, is_current, install, again)


def _ending(timers: list[Timer]) -> Iterator[Step]:
    """Yield the steps that cancel the deadlines of the former consumer group."""
    for start in range(0, len(timers), _TIMERS_A_STEP):
        some = tuple(timers[start : start + _TIMERS_A_STEP])
        yield partial(_end, some)


def _end(timers: tuple[Timer, ...], moment: Moment) -> Decision:
    return Decision(timers=timers)


def _stay(
    tables: ConsumerTables,
    ticket: int,
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    error: KafkaError,
    moment: Moment,
) -> Decision:
    """Reject the request, or restart the sessions of fenced members: nothing was written."""
    builder = DecisionBuilder(moment, tables.settings(), ticket)
    if ticket >= 0:
        builder.refuse(error)
        return builder.build()
    settings = tables.settings_of(group.group_id)
    for member in leaving:
        fencing.start_session(builder, group.group_id, member, settings)
    return builder.build()
