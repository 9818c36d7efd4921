"""KIP-595, a Raft protocol for the metadata quorum: the follower's and the leader's side of it.

The docstring of a test says the sentence in our words; `docs/quorum-rules.md` lists them all.
"""

import pytest

from kwire.codec.messages.fetch import FetchRequest
from kwire.raftmeta import messages
from kwire.raftmeta.events import Answered, AppendLog, LogSlice, Send, Started
from kwire.raftmeta.log import EpochEnd, LogState
from kwire.raftmeta.quorum_state import ElectionState
from kwire.raftmeta.raft import Raft, Recovered
from kwire.raftmeta.roles import Follower
from kwire.raftmeta.voters import VoterHistory
from kwire.records.build import New, batch
from kwire.testing.raft import config_of, voters_of
from kwire.testing.raft_script import Fixed


def records(base_offset: int, epoch: int, *values: bytes) -> bytes:
    found = [New(None, value) for value in values]
    return batch(found, timestamp_ms=7, base_offset=base_offset, leader_epoch=epoch)


def follower(*, epoch: int = 2) -> Raft:
    """Node 1 of three, with five records of epoch 1, that follows node 2."""
    history = VoterHistory([(-1, voters_of(1, 2, 3))])
    log = LogState(0, 5, [EpochEnd(1, 0)])
    raft = Raft(config_of(1), Recovered(ElectionState(epoch, 2), log, history), Fixed(0.5))
    raft.step(Started(), 0.0, 0)
    return raft


def fetch_under_way(raft: Raft) -> int:
    return next(c.id for c in raft.state.calls.open.values() if isinstance(c.request, FetchRequest))


def fetch_offset(send: Send) -> int:
    asked = messages.partition_of(send.request)
    assert asked is not None
    return int(asked.fetch_offset)


def answered(raft: Raft, data: bytes, now: float) -> tuple[object, ...]:
    """The leader's answer to the Fetch that is under way."""
    leader = follower(epoch=raft.state.epoch).state
    response = messages.fetch_response(leader, records=LogSlice(5, 9, 1000))
    response.responses[0].partitions[0].records = data
    return raft.step(Answered(fetch_under_way(raft), response), now, 0)


SOUND = records(5, 2, b"first", b"second")
DAMAGED = SOUND[:-1] + bytes([SOUND[-1] ^ 1])


@pytest.mark.parametrize(
    "data",
    [
        DAMAGED,
        SOUND + records(7, 2, b"third")[:-1] + b"!",
        SOUND[:16] + b"\x01" + SOUND[17:],
        records(6, 2, b"beyond a gap"),
        records(4, 2, b"what is there already"),
        records(5, 3, b"of an epoch that nobody has told of"),
        SOUND + records(7, 1, b"of an earlier epoch than the batch before"),
    ],
    ids=["CRC", "CRC of the second", "magic", "gap", "overlap", "epoch ahead", "epoch falls"],
)
def test_damaged_records_are_refused_and_fetched_again(data: bytes) -> None:
    """A follower appends nothing of an answer with a damaged batch, follows on, and asks for the
    same offset again (KafkaRaftClient.appendAsFollower of 4.3.1)."""
    raft = follower()
    assert not [e for e in answered(raft, data, 0.1) if isinstance(e, AppendLog)]
    assert isinstance(raft.state.role, Follower)
    assert raft.state.log.end_offset == 5
    asked = [e for e in raft.step(None, raft.deadline, 0) if isinstance(e, Send)]
    assert [(e.node.id, fetch_offset(e)) for e in asked] == [(2, 5)]
    assert raft.state.now < 0.2  # at once, but not in a busy loop
    assert [e for e in answered(raft, SOUND, 0.3) if isinstance(e, AppendLog)]
    assert raft.state.log.end_offset == 7


def test_the_end_of_an_answer_may_be_cut_off() -> None:
    """A Fetch answer is limited in bytes: the last batch may have been cut and comes again."""
    raft = follower()
    answered(raft, SOUND + records(7, 2, b"third")[:-3], 0.1)
    assert raft.state.log.end_offset == 7


def test_records_of_an_epoch_ahead_wait_until_that_epoch_is_known() -> None:
    """A replica appends only what is of no later epoch than its own, and stops there."""
    raft = follower()
    answered(raft, SOUND + records(7, 3, b"third"), 0.1)
    assert raft.state.log.end_offset == 7
