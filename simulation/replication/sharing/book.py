"""The grants and acknowledgements of a share group (KIP-932), and the rules for them.

The book sees each response when the leader makes it, also one that does not arrive. That happens
on the leader's machine, whose clock stands still while it is suspended: all times here are times of
the world. Invariants 72 and 75 are checked with each of them:

* A record is held by one member at a time. The first one holds it until the leader's lock for it
  may have ended, the member has sent an acknowledgement, or its connection may be closed.
* An accepted or rejected record is not delivered again after the member has got the response.
* A delivery count grows with each delivery by the same leader, and never falls below what is
  stored: a released record has its count after a failover too.
* An acknowledgement is accepted if the member holds the records, and only then.

After a failover, the next leader may deliver a record whose lock the former leader has not ended:
locks are not stored, as in Kafka. So grants of different leaders are not compared.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import attrs

from kwire import errors
from kwire.share.keys import SharePartition
from kwire.share.led_share import LedShare
from kwire.share.runs import RecordState
from simulation.replication.checks import TOPIC
from simulation.replication.clients import World
from simulation.replication.history import Outcome, demand
from simulation.replication.processes import world_time
from simulation.replication.sharing.links import MemberConnection
from simulation.share_rules import Acknowledgement, Delivery, Kind, find_late, share_group_anomalies
from simulation.share_rules import Outcome as Result
from simulation.share_rules import Record as Place

GROUP: Final = "sharing"
LOCK_S: Final = 4.0
DELIVERY_LIMIT: Final = 5
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
KINDS: Final[Mapping[int, Kind]] = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject"}
_REFUSED: Final = (errors.InvalidRecordState.code, errors.InvalidRequest.code)
"""The error codes of acknowledgements that certainly change nothing."""


@attrs.define(eq=False)
class Grant:
    """The delivery of a record to a member, by the leader that made it."""

    member_id: str
    node: int
    led: LedShare | None
    """The leader's share partition; None if it has ended meanwhile."""
    count: int
    lock_end: float
    """The earliest time at which the lock may end."""
    is_held: bool = True
    """False once the member may have given the record up."""

    def holds(self, led: LedShare | None) -> bool:
        """Return whether the member certainly holds the record now, at this leader."""
        return self.is_held and self.led is led is not None and world_time() < self.lock_end


@attrs.define(eq=False)
class Record:
    """One offset of a share partition."""

    last: Grant | None = None
    highest: int = 0
    """The highest delivery count so far."""
    stored: int = 0
    """The highest delivery count that a leader has stored, and has not archived."""
    stored_at: float = inf
    deliveries: list[Delivery] = attrs.field(factory=list)
    acknowledgements: list[Acknowledgement] = attrs.field(factory=list)


@attrs.define(eq=False)
class Ask:
    """An acknowledgement of records of one partition, from its request on."""

    member_id: str
    index: int
    led: LedShare | None
    kinds: Mapping[int, int]
    """The types by offset."""
    is_sure: bool
    """True if the member certainly held all records."""
    foreign: Collection[int]
    """The offsets of records that the member certainly did not hold, and nobody has completed."""
    lock_end: float
    """The earliest time at which one of the locks may end."""
    sent_at: float
    places: Mapping[int, int]
    """By offset, the place of the acknowledgement among those of its record."""
    grants: Mapping[int, Grant | None]
    """By offset, the last grant before the request."""
    is_stored: bool = False
    """True once the leader has answered that the records of the member are stored."""


@attrs.define(eq=False)
class ShareBook:
    """The grants to the members of the group, and their acknowledgements."""

    world: World
    is_committed: bool
    """True if the group reads with read_committed."""
    records: list[dict[int, Record]] = attrs.field(init=False)
    """By partition, the records by offset."""
    lost_count: int = 0
    """The number of responses that a broker could not make after it had acquired records."""
    starts: dict[int, int] = attrs.field(factory=dict)
    """By partition, the largest start offset that a response has confirmed."""

    def __attrs_post_init__(self) -> None:
        self.records = [{} for _ in range(self.world.partition_count)]

    def record(self, index: int, offset: int) -> Record:
        return self.records[index].setdefault(offset, Record())

    def find_led(self, node: int, index: int) -> LedShare | None:
        """Return the share partition of a broker, if it leads the partition and has loaded it."""
        server, topic = self.world.machines[node].server, self.world.books.image.topic(TOPIC)
        if server is None or server.broker is None or topic is None:
            return None
        key = SharePartition(GROUP, topic.id, index)
        return next((led for led in server.broker.shares.partitions() if led.key == key), None)

    # -- deliveries

    def on_granted(
        self,
        connection: MemberConnection,
        index: int,
        offsets: Iterable[tuple[int, int]],
        values: Mapping[int, bytes],
        sent_at: float,
    ) -> None:
        """Check a leader's response with acquired records: the offsets with their counts.

        If the member has closed its connection meanwhile, the leader may release them at once.
        """
        member_id, node = connection.member_id, connection.node
        led = self.find_led(node, index)
        for offset, count in offsets:
            record = self.record(index, offset)
            where = f"{index}/{offset}: delivery {count} to {member_id}"
            last = record.last
            if last is not None:
                demand(not last.holds(led), f"{where}, which {last.member_id} holds at {node}")
            if last is not None and last.led is led is not None:
                demand(count > last.count, f"{where} after delivery {last.count}")
            if sent_at > record.stored_at:
                demand(count > record.stored, f"{where}, {record.stored} are stored")
            most = record.highest + 1 + self.lost_count
            demand(count <= most, f"{where}, {record.highest} were made before")
            demand(count <= DELIVERY_LIMIT, f"{where}, of at most {DELIVERY_LIMIT}")
            record.last = Grant(
                member_id, node, led, count, sent_at + LOCK_S, is_held=not connection.is_closed
            )
            record.highest = max(record.highest, count)
            if offset in values:
                self._deliver(index, offset, values[offset], member_id, count, sent_at)

    def _deliver(
        self, index: int, offset: int, value: bytes, member_id: str, count: int, sent_at: float
    ) -> None:
        history, record = self.world.history, self.record(index, offset)
        history.on_read(index, offset, value, is_committed=self.is_committed)
        place = (TOPIC, index), offset
        delivery = Delivery(member_id, place, value, count, sent_at, world_time())
        record.deliveries.append(delivery)
        if offset >= history.delete_end[index]:
            late = find_late([delivery], record.acknowledgements, 0)
            demand(not late, f"delivered after it was accepted: {late} {record.acknowledgements}")

    def on_left(self, member_id: str, node: int | None = None) -> None:
        """Note that a broker, or each one, may release the records of a member from now on."""
        for records in self.records:
            for record in records.values():
                last = record.last
                if last is not None and last.member_id == member_id and node in (None, last.node):
                    last.is_held = False

    # -- acknowledgements

    def ask(self, member_id: str, node: int, index: int, kinds: Mapping[int, int]) -> Ask:
        """Record an acknowledgement that is about to be sent; ``kinds``: the types by offset."""
        led, places, now = self.find_led(node, index), {}, world_time()
        records = {offset: self.record(index, offset) for offset in kinds}
        grants = {offset: record.last for offset, record in records.items()}
        is_sure = all(
            grant is not None and grant.member_id == member_id and grant.holds(led)
            for grant in grants.values()
        )
        foreign = [
            offset
            for offset in kinds
            if led is not None
            and is_foreign(led, offset, member_id)
            and not self._may_be_complete(index, offset)
        ]
        for offset, kind in kinds.items():
            grant, own = grants[offset], records[offset].acknowledgements
            if kind in KINDS:
                places[offset] = len(own)
                count = 0 if grant is None else grant.count
                own.append(
                    Acknowledgement(member_id, ((TOPIC, index), offset), KINDS[kind], count, now)
                )
            if kind != RENEW and grant is not None and grant.member_id == member_id:
                grant.is_held = False
        lock_end = min((grant.lock_end for grant in grants.values() if grant), default=now)
        return Ask(member_id, index, led, kinds, is_sure, foreign, lock_end, now, places, grants)

    def on_answered(self, ask: Ask, node: int, code: int) -> None:
        """Check a leader's response to an acknowledgement, which may not arrive."""
        index, led = ask.index, self.find_led(node, ask.index)
        is_sure = ask.is_sure and led is ask.led and world_time() < ask.lock_end
        what = f"{index}: {ask.member_id} acknowledges {dict(ask.kinds)}, answer {code}"
        if code != errors.NONE:
            demand(not (is_sure and code in _REFUSED), f"{what}, and holds the records")
            if code in _REFUSED:
                self._settle(ask, "failed")
            return
        for offset in ask.foreign if led is ask.led else ():
            is_unchanged = self.record(index, offset).last is ask.grants[offset]
            may_be_complete = self._may_be_complete(index, offset, ask)
            demand(not is_unchanged or may_be_complete, f"{what}, and does not hold {offset}")
        ask.is_stored = is_sure
        for offset, kind in ask.kinds.items() if is_sure else ():
            record, grant = self.record(index, offset), ask.grants[offset]
            assert grant is not None
            if kind == RENEW:
                grant.lock_end = max(grant.lock_end, ask.sent_at + LOCK_S)
            elif kind == RELEASE and grant.count >= record.stored:
                record.stored, record.stored_at = grant.count, world_time()

    def on_arrived(self, ask: Ask, code: int) -> None:
        """Take the leader's promise, because the response has arrived."""
        if code == errors.NONE and ask.is_stored:
            self._settle(ask, "ok")

    def _settle(self, ask: Ask, outcome: Result) -> None:
        for offset, place in ask.places.items():
            own = self.record(ask.index, offset).acknowledgements
            ended = world_time() if outcome == "ok" else inf
            own[place] = attrs.evolve(own[place], outcome=outcome, ended=ended)

    def _may_be_complete(self, index: int, offset: int, but: Ask | None = None) -> bool:
        """Return whether a record may never be delivered again, even without this request."""
        record = self.record(index, offset)
        own = None if but is None else but.places.get(offset)
        return (
            offset < self.world.history.delete_end[index]
            or record.highest + self.lost_count >= DELIVERY_LIMIT
            or any(
                acknowledgement.may_complete
                for place, acknowledgement in enumerate(record.acknowledgements)
                if place != own
            )
        )

    # -- start offsets, and the end

    def on_start(self, index: int, start: int, least: int) -> None:
        """Check the start offset in a response; ``least`` was confirmed before the request."""
        demand(start >= least, f"{index}: the start offset is {start}, was {least}")
        former = self.starts.get(index, 0)
        if start > former:
            for offset in self._list_promised(index):
                if former <= offset < start:
                    demand(
                        self._may_be_complete(index, offset),
                        f"{index}: the group starts at {start}, and {offset} is not accepted: "
                        f"{self.record(index, offset).deliveries}",
                    )
            self.starts[index] = start

    def _list_promised(self, index: int) -> Iterator[int]:
        """Yield the offsets of records that the group must have got before it passes them."""
        history = self.world.history
        for offset, value in history.acknowledged[index].items():
            transaction = history.transactions.get(value)
            is_visible = transaction is None or transaction.outcome is Outcome.COMMITTED
            if offset >= history.delete_end[index] and (is_visible or not self.is_committed):
                yield offset

    def is_complete(self, index: int, end: int) -> bool:
        """Return whether no record before ``end`` still has to be delivered."""
        return all(self._may_be_complete(index, o) for o in self._list_promised(index) if o < end)

    def check_end(self, ends: Mapping[int, int]) -> None:
        """Check that the group got everything before these offsets (invariant 75)."""
        deliveries: list[Delivery] = []
        acknowledgements: list[Acknowledgement] = []
        written: dict[Place, bytes] = {}
        for index, records in enumerate(self.records):
            values = self.world.history.acknowledged[index]
            due_offsets = (offset for offset in self._list_promised(index) if offset < ends[index])
            written |= {((TOPIC, index), offset): values[offset] for offset in due_offsets}
            for offset, record in records.items():
                is_checked = self.world.history.delete_end[index] <= offset < ends[index]
                is_lost = 0 < self.lost_count >= DELIVERY_LIMIT - record.highest
                if is_checked and not is_lost:
                    deliveries += record.deliveries
                    acknowledgements += record.acknowledgements
                else:
                    written.pop(((TOPIC, index), offset), None)
        anomalies = share_group_anomalies(
            written,
            deliveries,
            acknowledgements,
            delivery_limit=DELIVERY_LIMIT,
            latest_arrival=0,
        )
        demand(not anomalies, f"share group: {anomalies[:3]}")


def is_foreign(led: LedShare, offset: int, member_id: str) -> bool:
    """Return whether a record is in flight at a leader, and not held by this member."""
    runs = led.in_flight._runs.overlapping(offset, offset)
    return any(run.state is not RecordState.ACQUIRED or run.member != member_id for run in runs)


def offsets_of(acquired: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the offsets of acquired batches with their delivery counts."""
    for first, last, count in acquired:
        for offset in range(first, last + 1):
            yield offset, count
