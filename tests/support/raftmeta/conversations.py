"""Recorded conversations of Apache Kafka 4.3.1's nodes, as a list of what happened in order.

The recordings lie in ``tests/vectors/kraft``. A proxy in front of every node wrote each frame
down; in long series of equal idle exchanges it kept the first two and the last, which
:func:`gaps` finds again.
"""

import gzip
import json
from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from kwire.codec.apis import APIS
from kwire.records.header import headers
from tests.support.codec.message_json import from_json

VECTORS: Final = Path(__file__).parents[2] / "vectors" / "kraft"
METADATA: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
CLUSTERS: Final = {
    "first": [
        "01",
        "02",
        "07",
        "11",
        "08",
        "10",
        "09",
        "09b",
        "12",
        "03",
        "03b",
        "04",
        "05b",
        "13",
    ],
    "second": ["06a", "05", "06b", "06c", "05c", "06d", "06e", "06f", "06g"],
    "third": ["14", "15", "16", "17"],
    "fourth": ["18", "19"],
}
"""Scenarios in the order in which they were played, by the cluster they were played on."""

RAFT: Final = frozenset(
    [
        "Fetch",
        "FetchSnapshot",
        "Vote",
        "BeginQuorumEpoch",
        "EndQuorumEpoch",
        "UpdateRaftVoter",
        "AddRaftVoter",
        "RemoveRaftVoter",
        "DescribeQuorum",
    ]
)
CONTROLLER: Final = frozenset(
    [
        "ControllerRegistration",
        "BrokerRegistration",
        "BrokerHeartbeat",
        "AlterPartition",
        "AssignReplicasToDirs",
        "AllocateProducerIds",
    ]
)

Key = tuple[int, int]
"""A request and its response: connection and correlation id."""


@attrs.frozen(eq=False)
class Frame:
    """A request or a response."""

    t: float
    conn: int
    source: str
    target: str
    is_request: bool
    api: str
    version: int
    correlation: int
    body: dict[str, Any] = attrs.field(repr=False)
    repeated: bool = False
    """ApiVersions on a connection that had one: a leader asks what a new voter supports."""

    @property
    def key(self) -> Key:
        return self.conn, self.correlation

    @property
    def part(self) -> dict[str, Any]:
        """The one partition that a message of the quorum is about."""
        topics = self.body.get("topics") or self.body.get("responses") or [{}]
        partition: dict[str, Any] = (topics[0].get("partitions") or [{}])[0]
        return partition

    @property
    def is_raft(self) -> bool:
        """True if the quorum's own rules made it (a Fetch may be a broker's)."""
        if self.api not in RAFT:
            return self.repeated
        if self.api != "Fetch":
            return True
        topics = self.body["topics"] if self.is_request else self.body["responses"]
        return len(topics) == 1 and topics[0]["topicId"] == METADATA

    def message(self) -> Any:
        return from_json(class_of(self.api, request=self.is_request), self.body, self.version)

    @property
    def records(self) -> bytes:
        return b64decode(self.part.get("records") or "")


@attrs.frozen(eq=False)
class Happening:
    """An event that is no frame: a connection, a signal, a cut, an action of the driver."""

    t: float
    text: str
    conn: int
    source: str
    target: str


Entry = Frame | Happening


@attrs.frozen(eq=False)
class Recording:
    """One scenario."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def frames(self) -> Iterator[Frame]:
        return (entry for entry in self.entries if isinstance(entry, Frame))

    def of(self, node: str) -> list[Frame]:
        """Return the frames that one node sent or received."""
        return [f for f in self.frames if node in (f.source, f.target)]


def class_of(name: str, *, request: bool) -> type[Any]:
    """The message class of an API."""
    api = next(api for api in APIS if api.name == name)
    return api.request if request else api.response


def name_of(node: int) -> str:
    """Return a node's name: controllers, also combined ones, are 1 to 3, brokers 11 to 13."""
    return f"{'broker' if node > 10 else 'controller'}-{node}"


def _node(name: str) -> str:
    """``node-2`` is a controller and a broker in one: the quorum knows it as the former."""
    return name.replace("node-", "controller-")


def _entry(line: str) -> Entry:
    values = json.loads(line)
    source, target = _node(values.get("from", "")), _node(values.get("to", ""))
    if "event" in values:
        return Happening(values["t"], values["event"], values.get("conn", -1), source, target)
    return Frame(
        t=values["t"],
        conn=values["conn"],
        source=source,
        target=target,
        is_request=values["dir"] == "request",
        api=values["api"],
        version=values["version"],
        correlation=values["header"]["correlationId"],
        body=values["body"],
    )


@cache
def recording(number: str) -> Recording:
    """The scenario whose name begins with this number."""
    (path,) = VECTORS.glob(f"{number}-*.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        next(lines)
        entries = [_entry(line) for line in lines]
    sides: set[tuple[int, bool]] = set()
    for place, entry in enumerate(entries):
        if isinstance(entry, Frame) and entry.api == "ApiVersions":
            way = entry.conn, entry.is_request
            entries[place] = attrs.evolve(entry, repeated=way in sides)
            sides.add(way)
    return Recording(path.name.split(".")[0], tuple(entries))


def cluster_of(number: str) -> str:
    return next(name for name, numbers in CLUSTERS.items() if number in numbers)


@cache
def batches(cluster: str) -> dict[tuple[int, int], bytes]:
    """Every batch of the metadata log that was seen on a cluster, by epoch and base offset."""
    pieces: dict[tuple[int, int], bytes] = {}
    for number in CLUSTERS[cluster]:
        for frame in recording(number).frames:
            if frame.is_raft and frame.api == "Fetch" and not frame.is_request:
                data = frame.records
                for pos, header in headers(data):
                    key = header.leader_epoch, header.base_offset
                    pieces[key] = data[pos : pos + header.size]
    return pieces


@attrs.frozen
class Gap:
    """Idle exchanges between two frames of a connection that the proxy did not keep."""

    start: float
    offset: int
    """The replica's log end offset before the gap."""
    request: Frame
    """The first one after it."""


def gaps(recorded: Recording, node: str) -> list[Gap]:
    """The gaps in the Fetches that a node sent or answered."""
    last: dict[int, Frame] = {}
    ends: dict[int, int] = {}
    gaps = []
    for frame in recorded.of(node):
        if frame.api != "Fetch" or not frame.is_raft:
            continue
        before = last.get(frame.conn)
        if frame.is_request and before is not None and not before.is_request:
            is_idle = before.part["errorCode"] == 0
            if is_idle and frame.t - before.t > 300:
                gaps.append(Gap(before.t, ends.get(frame.conn, 0), frame))
        if frame.is_request:
            ends[frame.conn] = frame.part["fetchOffset"]
        else:
            for _, header in headers(frame.records):
                ends[frame.conn] = header.next_offset
        last[frame.conn] = frame
    return gaps


@attrs.frozen
class Refusals:
    """Fetches that were refused one after the other, and that the proxy did not keep."""

    start: float
    end: float
    request: Frame
    """The one before them, which they are equal to."""
    answer: Frame


def refusals(recorded: Recording, node: str) -> list[Refusals]:
    """Return the times in which a node that knew no leader fetched again without pause."""
    mine = [f for f in recorded.of(node) if f.source == node and f.is_request]
    correlations = {f.correlation for f in mine}
    last: dict[int, tuple[Frame, Frame | None]] = {}
    series = []
    for frame in recorded.of(node):
        if frame.api != "Fetch" or not frame.is_raft or frame.source == frame.target:
            continue
        before = last.get(frame.conn)
        if not frame.is_request and before is not None:
            last[frame.conn] = before[0], frame
        elif frame.is_request and frame.source == node:
            if before is not None and before[1] is not None and before[1].part["errorCode"]:
                dropped = set(range(before[0].correlation, frame.correlation)) - correlations
                if dropped:
                    series.append(Refusals(before[1].t, frame.t, before[0], before[1]))
            last[frame.conn] = frame, None
    return series
