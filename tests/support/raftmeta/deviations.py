"""Deviations from a recording, and the small tools of the comparison."""

from collections.abc import Iterator
from typing import Any

import attrs

from kwire.codec.messages.control_records import LeaderChangeMessage
from kwire.codec.messages.metadata_records import NoOpRecord
from kwire.raftmeta.raft.control_records import control_records
from kwire.raftmeta.storage.records import pack
from kwire.records.build import New, batch
from kwire.records.header import parse
from tests.support.raftmeta.conversations import Frame


@attrs.frozen
class Deviation:
    """A difference between kwire's messages and the recorded ones."""

    kind: str
    api: str
    path: str
    recorded: Any
    ours: Any
    where: str


@attrs.define(eq=False)
class SentRequest:
    """A request that kwire has sent and the recording has not had yet."""

    call_id: int
    target: str
    api: str
    version: int
    body: dict[str, Any]
    at: float
    by_chance: bool
    """Whether it was by chance that this node was asked: the recorded one knew no leader either."""
    is_hanging: bool = False
    """The node that was asked takes connections and answers nothing."""


def differences(recorded: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths at which two JSON values differ, without positions in lists."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        for name in sorted(recorded.keys() | ours.keys()):
            inner = f"{path}.{name}" if path else name
            yield from differences(recorded.get(name), ours.get(name), inner)
    elif isinstance(recorded, list) and isinstance(ours, list) and len(recorded) == len(ours):
        for mine, yours in zip(recorded, ours, strict=True):
            yield from differences(mine, yours, path)
    elif recorded != ours:
        yield path, recorded, ours


def rounds(votes: list[Frame]) -> list[float]:
    """Return when this node began each round of pre-votes; a round asks each voter once."""
    times: list[float] = []
    senders: set[str] = set()
    for frame in votes:
        if not frame.is_request:
            continue
        if not frame.part["preVote"]:
            senders.clear()
        elif not senders or frame.target in senders:
            times.append(frame.t)
            senders = {frame.target}
        else:
            senders.add(frame.target)
    return times


def ordered_voters(data: bytes) -> list[Any]:
    """Return a control batch's messages, with the voters that granted sorted by id."""
    voters = []
    for _, message in control_records(data, 0, parse(data)):
        if isinstance(message, LeaderChangeMessage):
            message.granting_voters.sort(key=lambda voter: voter.voter_id)
        voters.append(message)
    return voters


def idle_log(library: dict[tuple[int, int], bytes], epoch: int, start: int, end: int) -> bytes:
    """Return the batches of a piece of the log, with no-ops where none were recorded."""
    out = b""
    while start < end:
        data = library.get((epoch, start))
        if data is None or parse(data).next_offset > end:
            record = New(None, pack(NoOpRecord()))
            data = batch([record], timestamp_ms=0, base_offset=start, leader_epoch=epoch)
        out += data
        start = parse(data).next_offset
    return out
