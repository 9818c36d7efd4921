"""The newest numbers of all clients, as lines of the metrics page.

A push replaces all series of its client, so a number disappears when the client stops sending it,
and all numbers disappear when the client has not pushed for several intervals. Clients choose names
and labels, so everything has a limit: only a client's first series are kept, and if all clients
together have too many series, those of the clients that pushed longest ago are dropped. Processing
a push is short enough for one turn of the event loop.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import attrs

from kwire import metrics as m

CLIENT_SERIES_MAX: Final = 2000
"""The largest number of series of one client."""
LABELS_TEXT_MAX: Final = 2048
"""The most characters in the labels of a series; series with more are dropped."""
_EXPIRED_AT_ONCE: Final = 4
_DOC: Final = "Pushed by clients (KIP-714)."

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One number of a client."""

    name: str
    kind: str
    """The type in Prometheus' format: gauge or counter."""
    labels: Labels
    value: float


class Numbered(NamedTuple):
    """A sample that is ready for the page."""

    name: str
    kind: str
    labels: str
    """All labels as text; they name the client instance, so only one client has them."""
    value: float


def add_labels(sample: Sample, client: Labels) -> Numbered | None:
    """Return a sample with the labels of its client, or None if its labels are too long.

    Labels of the sample whose names are also those of client labels are left out.
    """
    own = {name for name, _ in client}
    labels = m.labels_text((*client, *(label for label in sample.labels if label[0] not in own)))
    if len(labels) > LABELS_TEXT_MAX:
        return None
    return Numbered(sample.name, sample.kind, labels, sample.value)


@attrs.define(eq=False, repr=False)
class _Client:
    id: bytes
    expires_at: float
    series: list[tuple[str, str]] = attrs.field(factory=list)
    """The names and labels of its series."""


@attrs.define(eq=False, repr=False)
class _Family:
    """All series of one name."""

    kind: str
    values: dict[str, tuple[_Client, float]] = attrs.field(factory=dict)


class ClientSeries:
    """The series of all clients, at most ``limit``."""

    def __init__(self, limit: int, metrics: m.Metrics) -> None:
        self._limit = limit
        self._families: dict[str, _Family] = {}
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        """The clients in the order of their last pushes, the oldest push first."""
        self._count = 0
        self._dropped = metrics.cell(m.CLIENT_SERIES_DROPPED)
        metrics.register_function(m.CLIENT_SERIES, lambda: self._count)

    def replace(
        self, instance_id: bytes, pushed: Sequence[Numbered], now: float, expires_at: float
    ) -> None:
        """Replace a client's series with those that it has pushed."""
        self._drop_expired(now)
        self._drop(instance_id)
        client = self._clients[instance_id] = _Client(instance_id, expires_at)
        room = min(CLIENT_SERIES_MAX, self._limit)
        for each in pushed[:room]:
            family = self._families.get(each.name)
            if family is None:
                family = self._families[each.name] = _Family(each.kind)
            if family.kind != each.kind or each.labels in family.values:
                self._dropped.value += 1
                continue
            family.values[each.labels] = client, each.value
            client.series.append((each.name, each.labels))
        self._count += len(client.series)
        if not client.series:
            del self._clients[instance_id]
        self.count_dropped(len(pushed[room:]))
        while self._count > self._limit:
            oldest = next(iter(self._clients))
            self.count_dropped(len(self._clients[oldest].series))
            self._drop(oldest)

    def count_dropped(self, count: int) -> None:
        """Count numbers of clients for which the page has no room."""
        self._dropped.value += count

    def lines(self, now: float) -> Iterator[str]:
        """Yield the lines of the page; series may change from one line to the next."""
        self._drop_expired(now)
        for name, family in list(self._families.items()):
            yield f"# HELP {name} {_DOC}"
            yield f"# TYPE {name} {family.kind}"
            for labels, (client, value) in list(family.values.items()):
                if client.expires_at > now:
                    yield f"{name}{labels} {value:.17g}"

    def _drop_expired(self, now: float) -> None:
        """Drop some of the clients that pushed longest ago; expired series are never shown."""
        for _ in range(min(_EXPIRED_AT_ONCE, len(self._clients))):
            oldest = next(iter(self._clients.values()))
            if oldest.expires_at > now:
                return
            self._drop(oldest.id)

    def _drop(self, instance_id: bytes) -> None:
        client = self._clients.pop(instance_id, None)
        if client is None:
            return
        self._count -= len(client.series)
        for name, labels in client.series:
            values = self._families[name].values
            del values[labels]
            if not values:
                del self._families[name]
