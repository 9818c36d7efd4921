"""A node's connections to the others, as the recording shows them at the moment of the replay.

The nodes that it can reach, whether it knows a leader to fetch from, and the high watermarks that
it was sent: a difference is excused by this alone, and not by what kwire makes of it.
"""

from math import inf
from typing import Final

import attrs

from tests.support.raftmeta.conversations import Frame, Happening, name_of

CONTROLLERS: Final = frozenset(map(name_of, (1, 2, 3)))


@attrs.define
class Reach:
    """The quorum as one node sees it."""

    me: str
    leader: tuple[int, int]
    """The epoch and its leader's id, or -1."""
    seeking: bool = False
    """It knows no node that it could fetch from."""
    down: set[str] = attrs.field(factory=set)
    """Nodes that have ended, until a connection to them is made again."""
    cut: set[str] = attrs.field(factory=set)
    """Nodes that it is cut off from, until the links are healed."""
    stopped: set[str] = attrs.field(factory=set)
    """Nodes that accept connections and answer nothing on them."""
    end_quorum_at: float = -inf
    """Time of the last EndQuorumEpoch that a leader sent it."""
    committed: set[int] = attrs.field(factory=set)
    """High watermarks that were sent."""

    def has(self, name: str) -> bool:
        return name not in self.down and name not in self.cut

    def on_start(self) -> None:
        """Note that it has started and knows no leader yet."""
        self.seeking, self.leader = True, (-1, -1)

    def note(self, what: Happening) -> set[str]:
        """Note an event; return the nodes that it makes unreachable."""
        lost: set[str] = set()
        match what.text.replace("node ", "controller-").split():
            case ["SIGKILL" | "exited", name] if name != self.me:
                self.down.add(name)
                lost = {name}
            case ["SIGSTOP", name] if name != self.me:
                self.stopped.add(name)
            case ["SIGCONT", name]:
                self.stopped.discard(name)
            case ["connect"]:
                self.down.discard(what.target)
            case ["connection", "refused:", *_] if what.source == self.me:
                lost = {what.target}
            case ["close"] if what.source == self.me:
                self._lose(what.target)
            case ["cut", source, "->", target] if source == self.me:
                lost = {target}
            case ["cut", first, "<->", second] if self.me in (first, second):
                lost = {first, second} - {self.me}
            case ["cut", name, "from", *_] if self.me in CONTROLLERS:
                lost = set(CONTROLLERS - {name}) if name == self.me else {name}
            case ["heal", *_]:
                self.cut.clear()
            case _:
                pass
        if what.text.startswith("cut"):
            self.cut |= lost
        for name in lost:
            self._lose(name)
        return lost

    def _lose(self, name: str) -> None:
        if name == name_of(self.leader[1]):
            self.seeking = True

    def on_frame(self, frame: Frame) -> None:
        """Note a frame that this node received or sent."""
        part = frame.part
        if frame.is_request:
            self._on_request(frame)
        elif frame.api == "Fetch":
            if part["errorCode"] == 0:
                self.committed |= {
                    part["highWatermark"],
                    part.get("snapshotId", {}).get("endOffset", -1),
                }
            if frame.target == self.me:
                leader_part = part.get("currentLeader", {})
                epoch, leader = leader_part.get("leaderEpoch", -1), leader_part.get("leaderId", -1)
                self._learn(epoch, leader, part["errorCode"])
        elif frame.target == self.me and "leaderId" in part:
            self._learn(part["leaderEpoch"], part["leaderId"], 1)

    def _on_request(self, frame: Frame) -> None:
        part = frame.part
        if frame.api == "EndQuorumEpoch" and frame.target == self.me:
            self.end_quorum_at, self.seeking = frame.t, True
        elif frame.api == "BeginQuorumEpoch" and frame.target == self.me:
            self._learn(part["leaderEpoch"], part["leaderId"], 0)
        elif frame.api == "Vote" and part["replicaEpoch"] > self.leader[0]:
            self._learn(part["replicaEpoch"], -1, 1)
        elif frame.api == "Vote" and frame.source == self.me:
            self.seeking = True

    def _learn(self, epoch: int, leader: int, error: int) -> None:
        """Note an answer that was no refusal, or that names a leader who was not known."""
        if epoch < self.leader[0]:
            return
        is_new_leader = leader >= 0 and (epoch, leader) != self.leader
        if leader >= 0 or epoch > self.leader[0]:
            self.leader = epoch, leader
        self.seeking = bool(error) and not is_new_leader
