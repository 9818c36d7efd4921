"""The operator of the simulated cluster, who changes voters and raises feature levels.

Each response is checked: the change that it confirms must be in the committed metadata already.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.raftmeta.controller.feature_updates import KRAFT_VERSION
from kwire.raftmeta.controller.features import SUPPORTED
from simulation.replication.clients import SimClient
from simulation.replication.history import demand
from simulation.replication.metadata_checks import Books
from simulation.replication.node import controller_endpoints, metadata_directory
from simulation.replication.releases import RAISED
from simulation.replication.settings import CLUSTER_ID

_UPGRADE: Final = 1
_TIMEOUT_MS: Final = 3_000


@attrs.define(eq=False)
class Operator(SimClient):
    """One operator, who sends one request at a time."""

    books: Books
    changes_voters: bool
    raises_levels: bool
    spared: Sequence[str] = ()
    """The features whose levels are not raised before :meth:`raise_all`."""
    is_resting: bool = False
    """True while the operator must not start another change."""
    is_busy: bool = False

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1.0))
            if self.is_resting:
                continue
            self.is_busy = True
            if self.changes_voters and (not self.raises_levels or self.random.random() < 0.5):
                await self._change_voters()
            elif self.raises_levels:
                await self._raise_any()
            self.is_busy = False

    async def rest(self) -> None:
        """Start no further change, and wait for the end of the current one."""
        self.is_resting = True
        while self.is_busy:  # noqa: ASYNC110
            await trio.sleep(0.1)

    # -- voters

    async def _change_voters(self) -> None:
        """Add a controller to the voters, or remove a voter."""
        voters = self.books.voters
        controllers = [m.id for m in self.world.machines.values() if m.config.is_controller]
        outsiders = [node for node in controllers if node not in voters]
        if outsiders and (len(voters) < 2 or self.random.random() < 0.6):
            await self._add(self.random.choice(outsiders))
        elif len(voters) > 1:
            await self._remove(self.random.choice(voters))

    async def _add(self, node: int) -> None:
        listener = AddRaftVoterRequest.Listener
        request = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=_TIMEOUT_MS,
            voter_id=node,
            voter_directory_id=metadata_directory(node),
            listeners=[
                listener(name=e.name, host=e.host, port=e.port) for e in controller_endpoints(node)
            ],
        )
        before = max(0, len(self.books.voter_sets) - 1)
        answer = await self.call(self.any_broker(), request)
        code = None if answer is None else answer.error_code
        self.world.note("add voter", node, code)
        if code == errors.NONE:
            sets = self.books.voter_sets[before:]
            demand(any(node in s for s in sets), f"{node} is no committed voter: {sets}")

    async def _remove(self, node: int) -> None:
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=node, voter_directory_id=metadata_directory(node)
        )
        before = max(0, len(self.books.voter_sets) - 1)
        answer = await self.call(self.any_broker(), request)
        code = None if answer is None else answer.error_code
        self.world.note("remove voter", node, code)
        if code == errors.NONE:
            sets = self.books.voter_sets[before:]
            demand(any(node not in s for s in sets), f"{node} is still a voter: {sets}")

    # -- levels

    def _level(self, name: str) -> int:
        """Return the committed level of a feature."""
        if name == KRAFT_VERSION:
            return self.books.kraft_version
        return self.books.image.features.get(name, 0)

    async def _raise_any(self) -> None:
        """Request a higher level of a feature, which some nodes may not support."""
        lower = [name for name in RAISED if self._level(name) < SUPPORTED[name][1]]
        names = [name for name in lower if name not in self.spared]
        if names:
            name = self.random.choice(names)
            highest = SUPPORTED[name][1]
            await self._raise(name, self.random.randint(self._level(name) + 1, highest))

    async def _raise(self, name: str, level: int) -> None:
        update = UpdateFeaturesRequest.FeatureUpdateKey
        request = UpdateFeaturesRequest(
            timeout_ms=_TIMEOUT_MS,
            feature_updates=[update(feature=name, max_version_level=level, upgrade_type=_UPGRADE)],
        )
        answer = await self.call(self.any_broker(), request)
        code = None if answer is None else answer.error_code
        self.world.note("raise", name, level, code)
        if code == errors.NONE:
            demand(
                self._level(name) >= level, f"{name} is {self._level(name)}, {level} is confirmed"
            )

    async def raise_all(self, deadline: float) -> None:
        """Raise all levels to the newest, which every node must support."""
        while names := [name for name in RAISED if self._level(name) < SUPPORTED[name][1]]:
            demand(trio.current_time() < deadline, f"levels cannot be raised: {names}")
            await self._raise(names[0], SUPPORTED[names[0]][1])
            await self.pause()
