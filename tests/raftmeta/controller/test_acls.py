"""ACLs that the controller creates and deletes."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.delete_acls import DeleteAclsRequest
from kwire.raftmeta.controller.acls import decide_create_acls, decide_delete_acls
from tests.support.raftmeta.clusters import Cluster

GOOD: dict[str, Any] = {
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


def create(cluster: Cluster, *changes: dict[str, Any]) -> list[tuple[int, str | None]]:
    creations = [CreateAclsRequest.AclCreation(**GOOD | change) for change in changes]
    results = cluster.do(decide_create_acls, CreateAclsRequest(creations=creations)).results
    return [(result.error_code, result.error_message) for result in results]


def delete(cluster: Cluster, *changes: dict[str, Any]) -> Any:
    filters = [DeleteAclsRequest.DeleteAclsFilter(**EVERYTHING | change) for change in changes]
    return cluster.do(decide_delete_acls, DeleteAclsRequest(filters=filters)).filter_results


def names(cluster: Cluster) -> list[str]:
    image = cluster.state.image
    assert {acl: acl_id for acl_id, acl in image.acls.items()} == dict(image.acl_ids.items())
    return sorted(acl.resource_name for acl in image.acls.values())


def test_an_acl_that_exists_is_confirmed_without_a_record() -> None:
    cluster = Cluster()
    assert create(cluster, {}, {}, {"host": "h"}) == [(0, "")] * 3
    assert cluster.kinds() == ["AccessControlEntry"] * 2
    assert create(cluster, {}) == [(0, "")]
    assert cluster.kinds() == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 77}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": 1}, "Invalid patternType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        (
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal "
            "type from the principal name)",
        ),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
    ],
)
def test_invalid_acls_are_rejected_alone(change: dict[str, Any], text: str) -> None:
    cluster = Cluster()
    assert create(cluster, change, {}) == [(errors.InvalidRequest.code, text), (0, "")]
    assert names(cluster) == ["t"]


def test_a_request_that_deletes_too_many_is_rejected_as_a_whole() -> None:
    cluster = Cluster()
    for half in ("a", "b"):
        create(cluster, *({"resource_name": f"{half}{number}"} for number in range(5_001)))
    with pytest.raises(errors.InvalidRequest, match="more than 10000 acls"):
        delete(cluster, {"resource_name_filter": "a1"}, {})
    assert len(names(cluster)) == 10_002


def test_each_filter_lists_what_it_deletes() -> None:
    cluster = Cluster()
    create(cluster, {}, {"resource_name": "u"}, {"resource_name": "v"})
    cluster.kinds()
    first, second, third = delete(
        cluster,
        {"resource_name_filter": "t"},
        {"principal_filter": "User:alice", "resource_name_filter": "t"},
        {"resource_name_filter": "u"},
    )
    for result in (first, second):
        assert [acl.resource_name for acl in result.matching_acls] == ["t"]
    assert third.matching_acls[0].principal == "User:alice"
    assert cluster.kinds() == ["RemoveAccessControlEntry"] * 2
    assert names(cluster) == ["v"]


def test_unknown_codes_in_a_filter_are_rejected_alone() -> None:
    cluster = Cluster()
    create(cluster, {})
    results = delete(cluster, {"resource_type_filter": 99}, {"operation": 99}, {})
    assert [result.error_message for result in results[:2]] == [
        "Unknown patternFilter.",
        "Unknown entryFilter.",
    ]
    assert len(results[2].matching_acls) == 1
    assert names(cluster) == []
