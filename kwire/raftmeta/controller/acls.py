"""The decisions on CreateAcls and DeleteAcls.

Both are decided in slices: a request may create thousands of ACLs, and each filter of a deletion is
compared with all of them.
"""

from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from kwire.codec.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from kwire.errors import KafkaError
from kwire.raftmeta.controller.state import (
    USER_RECORDS_MAX,
    ControllerDecision,
    ControllerState,
    check_bound,
)
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.metadata.image_records import acl_record
from kwire.security.acl_filters import AclFilter, filter_of, selecting
from kwire.security.acls import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    CLUSTER_TYPE,
    DENY,
    LITERAL,
    MATCH,
    OPERATIONS,
    PREFIXED,
    RESOURCE_TYPES,
    Acl,
)

Creation = CreateAclsRequest.AclCreation
Created = CreateAclsResponse.AclCreationResult
Deleted = DeleteAclsResponse.DeleteAclsFilterResult

_TYPE_CODES: Final = frozenset(RESOURCE_TYPES.values())
_OPERATION_CODES: Final = frozenset(OPERATIONS.values())
_PATTERNS: Final = frozenset({LITERAL, PREFIXED})
_PERMISSIONS: Final = frozenset({ALLOW, DENY})


def decide_create_acls(
    state: ControllerState, request: CreateAclsRequest
) -> Steps[ControllerDecision[CreateAclsResponse]]:
    """Create ACLs; an existing ACL is confirmed without a record."""
    records: dict[Acl, r.AccessControlEntryRecord] = {}
    results: list[Created] = []
    for creation in request.creations:
        acl = _acl_of(creation)
        try:
            _check_new(acl)
        except KafkaError as error:
            results.append(Created(error_code=error.code, error_message=error.text))
        else:
            if acl not in state.image.acl_ids and acl not in records:
                records[acl] = acl_record(state.new_id(), acl)
            results.append(Created(error_message=""))
        yield
    written = tuple(records.values())
    check_bound(written)
    return ControllerDecision(written, CreateAclsResponse(results=results))


def _acl_of(creation: Creation) -> Acl:
    return Acl(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _check_new(acl: Acl) -> None:
    """Raise InvalidRequest for an ACL that cannot be created."""
    if acl.resource_type == CLUSTER_TYPE and acl.resource_name != CLUSTER_NAME:
        raise errors.InvalidRequest(
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        )
    if not acl.resource_name:
        raise errors.InvalidRequest("Invalid empty resource name")
    if ":" not in acl.principal:
        raise errors.InvalidRequest(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    for field, code, codes, names in (
        ("resourceType", acl.resource_type, _TYPE_CODES, {ANY: "ANY"}),
        ("patternType", acl.pattern_type, _PATTERNS, {ANY: "ANY", MATCH: "MATCH"}),
        ("operation", acl.operation, _OPERATION_CODES, {ANY: "ANY"}),
        ("permissionType", acl.permission_type, _PERMISSIONS, {ANY: "ANY"}),
    ):
        if code not in codes:
            raise errors.InvalidRequest(f"Invalid {field} {names.get(code, 'UNKNOWN')}")


def decide_delete_acls(
    state: ControllerState, request: DeleteAclsRequest
) -> Steps[ControllerDecision[DeleteAclsResponse]]:
    """Delete the ACLs that match the filters; several filters may match the same ACL.

    A request that would delete more ACLs than one request may write is rejected as a whole.
    """
    records: dict[bytes, r.RemoveAccessControlEntryRecord] = {}
    results: list[Deleted] = []
    for each in request.filters:
        selected = filter_of(each)
        if (unknown := _unknown_part(selected)) is not None:
            error = errors.InvalidRequest(f"Unknown {unknown}.")
            results.append(Deleted(error_code=error.code, error_message=error.text))
            continue
        result = Deleted()
        for acl_id, acl in (yield from selecting(state.image.acls, selected)):
            records[acl_id] = r.RemoveAccessControlEntryRecord(id=acl_id)
            result.matching_acls.append(Deleted.DeleteAclsMatchingAcl(**acl._asdict()))
            yield
        if len(records) > USER_RECORDS_MAX:
            raise errors.InvalidRequest(
                f"Cannot remove more than {USER_RECORDS_MAX} acls in a single delete operation."
            )
        results.append(result)
    return ControllerDecision(tuple(records.values()), DeleteAclsResponse(filter_results=results))


def _unknown_part(selected: AclFilter) -> str | None:
    """Return the part of a filter that has an unknown code, in Kafka's words."""
    if selected.resource_type not in {ANY, *_TYPE_CODES}:
        return "patternFilter"
    if selected.pattern_type not in {ANY, MATCH, *_PATTERNS}:
        return "patternFilter"
    if selected.operation not in {ANY, *_OPERATION_CODES}:
        return "entryFilter"
    return None if selected.permission_type in {ANY, *_PERMISSIONS} else "entryFilter"
