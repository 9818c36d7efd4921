"""The ACLs that a filter selects."""

import pytest

from kwire.drive import run_steps
from kwire.security.acl_filters import AclFilter, selecting
from kwire.security.acls import ANY, LITERAL, MATCH, PREFIXED, Acl

TOPIC, GROUP, READ, ALLOW = 2, 3, 3, 3
ACLS = [
    Acl(TOPIC, "foobar", LITERAL, "User:alice", "*", READ, ALLOW),
    Acl(TOPIC, "foo", PREFIXED, "User:alice", "*", READ, ALLOW),
    Acl(TOPIC, "foobarx", PREFIXED, "User:alice", "*", READ, ALLOW),
    Acl(TOPIC, "*", LITERAL, "User:bob", "h", 4, 2),
    Acl(TOPIC, "other", LITERAL, "User:bob", "h", 4, 2),
    Acl(GROUP, "foobar", LITERAL, "User:alice", "*", READ, ALLOW),
]


def positions_of(**changes: int | str | None) -> list[int]:
    """Return the positions of the selected ACLs."""
    everything = AclFilter(ANY, None, ANY, None, None, ANY, ANY)
    by_id = {bytes([n]): acl for n, acl in enumerate(ACLS)}
    steps = selecting(by_id, everything._replace(**changes))  # type: ignore[arg-type]
    return [acl_id[0] for acl_id, _ in run_steps(steps)]


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"resource_type": GROUP}, [5]),
        ({"resource_name": "foobar"}, [0, 5]),
        ({"resource_name": "foo"}, [1]),
        ({"resource_name": "foobar", "pattern_type": LITERAL}, [0, 5]),
        ({"resource_name": "foobar", "pattern_type": PREFIXED}, []),
        ({"pattern_type": PREFIXED}, [1, 2]),
        ({"resource_name": "foobar", "pattern_type": MATCH}, [0, 1, 3, 5]),
        ({"resource_name": "*", "pattern_type": LITERAL}, [3]),
        ({"pattern_type": MATCH}, [0, 1, 2, 3, 4, 5]),
        ({"principal": "User:bob"}, [3, 4]),
        ({"host": "h"}, [3, 4]),
        ({"operation": READ}, [0, 1, 2, 5]),
        ({"permission_type": 2}, [3, 4]),
        ({"operation": 99}, []),
    ],
)
def test_filters(changes: dict[str, int | str | None], positions: list[int]) -> None:
    assert positions_of(**changes) == positions
