"""The messages between a node and a worker's process, over the process's stdin and stdout.

A message is its length in four bytes, big-endian, then a pickled tuple. Both ends run the same
code and no other process has the pipes, so unpickling is safe.

==================================== ==============================================================
to the worker                        meaning
==================================== ==============================================================
``("clean", root, job)``             clean a log of the log directory ``root``
``("next",)``                        the last group is in place; continue with the next
``("next", active_producers)``       the same, with the current active producers
``("check", root, job)``             check a closed segment of the log directory ``root``
``("more",)``                        the rate allows more bytes
end of file                          exit at once, even in the middle of a group
------------------------------------ --------------------------------------------------------------
from the worker
------------------------------------ --------------------------------------------------------------
``("group", CleanedGroup)``          the files of a group are written; waits for ``next``
``("done", CleaningSummary)``        the pass is complete; waits for another job
``("failed", text)``                 the pass found damage; waits for another job
``("used", size)``                   read or wrote bytes; waits for ``more``
``("checked", SegmentReport)``       the segment is checked; waits for another job
``("os", errno, strerror, filename)`` a system call failed; waits for another job
==================================== ==============================================================
"""

import pickle
import struct
from typing import Final, TypeAlias

from kwire.log.compaction.job import (
    ActiveProducers,
    CleanedGroup,
    CleaningJob,
    CleaningSummary,
)
from kwire.log.scrub.job import SegmentJob, SegmentReport

HEADER: Final = struct.Struct(">I")
"""The length of a message's body in bytes."""

Request: TypeAlias = (
    tuple[str, str, CleaningJob]
    | tuple[str]
    | tuple[str, ActiveProducers]
    | tuple[str, str, SegmentJob]
)
Answer: TypeAlias = (
    tuple[str, CleanedGroup]
    | tuple[str, CleaningSummary]
    | tuple[str, str]
    | tuple[str, SegmentReport]
    | tuple[str, int]
    | tuple[str, int | None, str | None, str | None]
)


def pack(message: Request | Answer) -> bytes:
    """Return a message preceded by its length."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def unpack_request(body: bytes) -> Request:
    request: Request = pickle.loads(body)
    return request


def unpack_answer(body: bytes) -> Answer:
    answer: Answer = pickle.loads(body)
    return answer
