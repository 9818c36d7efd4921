"""Snapshots and quorum-state that Apache Kafka 4.3.1 wrote, read and written alike."""

import tarfile
from pathlib import Path
from random import Random

import pytest

from kwire.raftmeta.raft.control_records import control_batch, control_records, snapshot_voters
from kwire.raftmeta.raft.events import AppendLog, Send, Started
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState, decode, encode
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.records import pack, unpack
from kwire.records.build import New, batch
from kwire.records.header import headers, parse
from kwire.records.iterate import records
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import voters_of

VECTORS = Path(__file__).parents[2] / "vectors" / "disk"


def files(*endings: str) -> dict[str, bytes]:
    """All files with one of the endings, by the set and the path they lie in."""
    contents = {}
    for path in sorted(VECTORS.glob("*.tar.gz")):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                source = archive.extractfile(member) if member.name.endswith(endings) else None
                if source is not None:
                    contents[f"{path.name.split('.')[0]}:{member.name}"] = source.read()
    return contents


FILES = files("/quorum-state", ".checkpoint")
STATES = {name: data for name, data in FILES.items() if name.endswith("/quorum-state")}
SNAPSHOTS = {
    name: data
    for name, data in FILES.items()
    if "metadata-0/0" in name or name.endswith("/bootstrap.checkpoint")
}


def test_vectors_exist() -> None:
    assert (len(STATES), len(SNAPSHOTS)) == (12, 19)


@pytest.mark.parametrize("name", STATES)
def test_quorum_state(name: str) -> None:
    data = STATES[name]
    state = decode(data)
    version = 1 if b'"data_version":1' in data else 0
    voters = voters_of(*(n for n in (1, 2, 3) if b'{"voterId":%d}' % n in data))
    assert encode(state, voters, version) == data
    assert state.epoch > 0
    assert state != ElectionState()


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshot(name: str) -> None:
    """Every batch, taken apart into messages and put together again, is the same to the byte."""
    data = SNAPSHOTS[name]
    end = 0
    for pos, header in headers(data):
        if header.is_control:
            encoded = control_batch(
                [message for _, message in control_records(data, pos, header)],
                base_offset=header.base_offset,
                epoch=header.leader_epoch,
                timestamp_ms=header.max_timestamp,
            )
        else:
            read = [unpack(record.value) for record in records(data, pos, header)]
            encoded = batch(
                [New(None, pack(record)) for record in read],
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                timestamp_ms=header.max_timestamp,
            )
        assert encoded == data[pos : pos + header.size], header.base_offset
        end = pos + header.size
    assert end == len(data)
    voters, version = snapshot_voters(data)
    assert (len(voters.ids) > 0) == (version > 0)


def test_a_standalone_controller_begins_its_log_alike() -> None:
    """With the checkpoint 0-0 that formatting leaves, the first batch is Kafka's to the byte."""
    where = "quorum:data/__cluster_metadata-0/"
    data = files("/00000000000000000000.log")[f"{where}00000000000000000000.log"]
    first = data[: parse(data).size]
    disk = MemoryStorage()
    disk.store_snapshot(
        SnapshotId(0, 0), [SNAPSHOTS[f"{where}00000000000000000000-0000000000.checkpoint"]]
    )
    recovered = disk.load(VoterSet())
    (voter,) = recovered.history.latest
    config = RaftConfig(node_id=voter.id, directory_id=voter.key.directory_id, cluster_id="x")
    raft = Raft(config, recovered, Random(0))
    effects = raft.step(Started(), 0.0, parse(first).max_timestamp)
    assert [bytes(e.records) for e in effects if isinstance(e, AppendLog)] == [first]
    assert not [e for e in effects if isinstance(e, Send)]
