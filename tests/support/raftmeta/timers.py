"""Timers of a replayed node: the recording decides, within the bounds that chance has."""

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from typing import Final, cast

import attrs

from kwire.raftmeta.raft.held_fetches import HeldFetch
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tests.support.raftmeta.conversations import Frame, Key, name_of
from tests.support.raftmeta.deviations import rounds

FETCH_TIMEOUT_MS: Final = 2000
WAIT_MS: Final = 1500
"""An election timeout of middling length."""
CHANCE_MS: Final = 1300
"""Largest distance of a random timer from the recorded one: the random range, and some load."""
LOAD_MS: Final = 300
"""Longest delay of what is not random, for a node on the loaded machine."""


@attrs.define(eq=False)
class Timers:
    """The timers of one node, from the frames that it sent and received."""

    frames: list[Frame]
    _answers: dict[Key, Frame] = attrs.field(init=False)
    _rounds: list[float] = attrs.field(init=False)
    _last: tuple[int, float] = (0, 0.0)
    """The role whose timer was set last, and to what."""

    def __attrs_post_init__(self) -> None:
        self._answers = {f.key: f for f in self.frames if not f.is_request}
        self._rounds = rounds([f for f in self.frames if f.api == "Vote"])

    def snap(self, raft: Raft, now: float) -> None:
        """Set what may be set."""
        role = raft.state.role
        if isinstance(role, Leader):
            self._snap_waiting(role)
            self._snap_begin(role, now)
        elif isinstance(role, Resigned):
            self._snap_resigned(role, raft.state.epoch + 1, now)
        elif isinstance(role, Follower | Unattached | Prospective | Candidate):
            self._snap_election(role, now)
        raft.deadline = raft._next_deadline()

    def _snap_begin(self, role: Leader, now: float) -> None:
        """Set the time of its next BeginQuorumEpoch; the delays of successive ones add up."""
        for replica in role.replicas.values():
            due, target = replica.begin_at * 1000, name_of(replica.key.id)
            at = _next(
                (f for f in self.frames if f.api == "BeginQuorumEpoch" and f.target == target), now
            )
            if due < at <= due + LOAD_MS:
                replica.begin_at = at / 1000 - 1e-4

    def _snap_election(
        self, role: Follower | Unattached | Prospective | Candidate, now: float
    ) -> None:
        if role.deadline == inf or self._last == (id(role), role.deadline):
            return
        after = bisect_right(self._rounds, now)
        at = self._rounds[after] if after < len(self._rounds) else inf
        bound = LOAD_MS if isinstance(role, Follower) else CHANCE_MS
        due = role.deadline * 1000
        if isinstance(role, Prospective):  # it follows again, or waits, before it asks again
            at -= FETCH_TIMEOUT_MS if role.leader is not None else WAIT_MS
        if abs(at - due) <= bound:
            role.deadline = at / 1000 - 1e-4
        elif not isinstance(role, Follower | Prospective) and at > due:
            role.deadline += CHANCE_MS / 1000  # nothing of the kind was recorded
        self._last = id(role), role.deadline

    def _snap_resigned(self, role: Resigned, epoch: int, now: float) -> None:
        """It leaves its epoch some time before it first names the next one."""
        naming = (
            f
            for f in self._answers.values()
            if f.part.get("currentLeader", {}).get("leaderEpoch") == epoch
        )
        at = _next(naming, now) - 1
        if abs(at - role.deadline * 1000) <= CHANCE_MS:
            role.deadline = at / 1000

    def _snap_waiting(self, role: Leader) -> None:
        """A held Fetch ends when the recorded one did, if it brought nothing."""
        for fetch in role.held_fetches.take_all():
            self._snap_held(fetch)
            role.held_fetches.add(fetch)

    def _snap_held(self, fetch: HeldFetch) -> None:
        frame = self._answers.get(cast("Key", fetch.token))
        if frame is None:
            return
        is_empty = not frame.part["records"] and frame.part["errorCode"] == 0
        due = fetch.deadline * 1000
        if is_empty and abs(frame.t - due) < LOAD_MS:
            fetch.deadline = frame.t / 1000 - 1e-4
        elif not is_empty and frame.t > due - 1:
            fetch.deadline = frame.t / 1000 + 0.1


def _next(frames: Iterable[Frame], now: float) -> float:
    return next((f.t for f in frames if f.t > now), inf)
