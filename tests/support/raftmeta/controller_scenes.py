"""The controllers of the recorded scenarios that are played, and the requests that are not.

The leader of each moment is decided by the quorum and listed here; so are requests that the node
handled a little later than the proxy passed them on. Every request to a controller is played, or
is of an API named here.
"""

from typing import Final

from tests.support.raftmeta.controller_replay import Scene

SCENES: Final = (
    Scene(number="01", node=2, epoch=1, begins=2850),
    *(Scene(number=n, node=2, epoch=1) for n in ("07", "11", "08", "10", "09", "09b", "12")),
    Scene(number="03", node=1, epoch=2, begins=2100),
    Scene(number="03b", node=1, epoch=2),
    Scene(number="04", node=1, epoch=2, ends=3424),
    Scene(number="04", node=2, epoch=3, begins=2000),
    Scene(number="05b", node=2, epoch=3),
    Scene(number="13", node=1, epoch=4, begins=410),
    *(Scene(number=n, node=1, epoch=1) for n in ("06a", "05", "05c", "06d", "06e")),
    Scene(number="06f", node=1, epoch=1, ends=22),
    Scene(number="06f", node=3, epoch=2, begins=650),
    Scene(number="06g", node=2, epoch=3, begins=10720),
    Scene(number="06g", node=3),
    Scene(number="16", node=3, epoch=3),
    Scene(number="17", node=3, epoch=3),
    Scene(number="18", node=1, epoch=1, begins=3480, late={(11, 3): 2.0}),
    Scene(number="19", node=1, epoch=1),
)

ELSEWHERE: Final = {
    "ApiVersions": "the same on every connection, test_conversations_edges.py",
    "Fetch": "the quorum's, test_conversations_raft.py",
    "FetchSnapshot": "the quorum's",
    "Vote": "the quorum's",
    "BeginQuorumEpoch": "the quorum's",
    "EndQuorumEpoch": "the quorum's",
    "UpdateRaftVoter": "the quorum's",
    "AddRaftVoter": "the quorum's",
    "RemoveRaftVoter": "the quorum's",
}
"""APIs whose requests are not the controller's, and whose they are."""

REQUESTS: Final = 211
"""Number of requests to controllers beside those of the APIs above."""

COUNTS: Final = {
    "01-n2": 15,
    "07-n2": 11,
    "11-n2": 11,
    "08-n2": 29,
    "10-n2": 28,
    "09-n2": 15,
    "09b-n2": 24,
    "12-n2": 36,
    "03-n1": 10,
    "03b-n1": 8,
    "04-n1": 12,
    "04-n2": 18,
    "05b-n2": 12,
    "13-n1": 6,
    "06a-n1": 11,
    "05-n1": 2,
    "05c-n1": 10,
    "06d-n1": 5,
    "06e-n1": 2,
    "06f-n1": 1,
    "06f-n3": 2,
    "06g-n2": 4,
    "06g-n3": 3,
    "16-n3": 2,
    "17-n3": 2,
    "18-n1": 45,
    "19-n1": 22,
}
"""Number of answers and records that each scene compares."""
