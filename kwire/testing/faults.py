"""Faults that a test arranges: which requests of clients go wrong, how often, and how.

Pure. Rules: the oldest fault that matches a request and is not used up applies, and no other. A
fault that has not happened as often as the test wanted is an error at the end of the test, because
the test has not tested what it says.
"""

from typing import Final, NamedTuple, TypedDict, Unpack

import attrs

from kwire.codec.apis import BY_NAME
from kwire.errors import BY_CODE, KafkaError, kafka_name
from kwire.testing.errors import BrokerError

_BY_NAME: Final = {kafka_name(error): error for error in BY_CODE.values()}


class Subjects(NamedTuple):
    """The partitions and groups that a request names."""

    partitions: frozenset[tuple[str, int | None]] = frozenset()
    """Topics with the index of a partition; None where a request names a topic as a whole."""
    groups: frozenset[str] = frozenset()


@attrs.define(kw_only=True, eq=False)
class Fault:
    """One kind of request that goes wrong; created by the methods of :class:`Faults`.

    :class:`Conditions` describes the fields from ``topic`` to ``times``.
    """

    api: str
    error: type[KafkaError] | None = None
    """The error of the response; None for a fault of another kind."""
    delay_s: float = 0.0
    drops: str = ""
    """``before`` or ``after`` the request's effect; empty if the connection stays open."""
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None
    node: int | None = None
    nth: int = 1
    times: int | None = 1
    match_count: int = 0
    hit_count: int = 0
    """The number of requests that went wrong so far."""

    def __str__(self) -> str:
        names = ("topic", "partition", "group", "client_id", "node")
        where = [f"{n}={v}" for n in names if (v := getattr(self, n)) is not None]
        what = "fail" if self.error is not None else "drop" if self.drops else "delay"
        times = "" if self.times is None else f" of {self.times}"
        return f"{what} {' '.join([self.api, *where])} (happened {self.hit_count}{times} times)"

    @property
    def needs_subjects(self) -> bool:
        """True if the body of a request decides whether the fault applies."""
        return (self.topic, self.partition, self.group) != (None, None, None)

    @property
    def is_used_up(self) -> bool:
        return self.times is not None and self.hit_count >= self.times

    @property
    def is_unused(self) -> bool:
        """True if it has not happened as often as the test wanted; at least once."""
        return self.hit_count < (self.times or 1)

    def names(self, api: str, client_id: str, node: int) -> bool:
        """Return whether the header of a request matches."""
        return (
            self.api == api
            and self.client_id in (None, client_id)
            and self.node in (None, node)
            and not self.is_used_up
        )

    def concerns(self, subjects: Subjects) -> bool:
        """Return whether the body of a request matches."""
        if self.group is not None and self.group not in subjects.groups:
            return False
        if self.topic is None and self.partition is None:
            return True
        return any(
            self.topic in (None, topic) and self.partition in (None, index)
            for topic, index in subjects.partitions
        )

    def take(self) -> bool:
        """Count a matching request; return whether it goes wrong."""
        self.match_count += 1
        if self.match_count < self.nth:
            return False
        self.hit_count += 1
        return True


class Conditions(TypedDict, total=False):
    """The requests that a fault is about: all conditions must hold, and each may be left out."""

    topic: str
    partition: int
    group: str
    client_id: str
    node: int
    nth: int
    """The first matching request that goes wrong, counted from 1; 1 by default."""
    times: int | None
    """The number of requests that go wrong, 1 by default; None for all from the ``nth`` on."""


@attrs.define(eq=False, repr=False)
class Faults:
    """The faults of one test broker, for its clients' requests; see :class:`Conditions`."""

    faults: list[Fault] = attrs.field(factory=list)
    """The faults in the order of their arrangement, including used ones."""

    def fail(self, api: str, error: str, **conditions: Unpack[Conditions]) -> Fault:
        """Answer requests with an error and do not carry them out.

        ``error`` is Kafka's name, as NOT_LEADER_OR_FOLLOWER. The whole request fails, also for the
        other partitions that it names.
        """
        if error not in _BY_NAME:
            raise BrokerError(f"{error} is not one of Kafka's errors, such as REQUEST_TIMED_OUT")
        return self._add(Fault(api=api, error=_BY_NAME[error], **conditions))

    def delay(self, api: str, seconds: float, **conditions: Unpack[Conditions]) -> Fault:
        """Carry requests out ``seconds`` later; the connection's later requests wait behind."""
        return self._add(Fault(api=api, delay_s=seconds, **conditions))

    def drop(self, api: str, *, after: bool = False, **conditions: Unpack[Conditions]) -> Fault:
        """Close the connection instead of answering.

        With ``after`` the request is carried out before that, so that a client that repeats it
        repeats what has happened.
        """
        drops = "after" if after else "before"
        return self._add(Fault(api=api, drops=drops, **conditions))

    def _add(self, fault: Fault) -> Fault:
        if fault.api not in BY_NAME:
            raise BrokerError(f"{fault.api} is not one of Kafka's APIs, such as Produce or Fetch")
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults, whether or not they have happened."""
        self.faults = []

    def check(self) -> None:
        """Remove all faults; raise BrokerError if one has not happened as often as wanted."""
        unused = [str(fault) for fault in self.faults if fault.is_unused]
        self.clear()
        if unused:
            raise BrokerError(f"faults that did not happen: {'; '.join(unused)}")
