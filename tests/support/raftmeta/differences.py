"""Differences between the messages of kwire's nodes and Apache Kafka 4.3.1's, with the reasons.

This table is data: the replay of the recorded conversations excuses nothing that is not in it,
every row of it must be used, and docs/quorum-differences.md is checked against it. A row is of
a kind; the replay decides the kind of a deviation from what the recording shows at that moment.
"""

from typing import Final

import attrs

from tests.support.raftmeta.deviations import Deviation


@attrs.frozen
class Difference:
    """One thing that may differ, and why that is right."""

    name: str
    kind: str
    apis: tuple[str, ...]
    path: str
    """The field, or how the names of several begin."""
    reason: str
    recorded: object = None
    """The value in Kafka's message, where only that one is excused."""

    def excuses(self, deviation: Deviation) -> bool:
        if deviation.kind != self.kind or not deviation.path.startswith(self.path):
            return False
        if deviation.api.split()[0] not in self.apis:
            return False
        return self.recorded is None or deviation.recorded == self.recorded


OURS: Final = (
    Difference(
        "A node without a leader asks other voters, never itself",
        "itself",
        ("Fetch",),
        "",
        "Kafka's node chooses among all voters, including itself, although its own answer "
        "contains nothing new.",
    ),
    Difference(
        "No busy fetching",
        "busy re-fetch",
        ("Fetch",),
        "",
        "After NOT_LEADER_OR_FOLLOWER Kafka's node asks the next voter at once, thousands of "
        "times a second. kwire waits `retry.backoff.ms` (20 ms) before it asks the same node "
        "again; meanwhile it waits for the response of the next node.",
    ),
    Difference(
        "No busy fetching across an epoch",
        "overtaken",
        ("Fetch",),
        "",
        "One of Kafka's repeated Fetches was in flight when the epoch ended or the leader "
        "became known, and was rejected or repeated. kwire was waiting, and fetches once, in "
        "the new epoch.",
    ),
    Difference(
        "A node keeps its high watermark",
        "sent before",
        ("Fetch",),
        "topics.partitions.highWatermark",
        "In Kafka a leader that resigned and a node that starts from a snapshot fetch with "
        "-1. kwire sends the high watermark that it has, because committed records stay "
        "committed. A leader with a larger high watermark answers either Fetch at once.",
        -1,
    ),
    Difference(
        "After EndQuorumEpoch followers grant pre-votes at once",
        "after EndQuorumEpoch",
        ("Vote",),
        "topics.partitions.voteGranted",
        "Kafka's follower still rejects them, because it has a leader until its own timer "
        "expires. With kwire the first candidate wins the first round.",
        False,
    ),
    Difference(
        "Its own name",
        "field",
        ("ApiVersions",),
        "clientSoftware",
        "A leader asks a new voter for its features with ApiVersions, in which kwire sends "
        "its own name and version.",
    ),
    Difference(
        "Granting voters in the order of their ids",
        "field",
        ("batch",),
        "grantingVoters",
        "They are a set in LEADER_CHANGE; Kafka writes them in hash-table order.",
    ),
    Difference(
        "A candidate repeats a lost pre-vote soon after EndQuorumEpoch",
        "again after EndQuorumEpoch",
        ("Vote",),
        "",
        "The voter that rejected it may not have received EndQuorumEpoch yet, so the "
        "candidate asks again after 0.1 to 0.2 of the longest back-off. Kafka's candidate "
        "waits for a whole fetch timeout.",
    ),
    Difference(
        "No empty response before the time limit",
        "nothing new",
        ("Fetch",),
        "responses.partitions.records",
        "Kafka's leader answers held Fetches each time it has checked for records to append, "
        "even if there were none. kwire's leader holds them until it has records or a high "
        "watermark to send.",
        "",
    ),
)
"""Differences that are kwire's own choice."""

CHANCE: Final = (
    Difference(
        "The controller that a node without a leader asks",
        "at random",
        ("Fetch",),
        "target",
        "Both kinds of node choose a controller at random.",
    ),
    Difference(
        "One node more",
        "asked meanwhile",
        ("Fetch",),
        "",
        "While Kafka's node without a leader asked itself, or tried to connect to the leader "
        "it had lost, kwire asked another node.",
    ),
    Difference(
        "Requests to a node that cannot be reached",
        "to a node that is out of reach",
        ("Fetch", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch"),
        "",
        "Kafka's requests never became frames: the connection was refused, or the node was "
        "stopped and never answered the initial ApiVersions.",
    ),
    Difference(
        "The recording has gaps",
        "one of a series",
        ("Fetch",),
        "",
        "Of a long series of equal exchanges the recording has the first two and the last. "
        "The replay answers equal requests in between in the same way.",
    ),
    Difference(
        "The recording ends",
        "under way at the end",
        ("Fetch",),
        "",
        "One Fetch is always in flight.",
    ),
    Difference(
        "A wiped disk",
        "of an earlier life",
        ("Fetch",),
        "",
        "A node whose disk is wiped in the scenario is replayed from its new start onwards.",
    ),
    Difference(
        "The recording begins",
        "asked before",
        ("Fetch",),
        "",
        "The recording has an answer to a request that was sent before it, or a request whose "
        "answer never came.",
    ),
)
"""Differences that follow from chance and from the edges of a recording."""

DIFFERENCES: Final = (*OURS, *CHANCE)


def excuse(deviation: Deviation) -> Difference | None:
    return next((row for row in DIFFERENCES if row.excuses(deviation)), None)
