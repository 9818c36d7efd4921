"""State of the nodes of the recorded scenarios when a scenario begins.

Only what their first frames do not show: the voters, the first offsets of epochs, the disk.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from kwire.raftmeta.raft.log_state import EpochStart, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from tests.support.raftmeta.conversations import Key

EPOCHS: Final[dict[str, tuple[EpochStart, ...]]] = {
    "first": (EpochStart(1, 0), EpochStart(2, 232), EpochStart(3, 252), EpochStart(4, 292)),
    "second": (EpochStart(1, 0), EpochStart(2, 125), EpochStart(3, 134)),
    "third": (EpochStart(1, 0), EpochStart(3, 36)),
    "fourth": (EpochStart(1, 0),),
}
"""First offsets of the epochs in the clusters' logs."""


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """One node of one scenario."""

    number: str
    node: int
    fresh: bool = False
    """It starts during the scenario, on an empty directory."""
    start: int = 0
    """Its log start offset."""
    port: int = 0
    restarted: bool = False
    """It starts during the scenario, on its directory."""
    election: ElectionState | None = None
    end: int | None = None
    committed: int | None = None
    voters: tuple[int, ...] = (1, 2, 3)
    dynamic: bool = False
    """kraft.version 1."""
    snapshot: SnapshotId | None = None
    alone: bool = False
    """It starts as the only voter: kraft.version 1, ``--standalone``."""
    primed: bool = True
    """Whether the recording shows the Fetches that a leader holds at the beginning."""
    late: Mapping[Key, float] = attrs.field(factory=dict)
    """Milliseconds by frame between the proxy's passing it on and the node's handling it."""
    changes: Mapping[str, object] = attrs.field(factory=dict)

    @property
    def is_broker(self) -> bool:
        return self.node > 10

    def __str__(self) -> str:
        return f"{self.number}-n{self.node}"


def _second(
    number: str,
    node: int,
    end: int,
    *,
    start: int = 0,
    fresh: bool = False,
    late: Mapping[Key, float] | None = None,
) -> Scene:
    """A node of the second cluster: kraft.version 1, and snapshots."""
    taken = SnapshotId(51, 1) if 0 < end < 86 else SnapshotId(85, 1)
    return Scene(
        number=number,
        node=node,
        end=end,
        start=start,
        fresh=fresh,
        dynamic=True,
        voters=(1,),
        late=late or {},
        snapshot=None if fresh else taken,
        port=20825 if node == 3 and number >= "06d" else 0,
    )


BROKERS: Final = (("06d", 97), ("06e", 114), ("06f", 124), ("06g", 134))
OPENED = ElectionState(1, 1)
SCENES: Final = (
    Scene(number="01", node=1, fresh=True, late={(2, 122): 20.0}),
    Scene(number="01", node=2, fresh=True),
    Scene(number="01", node=3, fresh=True),
    *(Scene(number="02", node=n) for n in (1, 2, 3)),
    Scene(number="03", node=1, late={(6, 584): 5.0}),
    Scene(number="03", node=3, late={(5, 570): 10.0, (67, 524): 1.0}),
    Scene(number="03b", node=1),
    Scene(number="03b", node=2, restarted=True, election=ElectionState(1, 2), end=232),
    Scene(number="03b", node=3),
    Scene(number="04", node=1, late={(71, 3234): 1.8, (68, 2821): 1.8, (70, 3312): 0.5}),
    Scene(number="04", node=2, late={(79, 947): 1.0}),
    Scene(number="04", node=3),
    Scene(number="05b", node=1, fresh=True),
    Scene(number="05b", node=2),
    Scene(number="05b", node=3),
    Scene(number="13", node=1),
    Scene(number="13", node=2, committed=292),
    Scene(number="13", node=3),
    *(Scene(number="14", node=n) for n in (1, 2, 3)),
    Scene(number="15", node=1, election=OPENED, end=36, committed=36),
    Scene(number="15", node=2, election=OPENED, end=36, committed=36),
    Scene(number="15", node=3, election=OPENED, end=36, committed=36, late={(8, 629): 2.5}),
    Scene(number="16", node=1, fresh=True, changes={"snapshot_max_bytes": 400}),
    Scene(number="16", node=2),
    Scene(
        number="16",
        node=3,
        snapshot=SnapshotId(44, 3),
        changes={"snapshot_max_bytes": 400},
        primed=False,
    ),
    *(Scene(number="17", node=n) for n in (1, 2, 3)),
    Scene(number="06a", node=1, fresh=True, dynamic=True, alone=True, voters=(1,)),
    _second("05", 1, 61),
    _second("05", 2, 0, fresh=True),
    *(_second("06b", node, 67, start=start) for node, start in ((1, 0), (2, 51))),
    *(_second("06c", node, 80, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    *(_second("05c", node, 86, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    *(_second("06d", node, 97, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    *(_second("06e", node, 114, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    _second("06f", 1, 124, late={(13, 2302): 1.8}),
    *(_second("06f", node, 124, start=51) for node in (2, 3)),
    _second("06g", 1, 134),
    _second("06g", 2, 134, start=51, late={(33, 778): 95.0}),
    _second("06g", 3, 134, start=51, late={(33, 779): 2.5, (38, 2546): 3.0}),
    *(Scene(number="07", node=n) for n in (1, 2, 3)),
    *(Scene(number="11", node=n) for n in (1, 2, 3)),
    *(Scene(number="08", node=n) for n in (1, 2, 3)),
    *(Scene(number="09", node=n) for n in (1, 2, 3)),
    *(Scene(number="09b", node=n) for n in (1, 2, 3)),
    *(Scene(number="10", node=n) for n in (1, 2, 3)),
    *(Scene(number="19", node=n) for n in (1, 2, 3)),
    Scene(number="18", node=1, fresh=True, late={(2, 87): 5.0}),
    Scene(number="18", node=2, fresh=True, late={(5, 89): 50.0}),
    Scene(number="18", node=3, fresh=True, late={(2, 90): 50.0}),
    *(Scene(number="12", node=n) for n in (1, 2, 3)),
    Scene(number="07", node=11, fresh=True),
    *(
        Scene(number=number, node=n)
        for number in ("11", "08", "10", "09", "12", "03", "03b", "04", "05b", "13")
        for n in (11, 12, 13)
    ),
    *(Scene(number="09b", node=n) for n in (11, 13)),
    Scene(number="09b", node=12, restarted=True),
    _second("05c", 11, 0, fresh=True),
    *(_second(number, 11, end, start=85) for number, end in BROKERS),
)
