"""ACLs and filters that no client library sends: what is rejected, and with which error."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.delete_acls import DeleteAclsRequest
from kwire.codec.messages.describe_acls import DescribeAclsRequest
from kwire.testing.wire import Closed, WireClient
from tests.support.authorization.matrix import SETTINGS

pytestmark = pytest.mark.single
BROKER_SETTINGS = SETTINGS
INVALID, POLICY = 42, 44
ACL: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
WITHOUT_KIND = (
    "Could not parse principal from `alice` (no colon is present separating the principal type "
    "from the principal name)"
)


def create(broker: Broker, *changes: dict[str, Any]) -> list[tuple[int, str | None]]:
    creations = [CreateAclsRequest.AclCreation(**ACL | change) for change in changes]
    with WireClient("127.0.0.1", broker.port) as client:
        results = client.call(CreateAclsRequest(creations=creations), 3).results
    return [(result.error_code, result.error_message) for result in results]


def delete(broker: Broker, *changes: dict[str, Any]) -> list[tuple[int, str | None, int]]:
    filters = [DeleteAclsRequest.DeleteAclsFilter(**EVERYTHING | change) for change in changes]
    with WireClient("127.0.0.1", broker.port) as client:
        results = client.call(DeleteAclsRequest(filters=filters), 3).filter_results
    return [(r.error_code, r.error_message, len(r.matching_acls)) for r in results]


def count(broker: Broker, **changes: Any) -> int:
    with WireClient("127.0.0.1", broker.port) as client:
        response = client.call(DescribeAclsRequest(**EVERYTHING | changes), 3)
    assert (response.error_code, response.error_message) == (0, "")
    return sum(len(resource.acls) for resource in response.resources)


def test_invalid_acls_and_filters(own_broker: Broker) -> None:
    assert create(
        own_broker,
        {},
        {"principal": "alice"},
        {"resource_name": ""},
        {"resource_type": 4},
        {"resource_type": 77},
        {"operation": 77},
        {"permission_type": 9},
        {"host": "no host at all"},
    ) == [
        (0, ""),
        (INVALID, WITHOUT_KIND),
        (INVALID, "Invalid empty resource name"),
        (INVALID, "The only valid name for the CLUSTER resource is kafka-cluster"),
        (INVALID, "Invalid resourceType UNKNOWN"),
        (INVALID, "Invalid operation UNKNOWN"),
        (INVALID, "Invalid permissionType UNKNOWN"),
        (0, ""),
    ]
    eventually(lambda: count(own_broker) == 2, "the valid ACLs")
    assert count(own_broker, operation=77) == 0
    unknown = [{"resource_type_filter": 77}, {"operation": 77}]
    assert delete(own_broker, *unknown, {"resource_name_filter": "t"}) == [
        (INVALID, "Unknown patternFilter.", 0),
        (INVALID, "Unknown entryFilter.", 0),
        (0, None, 2),
    ]


def test_a_code_of_0_closes_the_connection(own_broker: Broker) -> None:
    for change in ({"resource_type": 0}, {"resource_pattern_type": 0}, {"operation": 0}):
        with pytest.raises(Closed):
            create(own_broker, change)
    with pytest.raises(Closed):
        delete(own_broker, {"resource_type_filter": 0})
    with pytest.raises(Closed):
        count(own_broker, permission_type=0)


def test_large_requests_are_rejected_as_a_whole(own_broker: Broker) -> None:
    too_large = create(own_broker, *({"resource_name": f"n{n}"} for n in range(10_001)))
    text = "Unable to perform excessively large batch operation."
    assert set(too_large) == {(POLICY, text)}
    for half in ("a", "b"):
        created = create(own_broker, *({"resource_name": f"{half}{n}"} for n in range(5_001)))
        assert set(created) == {(0, "")}
    eventually(lambda: count(own_broker) == 10_002, "the ACLs")
    text = "Cannot remove more than 10000 acls in a single delete operation."
    rejected = delete(own_broker, {"resource_name_filter": "a1"}, {})
    assert rejected == [(INVALID, text, 0)] * 2
    assert count(own_broker) == 10_002
