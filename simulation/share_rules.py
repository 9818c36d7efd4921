"""The deliveries and acknowledgements of a share group (KIP-932), and the rules for them.

The rules need no more than what members observed, so they apply to a simulated cluster and to real
ones.

A record may reach a member late: its lock has ended, another member has accepted it, and then the
old response arrives. The leader ignores late acknowledgements of records before its start offset,
without an error. So nothing but the time shows that a record was acquired after it was accepted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import attrs

Record = tuple[tuple[str, int], int]
"""A topic with a partition, and an offset."""
Kind = Literal["accept", "release", "reject"]
Outcome = Literal["ok", "failed", "unknown"]
"""The outcome of a request; `failed`: the server refused it; `unknown`: there was no answer."""
FOREVER: Final = float("inf")


@attrs.frozen
class Delivery:
    """One record that a member of a share group got."""

    client: str
    record: Record
    value: bytes
    count: int
    """The number of the delivery, as the leader counts them."""
    began: float
    ended: float


@attrs.frozen
class Acknowledgement:
    """The end of a delivery that a member asks for."""

    client: str
    record: Record
    kind: Kind
    count: int
    began: float
    ended: float = FOREVER
    outcome: Outcome = "unknown"

    @property
    def may_complete(self) -> bool:
        """True if the record may never be delivered again because of this."""
        return self.kind != "release" and self.outcome != "failed"


def find_late(
    deliveries: Iterable[Delivery],
    acknowledgements: Iterable[Acknowledgement],
    latest_arrival: float,
) -> list[Delivery]:
    """Return the deliveries of a record that began after it was accepted or rejected.

    ``latest_arrival``: the seconds in which an old response arrives.
    """
    complete = (a.ended for a in acknowledgements if a.may_complete and a.outcome == "ok")
    done = min(complete, default=FOREVER)
    return [delivery for delivery in deliveries if delivery.began > done + latest_arrival]


def share_group_anomalies(
    written: Mapping[Record, bytes],
    deliveries: Sequence[Delivery],
    acknowledgements: Iterable[Acknowledgement],
    *,
    delivery_limit: int,
    latest_arrival: float,
) -> list[str]:
    """Return what is wrong with a share group that has come to the ends (invariant 75).

    ``written`` are the acknowledged records. Without deliveries there was no share group. After
    ``delivery_limit`` deliveries, the group archives a record.
    """
    if not deliveries:
        return []
    delivered: dict[Record, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        delivered[delivery.record].append(delivery)
    acknowledged: dict[Record, list[Acknowledgement]] = defaultdict(list)
    for acknowledgement in acknowledgements:
        acknowledged[acknowledgement.record].append(acknowledgement)
    anomalies = []
    for record in sorted(written.keys() | delivered.keys()):
        own = delivered[record]
        if not own:
            anomalies.append(f"never delivered: {record}")
            continue
        if any(delivery.value != written.get(record, delivery.value) for delivery in own):
            anomalies.append(f"another value: {own}")
        if not all(1 <= delivery.count <= delivery_limit for delivery in own):
            anomalies.append(f"delivery count: {own}")
        is_archived = any(delivery.count == delivery_limit for delivery in own)
        if not is_archived and not any(a.may_complete for a in acknowledged[record]):
            anomalies.append(f"never accepted: {own}, {acknowledged[record]}")
        late = find_late(own, acknowledged[record], latest_arrival)
        anomalies += [f"delivered after it was accepted: {each}" for each in late]
    return anomalies
