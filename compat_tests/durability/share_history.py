"""The limits of a share group in a run against real nodes, and the check of its deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulation.share_rules import Acknowledgement, Delivery, Record
from simulation.share_rules import share_group_anomalies as find_anomalies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LATEST_ARRIVAL: Final = 45.0
"""The seconds in which an old response arrives: requests end after 10 s, and a paused member goes
on after 16 s."""
DELIVERY_LIMIT: Final = 10
"""The deliveries after which the group archives a record."""


def share_group_anomalies(
    written: Mapping[Record, bytes],
    deliveries: Sequence[Delivery],
    acknowledgements: Iterable[Acknowledgement],
) -> list[str]:
    """Return what is wrong with a share group that has come to the ends (invariant 75)."""
    return find_anomalies(
        written,
        deliveries,
        acknowledgements,
        delivery_limit=DELIVERY_LIMIT,
        latest_arrival=LATEST_ARRIVAL,
    )
