"""The generator of docs/raft-roles.md: the legal transitions between the roles of a raft node."""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kwire.raftmeta.raft.transitions import TRANSITIONS  # noqa: E402

HEAD: Final = """\
# Roles of a raft node

The transitions of `kwire/raftmeta/raft/transitions.py`; a node starts as Unattached.
`RaftState.change_role` refuses any other transition, and the simulation makes all of these
(`tests/sim/test_raft_roles.py`). `QuorumState` of Apache Kafka 4.3 has the same table, but for the
last column.

"""


def raft_roles() -> str:
    """Return the whole document."""
    edges = "".join(
        f"    {transition.source.__name__} --> {transition.target.__name__}\n"
        for transition in TRANSITIONS
    )
    rows = "".join(
        f"| {transition.source.__name__} | {transition.target.__name__} "
        f"| {transition.when} | {transition.kafka} |\n"
        for transition in TRANSITIONS
    )
    return (
        f"{HEAD}```mermaid\nstateDiagram-v2\n    [*] --> Unattached\n{edges}```\n\n"
        f"| from | to | when the node | in Apache Kafka |\n|---|---|---|---|\n{rows}"
    )
