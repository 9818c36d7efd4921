"""The deliveries and acknowledgements of a share group (KIP-932), and the checks of them.

A record may reach a member late: its lock has ended, another member has accepted it, and then the
old response arrives. The leader ignores late acknowledgements of records before its start offset,
without an error. So nothing but the time shows that a record was acquired after it was accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from compat_tests.durability.history import Outcome

Record = tuple[tuple[str, int], int]
"""A topic with a partition, and an offset."""
Kind = Literal["accept", "release"]
FOREVER: Final = float("inf")
LATEST_ARRIVAL: Final = 45.0
"""The seconds in which an old response arrives: requests end after 10 s, and a paused member goes
on after 16 s."""
DELIVERY_LIMIT: Final = 10
"""The deliveries after which the group archives a record."""


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


def share_group_anomalies(
    written: Mapping[Record, bytes],
    deliveries: Sequence[Delivery],
    acknowledgements: Iterable[Acknowledgement],
) -> list[str]:
    """Return what is wrong with a share group that has come to the ends (invariant 75).

    ``written`` are the acknowledged records. Without deliveries there was no share group.
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
        if not all(1 <= delivery.count <= DELIVERY_LIMIT for delivery in own):
            anomalies.append(f"delivery count: {own}")
        is_archived = any(delivery.count == DELIVERY_LIMIT for delivery in own)
        accepts = [a for a in acknowledged[record] if a.kind == "accept" and a.outcome != "failed"]
        if not accepts and not is_archived:
            anomalies.append(f"never accepted: {own}, {acknowledged[record]}")
        done = min((a.ended for a in accepts if a.outcome == "ok"), default=FOREVER)
        late = [delivery for delivery in own if delivery.began > done + LATEST_ARRIVAL]
        anomalies += [f"delivered after it was accepted: {each}" for each in late]
    return anomalies
