"""What kwire's nodes say otherwise than Apache Kafka 4.3.1's, and why.

This table is data: the replay of the recorded conversations excuses nothing that is not in it,
every row of it must be used, and docs/quorum-differences.md is checked against it.
"""

from typing import Final

import attrs

from tests.raftmeta.deviations import Deviation


@attrs.frozen
class Difference:
    """One thing that may differ, and why that is right."""

    name: str
    kind: str
    apis: tuple[str, ...]
    path: str
    reason: str
    recorded: object = None
    """What Kafka's node said, where only that is excused."""

    def excuses(self, found: Deviation) -> bool:
        if found.kind != self.kind or found.path != self.path:
            return False
        if found.api.split()[0] not in self.apis:
            return False
        return self.recorded is None or found.recorded == self.recorded


REQUESTS: Final = ("Fetch", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "FetchSnapshot")

OURS: Final = (
    Difference(
        "A node asks others, never itself",
        "itself",
        ("Fetch",),
        "",
        "Kafka's node without a leader draws among all voters, itself included; its own answer "
        "tells it nothing.",
    ),
    Difference(
        "No busy fetching",
        "busy re-fetch",
        ("Fetch",),
        "",
        "Refused with NOT_LEADER_OR_FOLLOWER, Kafka's node asks the next one at once, thousands "
        "of times a second; kwire waits for `retry.backoff.ms` (20 ms) before it asks the same "
        "node again.",
    ),
    Difference(
        "No busy fetching across an epoch",
        "not said",
        ("Fetch",),
        "",
        "One of those Fetches was under way when the epoch ended; kwire was waiting and asks in "
        "the new epoch.",
    ),
    Difference(
        "A high watermark is not forgotten",
        "field",
        ("Fetch",),
        "topics.partitions.highWatermark",
        "A leader that resigned, and a node that starts from a snapshot, fetch with -1 in Kafka; "
        "kwire tells what it knows to be committed.",
        -1,
    ),
    Difference(
        "A leader's farewell lifts the veto on pre-votes",
        "field",
        ("Vote",),
        "topics.partitions.voteGranted",
        "After EndQuorumEpoch Kafka's follower still refuses pre-votes as one that has a leader, "
        "until its own timer runs out; kwire's grants them at once, so that the first candidate "
        "wins the first round.",
        False,
    ),
    Difference(
        "Granting voters in the order of their ids",
        "field",
        ("batch",),
        "grantingVoters",
        "In LEADER_CHANGE they are a set; Kafka writes them in the order of a hash table.",
    ),
    Difference(
        "No answer without news",
        "field",
        ("Fetch",),
        "responses.partitions.records",
        "Kafka's leader lets a held Fetch go when the high watermark moves, even if the follower "
        "has heard of it already; kwire's holds it until there is something to tell.",
        "",
    ),
)
"""What kwire does differently."""

CHANCE: Final = (
    Difference(
        "Whom a node without a leader asks",
        "field",
        ("Fetch",),
        "target",
        "Both draw by lot.",
    ),
    Difference(
        "Requests to a node that is out of reach",
        "to a node that is cut off",
        ("Fetch", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch"),
        "",
        "Kafka's never became frames, for the connection was refused.",
    ),
    Difference(
        "Requests that were given up",
        "given up",
        REQUESTS,
        "",
        "A role ended before its request could leave: in Kafka the connection was still being "
        "made, or the peer had stopped reading.",
    ),
    Difference(
        "The recording ends",
        "under way at the end",
        ("Fetch",),
        "",
        "There is always one Fetch under way.",
    ),
    Difference(
        "The recording begins",
        "asked before",
        ("Fetch",),
        "",
        "An answer to a request that was sent before.",
    ),
)
"""What follows from chance and from the edges of a recording."""

DIFFERENCES: Final = (*OURS, *CHANCE)


def excuse(found: Deviation) -> Difference | None:
    return next((row for row in DIFFERENCES if row.excuses(found)), None)
