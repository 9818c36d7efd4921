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
        "A node asks others, never itself",
        "itself",
        ("Fetch",),
        "",
        "Kafka's node without a leader draws among all voters, itself included; its own answer "
        "names no leader.",
    ),
    Difference(
        "No busy fetching",
        "busy re-fetch",
        ("Fetch",),
        "",
        "Refused with NOT_LEADER_OR_FOLLOWER, Kafka's node asks the next one at once, thousands "
        "of times a second; kwire waits for `retry.backoff.ms` (20 ms) before it asks the same "
        "node again, and for the answer of whom it asked meanwhile.",
    ),
    Difference(
        "No busy fetching across an epoch",
        "overtaken",
        ("Fetch",),
        "",
        "One of those Fetches was under way when the epoch ended or the leader was found, and was "
        "refused or said again; kwire was waiting and asks once, in the new epoch.",
    ),
    Difference(
        "A high watermark stays known",
        "sent before",
        ("Fetch",),
        "topics.partitions.highWatermark",
        "A leader that resigned, and a node that starts from a snapshot, fetch with -1 in Kafka; "
        "kwire sends what it knows to be committed, which cannot be undone. A leader that knows "
        "more answers either at once.",
        -1,
    ),
    Difference(
        "A leader's farewell lifts the veto on pre-votes",
        "after a farewell",
        ("Vote",),
        "topics.partitions.voteGranted",
        "After EndQuorumEpoch Kafka's follower still refuses pre-votes as one that has a leader, "
        "until its own timer runs out; kwire's grants them at once, so that the first candidate "
        "wins the first round.",
        False,
    ),
    Difference(
        "Its own name",
        "field",
        ("ApiVersions",),
        "clientSoftware",
        "In ApiVersions, by which a leader asks what a new voter supports, kwire gives its own "
        "name and version.",
    ),
    Difference(
        "Granting voters in the order of their ids",
        "field",
        ("batch",),
        "grantingVoters",
        "In LEADER_CHANGE they are a set; Kafka writes them in the order of a hash table.",
    ),
    Difference(
        "A lost round after a farewell is repeated soon",
        "again after a farewell",
        ("Vote",),
        "",
        "A voter that refused may not have received the farewell yet: the candidate starts another "
        "round after 0.1 to 0.2 of the longest back-off; Kafka's waits for a whole fetch timeout.",
    ),
    Difference(
        "No empty answer before its time",
        "nothing new",
        ("Fetch",),
        "responses.partitions.records",
        "Kafka's leader lets go of held Fetches each time it has looked for records to append, "
        "even if there were none; kwire's has no such moment and holds them until there is "
        "something to return.",
        "",
    ),
)
"""Differences that are kwire's own choice."""

CHANCE: Final = (
    Difference(
        "Whom a node without a leader asks",
        "at random",
        ("Fetch",),
        "target",
        "Both draw at random among the controllers.",
    ),
    Difference(
        "One node more",
        "asked meanwhile",
        ("Fetch",),
        "",
        "While Kafka's node without a leader asked itself, or tried to connect to the leader it "
        "had lost, kwire asked another.",
    ),
    Difference(
        "Requests to a node that is out of reach",
        "to a node that is out of reach",
        ("Fetch", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch"),
        "",
        "Kafka's never became frames: the connection was refused, or the node was stopped and "
        "never answered the ApiVersions that goes first.",
    ),
    Difference(
        "The recording has gaps",
        "one of a series",
        ("Fetch",),
        "",
        "Of a long series of equal exchanges the first two and the last were kept; what is equal "
        "to them, in between, is answered as they were.",
    ),
    Difference(
        "The recording ends",
        "under way at the end",
        ("Fetch",),
        "",
        "There is always one Fetch under way.",
    ),
    Difference(
        "An earlier life",
        "of an earlier life",
        ("Fetch",),
        "",
        "A node whose disk is wiped in the scenario is played from its new start on.",
    ),
    Difference(
        "The recording begins",
        "asked before",
        ("Fetch",),
        "",
        "An answer to a request that was sent before, or a request whose answer never came.",
    ),
)
"""Differences that follow from chance and from the edges of a recording."""

DIFFERENCES: Final = (*OURS, *CHANCE)


def excuse(deviation: Deviation) -> Difference | None:
    return next((row for row in DIFFERENCES if row.excuses(deviation)), None)
