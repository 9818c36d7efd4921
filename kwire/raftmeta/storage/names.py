"""Names of the metadata log's directory and of its snapshots."""

from typing import Final

from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.types import METADATA_TOPIC

METADATA_DIRECTORY: Final = f"{METADATA_TOPIC}-0"


def checkpoint_name(snapshot: SnapshotId) -> str:
    """Return the file name of a snapshot."""
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"
