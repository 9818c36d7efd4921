"""Faults that a test injects: which requests of clients fail, how often, and how.

Pure. Rules: the oldest fault that matches a request and is not used up applies, and no other. A
fault for a topic or a partition affects only that one, even if a request names others too. If a
fault has not happened as often as the test wanted, that is an error at the end of the test, because
the test did not test what it claims to.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Final, Literal, NamedTuple, TypedDict, Unpack

import attrs

from kwire.codec.apis import BY_NAME
from kwire.errors import BY_CODE, KafkaError, kafka_name
from kwire.testing.arguments import check_number, check_text, check_whole
from kwire.testing.errors import BrokerError, WrongArgument

_BY_NAME: Final = {kafka_name(error): error for error in BY_CODE.values()}
_WITH_RECORDS: Final = ("Produce", "Fetch")
_CONDITIONS: Final[Mapping[str, Callable[[str, object], None]]] = {
    "topic": check_text,
    "partition": check_whole,
    "group": check_text,
    "client_id": check_text,
    "node": check_whole,
    "times": check_whole,
}
"""The checks of the fields that may also be None."""


class Subjects(NamedTuple):
    """The partitions and groups that a request names."""

    partitions: frozenset[tuple[str, int | None]] = frozenset()
    """Topics with the index of a partition, or None where a request names a topic as a whole."""
    groups: frozenset[str] = frozenset()


Action = Literal["fail", "delay", "drop", "cut", "throttle", "duplicate", "corrupt"]


@attrs.define(kw_only=True, eq=False)
class Fault:
    """A fault for one kind of request; the methods of :class:`Faults` create it.

    :class:`Conditions` describes the fields from ``topic`` to ``times``.
    """

    id: int = 0
    """The number of the fault among those of its broker, from 1."""
    action: Action
    api: str
    error: type[KafkaError] | None = None
    """The error of the response, if the action is to fail."""
    seconds: float = 0.0
    """The length of a delay or of the throttle time."""
    after: bool = False
    """True if a connection drops after the request's effect."""
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None
    node: int | None = None
    nth: int = 1
    times: int | None = 1
    match_count: int = 0
    hit_count: int = 0
    """The number of requests to which the fault has applied."""

    def __str__(self) -> str:
        names = ("topic", "partition", "group", "client_id", "node")
        where = [f"{n}={v}" for n in names if (v := getattr(self, n)) is not None]
        times = "" if self.times is None else f" of {self.times}"
        happened = f"(happened {self.hit_count}{times} times)"
        return f"{self.action} {' '.join([self.api, *where])} {happened}"

    @property
    def needs_subjects(self) -> bool:
        """True if the body of a request decides whether the fault applies."""
        return (self.topic, self.partition, self.group) != (None, None, None)

    @property
    def is_used_up(self) -> bool:
        return self.times is not None and self.hit_count >= self.times

    @property
    def is_unused(self) -> bool:
        """True if the fault happened less often than the test wanted, which is at least once."""
        return self.hit_count < (self.times or 1)

    def names(self, api: str, client_id: str, node: int) -> bool:
        """Return whether a request's header matches."""
        return (
            self.api == api
            and self.client_id in (None, client_id)
            and self.node in (None, node)
            and not self.is_used_up
        )

    def concerns(self, subjects: Subjects) -> bool:
        """Return whether a request's body matches."""
        if self.group is not None and self.group not in subjects.groups:
            return False
        if not self.has_partitions:
            return True
        return any(self.picks(topic, index) for topic, index in subjects.partitions)

    @property
    def has_partitions(self) -> bool:
        """True if the fault affects only certain topics or partitions."""
        return (self.topic, self.partition) != (None, None)

    def picks(self, topic: str, index: int | None) -> bool:
        """Return whether the fault affects this partition; None stands for the whole topic."""
        return self.topic in (None, topic) and self.partition in (None, index)

    def take(self) -> bool:
        """Count a matching request; return whether the fault applies to it."""
        self.match_count += 1
        if self.match_count < self.nth:
            return False
        self.hit_count += 1
        return True

    def give_back(self) -> None:
        """Undo the last :meth:`take`, because the request had nothing to corrupt."""
        self.match_count -= 1
        self.hit_count -= 1


class Conditions(TypedDict, total=False):
    """The requests that a fault applies to: all conditions must hold, and each is optional."""

    topic: str
    partition: int
    group: str
    client_id: str
    node: int
    nth: int
    """The first matching request to which the fault applies, counted from 1; 1 by default."""
    times: int | None
    """The number of requests affected, 1 by default; None for all from the ``nth`` onwards."""


@attrs.define(eq=False, repr=False)
class Faults:
    """The faults of one test broker for its clients' requests; see :class:`Conditions`."""

    faults: list[Fault] = attrs.field(factory=list)
    """The faults in the order in which they were arranged, including used ones."""

    _ids: "count[int]" = attrs.field(factory=lambda: count(1))

    def fail(self, api: str, error: str, **conditions: Unpack[Conditions]) -> Fault:
        """Answer requests with an error and do not carry them out.

        ``error`` is Kafka's name, such as NOT_LEADER_OR_FOLLOWER. If the conditions name a topic or
        a partition, only that one fails, even if a request names others too, provided that the API
        has an error code for each.
        """
        check_text("error", error)
        if error not in _BY_NAME:
            hint = _hint(error, _BY_NAME) or ", such as REQUEST_TIMED_OUT"
            raise WrongArgument(f"{error} is not one of Kafka's errors{hint}")
        return self._add(Fault(action="fail", api=api, error=_BY_NAME[error], **conditions))

    def delay(self, api: str, seconds: float, **conditions: Unpack[Conditions]) -> Fault:
        """Carry requests out ``seconds`` later; later requests of the connection also wait."""
        return self._add(Fault(action="delay", api=api, seconds=_time(seconds), **conditions))

    def drop(self, api: str, *, after: bool = False, **conditions: Unpack[Conditions]) -> Fault:
        """Close the connection instead of answering.

        With ``after``, the request is carried out first, so a client that retries repeats its
        effect.
        """
        return self._add(Fault(action="drop", api=api, after=after, **conditions))

    def cut(self, api: str, **conditions: Unpack[Conditions]) -> Fault:
        """Carry requests out, send half of the response, and close the connection."""
        return self._add(Fault(action="cut", api=api, **conditions))

    def throttle(self, api: str, seconds: float, **conditions: Unpack[Conditions]) -> Fault:
        """Carry requests out and answer with a throttle time, as if a quota were exceeded.

        The broker does not read from the connection during this time.
        """
        return self._add(Fault(action="throttle", api=api, seconds=_time(seconds), **conditions))

    def duplicate(self, api: str, **conditions: Unpack[Conditions]) -> Fault:
        """Carry requests out twice and send the second answer."""
        return self._add(Fault(action="duplicate", api=api, **conditions))

    def corrupt(self, api: str, **conditions: Unpack[Conditions]) -> Fault:
        """Flip a bit in the records of a Produce request or of the response to a Fetch.

        A Fetch whose response has no records of these partitions is not counted.
        """
        if api not in _WITH_RECORDS:
            raise WrongArgument(
                f"{api} has no records to corrupt; {' and '.join(_WITH_RECORDS)} do"
            )
        return self._add(Fault(action="corrupt", api=api, **conditions))

    def _add(self, fault: Fault) -> Fault:
        check_api(fault.api)
        check_whole("nth", fault.nth)
        for name, check in _CONDITIONS.items():
            if (value := getattr(fault, name)) is not None:
                check(name, value)
        if fault.nth < 1:
            raise WrongArgument(f"nth={fault.nth}: requests are counted from 1")
        if fault.times is not None and fault.times < 1:
            raise WrongArgument(
                f"times={fault.times}: a fault happens once or more; None (in JSON null) is always"
            )
        fault.id = next(self._ids)
        self.faults.append(fault)
        return fault

    def remove(self, fault_id: int) -> Fault:
        """Remove one fault, whether or not it has happened; return it."""
        for fault in self.faults:
            if fault.id == fault_id:
                self.faults.remove(fault)
                return fault
        raise BrokerError(f"there is no fault {fault_id}")

    def choose(
        self, api: str, client_id: str, node: int, subjects: Callable[[], Subjects]
    ) -> Fault | None:
        """Return the fault that applies to a request, and count it; None if none applies.

        ``subjects`` reads the body of the request, which only some faults need.
        """
        named: Subjects | None = None
        for fault in self.faults:
            if not fault.names(api, client_id, node):
                continue
            if fault.needs_subjects:
                named = subjects() if named is None else named
                if not fault.concerns(named):
                    continue
            if fault.take():
                return fault
        return None

    def clear(self) -> None:
        """Remove all faults, whether or not they have happened."""
        self.faults = []

    def check(self) -> None:
        """Remove all faults; raise BrokerError if one has not happened as often as wanted."""
        unused = [str(fault) for fault in self.faults if fault.is_unused]
        self.clear()
        if unused:
            raise BrokerError(f"faults that did not happen: {'; '.join(unused)}")


def check_api(api: str) -> None:
    """Raise WrongArgument unless Kafka has an API with this name."""
    check_text("api", api)
    if api not in BY_NAME:
        hint = _hint(api, BY_NAME) or ", such as Produce or Fetch"
        raise WrongArgument(f"{api} is not one of Kafka's APIs{hint}")


def _hint(name: str, names: Collection[str]) -> str:
    """Return a question with the most similar of ``names``; empty if none is similar."""
    import difflib

    nearest = difflib.get_close_matches(name, sorted(names), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _time(seconds: float) -> float:
    check_number("seconds", seconds)
    if not 0 <= seconds < 1 << 20:
        raise WrongArgument(f"{seconds} is not a time in seconds from 0 to {1 << 20}")
    return seconds
