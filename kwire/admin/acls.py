"""List, create and remove the ACLs of a cluster."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kwire.admin.connection import AdminError, Connection
from kwire.admin.users import error_text
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.delete_acls import DeleteAclsRequest
from kwire.codec.messages.describe_acls import DescribeAclsRequest
from kwire.security.acls import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    DENY,
    LITERAL,
    OPERATIONS,
    OPERATIONS_OF,
    PREFIXED,
    RESOURCE_TYPES,
)

T = TypeVar("T")
_TYPE_NAMES: Final = {code: name for name, code in RESOURCE_TYPES.items()}
_OPERATION_NAMES: Final = {code: name for name, code in OPERATIONS.items()}
_PATTERNS: Final = {LITERAL: "literal", PREFIXED: "prefixed"}
_PERMISSIONS: Final = {ALLOW: "allow", DENY: "deny"}


class AclRow(NamedTuple):
    """One ACL, with the names of its codes."""

    principal: str
    permission: str
    operation: str
    resource: str
    name: str
    pattern: str
    host: str


class Selection(NamedTuple):
    """The ACLs to create or to find; None selects everything."""

    principal: str | None
    operations: Sequence[str]
    resource: str | None
    """A name of :data:`kwire.security.acls.RESOURCE_TYPES`."""
    name: str | None
    prefix: bool
    host: str | None

    @property
    def is_empty(self) -> bool:
        """True if it selects every ACL."""
        return not (self.principal or self.operations or self.resource or self.host)


def check_operations(resource: str, names: Sequence[str]) -> None:
    """Raise AdminError if a type of resource does not have an operation.

    A broker would accept the ACL, which could never apply.
    """
    possible = "All", *OPERATIONS_OF[resource]
    for name in names:
        if name.lower() not in (each.lower() for each in possible):
            raise AdminError(
                f"{name} is not an operation on a {resource}; choose from {', '.join(possible)}"
            )


def operation_codes(names: Sequence[str]) -> list[int]:
    """Return the codes of operations; raise AdminError for an unknown one."""
    by_name = {name.lower(): code for name, code in OPERATIONS.items()}
    for name in names:
        if name.lower() not in by_name:
            raise AdminError(f"{name} is not an operation; choose from {', '.join(OPERATIONS)}")
    return [by_name[name.lower()] for name in names]


async def add_acls(connection: Connection, selection: Selection, *, deny: bool) -> list[AclRow]:
    """Create an ACL for each operation, and return them; raise AdminError."""
    if not selection.operations or selection.resource is None:
        raise AdminError(
            "name one operation or more, and a resource: kwire acls add User:alice Read --topic T"
        )
    operations = operation_codes(selection.operations)
    check_operations(selection.resource, selection.operations)
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=RESOURCE_TYPES[selection.resource],
            resource_name=selection.name or CLUSTER_NAME,
            resource_pattern_type=PREFIXED if selection.prefix else LITERAL,
            principal=selection.principal or "",
            host=selection.host or "*",
            operation=operation,
            permission_type=DENY if deny else ALLOW,
        )
        for operation in operations
    ]
    answer = await connection.call(CreateAclsRequest(creations=creations))
    for result in answer.results:
        if result.error_code:
            text = error_text(result.error_code, result.error_message)
            raise AdminError(f"cannot create ACLs: {text}")
    return [_row(c.resource_type, c.resource_name, c.resource_pattern_type, c) for c in creations]


async def list_acls(connection: Connection, selection: Selection) -> list[AclRow]:
    """Return the ACLs that match a selection; raise AdminError."""
    rows = []
    for operation in operation_codes(selection.operations) or [ANY]:
        answer = await connection.call(_filter(DescribeAclsRequest, selection, operation))
        if answer.error_code:
            text = error_text(answer.error_code, answer.error_message)
            raise AdminError(f"cannot list ACLs: {text}")
        for resource in answer.resources:
            kind, name, pattern = (
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
            )
            rows += [_row(kind, name, pattern, acl) for acl in resource.acls]
    return sorted(rows)


async def remove_acls(connection: Connection, selection: Selection) -> list[AclRow]:
    """Remove the ACLs that match a selection, and return them; raise AdminError if none does."""
    filters = [
        _filter(DeleteAclsRequest.DeleteAclsFilter, selection, operation)
        for operation in operation_codes(selection.operations) or [ANY]
    ]
    answer = await connection.call(DeleteAclsRequest(filters=filters))
    rows = []
    for result in answer.filter_results:
        errors = [(result.error_code, result.error_message)]
        errors += [(acl.error_code, acl.error_message) for acl in result.matching_acls]
        for code, message in errors:
            if code:
                raise AdminError(f"cannot remove ACLs: {error_text(code, message)}")
        rows += [
            _row(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
            for acl in result.matching_acls
        ]
    if not rows:
        raise AdminError("no ACL matches; `kwire acls list` shows those that exist")
    return sorted(rows)


def _filter(new_filter: Callable[..., T], selection: Selection, operation: int) -> T:
    """Return a request's filter for one operation of a selection."""
    return new_filter(
        resource_type_filter=RESOURCE_TYPES.get(selection.resource or "", ANY),
        resource_name_filter=CLUSTER_NAME if selection.resource == "Cluster" else selection.name,
        pattern_type_filter=_pattern(selection),
        principal_filter=selection.principal,
        host_filter=selection.host,
        operation=operation,
        permission_type=ANY,
    )


def _pattern(selection: Selection) -> int:
    if selection.name is None:
        return ANY
    return PREFIXED if selection.prefix else LITERAL


def _row(kind: int, name: str, pattern: int, acl: "_Fields") -> AclRow:
    return AclRow(
        acl.principal,
        _PERMISSIONS.get(acl.permission_type, str(acl.permission_type)),
        _OPERATION_NAMES.get(acl.operation, str(acl.operation)),
        _TYPE_NAMES.get(kind, str(kind)),
        name,
        _PATTERNS.get(pattern, str(pattern)),
        acl.host,
    )


class _Fields(Protocol):
    """The fields of an ACL in a request or a response."""

    principal: str
    host: str
    operation: int
    permission_type: int
