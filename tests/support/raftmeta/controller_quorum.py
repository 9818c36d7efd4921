"""A quorum that serves a recorded metadata log, and the clock of the recording."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from kwire import errors
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.records import pack
from tests.support.raftmeta.controller_log import Entry

AHEAD: Final = 60
"""Requests that were under way together may have been written in another order."""
PROMPT: Final = (0.0, 150.0)
"""Kafka's leader collects for 25 ms what it writes; the machine was busy."""


@attrs.define(eq=False)
class ReplayClock:
    """The time of the replay."""

    t: float = 0.0
    began: float = 0.0

    def now(self) -> float:
        return self.t / 1000

    def now_ms(self) -> int:
        return int(self.began + self.t)


@attrs.define(eq=False)
class RecordedQuorum:
    """The quorum as the recording has it: what is appended must come next in its log."""

    log: list[Entry]
    publisher: MetadataPublisher
    clock: ReplayClock
    lost_from: float
    """The records from here on were never committed."""
    place: int = 0
    """The next entry of the log."""
    describe: Callable[[DescribeQuorumRequest], DescribeQuorumResponse] = attrs.field(init=False)
    unseen: bool = False
    is_alone: bool = False
    who: LeaderAndEpoch = attrs.field(factory=lambda: LeaderAndEpoch(None, 0))
    compared: Counter[str] = attrs.field(factory=Counter)
    within: tuple[float, float] = PROMPT
    """Milliseconds after which the recorded controller may have written what is written now."""
    reordered: bool = False
    wrong: list[Any] = attrs.field(factory=list)
    _waiting: list[Commit] = attrs.field(factory=list)
    voters_listeners: list[Callable[[], None]] = attrs.field(factory=list)
    _listeners: list[Any] = attrs.field(factory=list)

    def add_record_listener(self, listener: Any) -> None:
        """Ignore the listener: the replay publishes nothing itself."""

    def add_leadership_listener(self, listener: Any) -> None:
        self._listeners.append(listener)

    def leader(self) -> LeaderAndEpoch:
        return self.who

    def may_be_replaced(self, now: float) -> bool:
        """Return False: the recorded leaders were followed by a majority."""
        return False

    @property
    def next_offset(self) -> int:
        if self.place < len(self.log):
            return self.log[self.place].offset
        return self.log[-1].offset + 1 if self.log else 0

    async def handle(
        self, request: DescribeQuorumRequest, listener: str = ""
    ) -> DescribeQuorumResponse:
        return self.describe(request)

    def lead(self, who: LeaderAndEpoch) -> None:
        """Set the leader, if any; what was not committed is then uncertain."""
        self.who = who
        waiting, self._waiting = self._waiting, []
        for listener in self._listeners:
            listener.on_leadership(who)
        for commit in waiting:
            commit.complete(errors.NotController())  # as the quorum does

    def append_nowait(
        self, decided: Sequence[Any], epoch: int, level: int, packed: object = None
    ) -> Commit:
        """Take the decided records from the recorded log, perhaps after those of others."""
        base = self.next_offset
        values = [pack(record, level) for record in decided]
        if self.unseen:
            self.log += [Entry(base + n, epoch, value, 0) for n, value in enumerate(values)]
        ahead = self.log[self.place : self.place + AHEAD]
        ahead_values = [entry.value for entry in ahead]
        if any(values.count(value) > ahead_values.count(value) for value in values):
            recorded = [entry.record for entry in ahead[: len(values)]]
            self.wrong.append(("records", recorded, list(decided)))
            return self._finish_commit(Commit(base, base, epoch))
        taken = [ahead[ahead_values.index(value)] for value in values]
        in_order = sorted(taken, key=lambda entry: entry.offset)
        if [entry.kind for entry in taken] != [entry.kind for entry in in_order]:
            self.wrong.append(("order", [entry.record for entry in in_order], list(decided)))
        if not self.unseen:
            self._check_time(taken)
        self.reordered |= taken != in_order
        for entry in taken:
            self.log.remove(entry)
            self.log.insert(self.place, entry)
            self._on_entry(entry)
            self.compared["record"] += 1
        commit = Commit(base, taken[-1].offset, epoch)
        if taken[-1].offset >= self.lost_from:
            self._waiting.append(commit)
            return commit
        return self._finish_commit(commit)

    def _check_time(self, entries: list[Entry]) -> None:
        least, most = self.within
        for entry in entries:
            after = entry.stamp - self.clock.began - self.clock.t
            if not least <= after <= most:
                self.wrong.append(("written at another time", after, entry.record))

    def _finish_commit(self, commit: Commit) -> Commit:
        commit.complete()
        return commit

    def _on_entry(self, entry: Entry) -> None:
        """The next entry is known here, and published if it is ever committed."""
        self.place += 1
        if entry.offset < self.lost_from:
            self.publisher.on_commit([entry.batch])

    def skip(self) -> Entry:
        """Take the next entry as it is recorded."""
        entry = self.log[self.place]
        self._on_entry(entry)
        return entry
