"""The voter sets of the quorum, by the log offset from which they apply.

Rules: a :class:`VoterSet` is a value. The newest set in the log applies as soon as it is appended,
committed or not (KIP-853); truncating the log reverts it. Under kraft.version 0, the set is the
configured one and directory ids are unknown (zero), so only ids are compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import attrs

from kwire.codec.messages.control_records import VotersRecord
from kwire.types import ZERO_UUID

T = TypeVar("T")

CONFIGURED: Final = -1
"""The offset of a set that comes from the configuration or the checkpoint 0-0."""


class VoterEndpoint(NamedTuple):
    """The address of one listener of a node."""

    name: str
    host: str
    port: int


class ReplicaKey(NamedTuple):
    """A replica: a node and the directory of its log (zero means unknown)."""

    id: int
    directory_id: bytes = ZERO_UUID


class Node(NamedTuple):
    """The destination of a request; bootstrap servers have ids below -1."""

    id: int
    host: str
    port: int


def endpoint_of(endpoints: Sequence[VoterEndpoint], listener: str) -> VoterEndpoint:
    """Return the endpoint of ``listener``; the first endpoint if it has none."""
    return next((e for e in endpoints if e.name == listener), endpoints[0])


class Voter(NamedTuple):
    """One voter of a set."""

    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_version: int = 0
    max_version: int = 1

    @property
    def id(self) -> int:
        return self.key.id

    def is_described_by(self, other: "Voter") -> bool:
        """Return whether a description of this voter says the same, in any order of endpoints."""
        ordered = other._replace(endpoints=tuple(sorted(other.endpoints)))
        return self._replace(endpoints=tuple(sorted(self.endpoints))) == ordered


@attrs.frozen
class VoterSet:
    """The voters, sorted by id."""

    voters: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> "VoterSet":
        return cls(tuple(sorted(voters, key=lambda voter: voter.id)))

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.id == node_id), None)

    def has(self, key: ReplicaKey) -> bool:
        """Return whether the node with that directory votes; an unknown one matches any."""
        voter = self.get(key.id)
        return voter is not None and voter.key.directory_id in (ZERO_UUID, key.directory_id)

    def key_of(self, node_id: int) -> ReplicaKey:
        voter = self.get(node_id)
        return voter.key if voter else ReplicaKey(node_id)

    def is_only(self, key: ReplicaKey) -> bool:
        return len(self.voters) == 1 and self.has(key)

    def has_majority(self, ids: Iterable[int]) -> bool:
        """Return whether these nodes include more than half of the voters."""
        node_ids = set(ids)
        return sum(voter.id in node_ids for voter in self.voters) >= self.majority

    def node(self, node_id: int, listener: str = "") -> Node | None:
        """Return a voter with its endpoint for ``listener``, or else its first endpoint."""
        voter = self.get(node_id)
        if voter is None or not voter.endpoints:
            return None
        endpoint = endpoint_of(voter.endpoints, listener)
        return Node(node_id, endpoint.host, endpoint.port)

    def nodes(self, listener: str = "") -> tuple[Node, ...]:
        """Return the voters with their endpoints, as :meth:`node` chooses them."""
        nodes = (self.node(voter.id, listener) for voter in self.voters)
        return tuple(node for node in nodes if node is not None)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """Return the set with this voter added, or replacing the voter with its id."""
        return VoterSet.of([*(v for v in self.voters if v.id != voter.id), voter])

    def without(self, node_id: int) -> "VoterSet":
        return VoterSet(tuple(voter for voter in self.voters if voter.id != node_id))


def to_record(voters: VoterSet) -> VotersRecord:
    """Return the KRAFT_VOTERS control record of a set."""
    described = VotersRecord.Voter
    return VotersRecord(
        version=0,
        voters=[
            described(
                voter_id=voter.id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[
                    described.Endpoint(name=e.name, host=e.host, port=e.port)
                    for e in voter.endpoints
                ],
                k_raft_version_feature=described.KRaftVersionFeature(
                    min_supported_version=voter.min_version,
                    max_supported_version=voter.max_version,
                ),
            )
            for voter in voters
        ],
    )


def from_record(record: VotersRecord) -> VoterSet:
    """Return the set in a KRAFT_VOTERS control record."""
    return VoterSet.of(
        Voter(
            ReplicaKey(voter.voter_id, voter.voter_directory_id),
            tuple(VoterEndpoint(e.name, e.host, e.port) for e in voter.endpoints),
            voter.k_raft_version_feature.min_supported_version,
            voter.k_raft_version_feature.max_supported_version,
        )
        for voter in record.voters
    )


@attrs.define(eq=False, repr=False)
class VoterHistory:
    """The voter sets and kraft.versions of a log, each with its offset."""

    sets: list[tuple[int, VoterSet]] = attrs.field(factory=list)
    versions: list[tuple[int, int]] = attrs.field(factory=list)

    @property
    def latest(self) -> VoterSet:
        return self.sets[-1][1] if self.sets else VoterSet()

    @property
    def latest_offset(self) -> int:
        return self.sets[-1][0] if self.sets else CONFIGURED

    @property
    def kraft_version(self) -> int:
        return self.versions[-1][1] if self.versions else 0

    def at(self, end_offset: int) -> tuple[VoterSet, int]:
        """Return the voter set and kraft.version before ``end_offset``, such as a snapshot's."""
        voters = [s for offset, s in self.sets if offset < end_offset]
        versions = [v for offset, v in self.versions if offset < end_offset]
        return (voters[-1] if voters else VoterSet(), versions[-1] if versions else 0)

    def add(self, offset: int, voters: VoterSet) -> None:
        self.sets.append((offset, voters))

    def add_version(self, offset: int, version: int) -> None:
        self.versions.append((offset, version))

    def truncate(self, end_offset: int) -> None:
        """Remove the entries at or after ``end_offset``."""
        self.sets = [entry for entry in self.sets if entry[0] < end_offset]
        self.versions = [entry for entry in self.versions if entry[0] < end_offset]

    def forget_before(self, start_offset: int) -> None:
        """Remove the entries that a newer entry before ``start_offset`` has replaced."""
        self.sets = _newest_from(self.sets, start_offset)
        self.versions = _newest_from(self.versions, start_offset)

    def reset(self, offset: int, voters: VoterSet, kraft_version: int) -> None:
        """Replace all entries with the voters and version of a snapshot."""
        if kraft_version:
            self.sets = [(offset, voters)]
            self.versions = [(offset, kraft_version)]
        else:
            self.truncate(0)


def _newest_from(entries: list[tuple[int, T]], start_offset: int) -> list[tuple[int, T]]:
    before = [entry for entry in entries if entry[0] < start_offset]
    return before[-1:] + [entry for entry in entries if entry[0] >= start_offset]
