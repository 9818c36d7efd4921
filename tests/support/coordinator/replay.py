"""The replay of a whole log into a machine."""

from __future__ import annotations

from typing import TypeVar

from kwire.coordinator.decision import Machine
from kwire.coordinator.replay import Replay
from kwire.types import TopicPartition

M = TypeVar("M", bound=Machine)


def replay_into(partition: TopicPartition, data: bytes, machine: M) -> M:
    """Replay all of ``data`` into a machine and return the machine."""
    replay = Replay(partition, machine)
    for _ in replay.read(data, 0):
        pass
    for _ in replay.finish():
        pass
    return machine
