"""The ACL filters of DescribeAcls and DeleteAcls."""

from collections.abc import Generator, Mapping
from typing import NamedTuple, Protocol

from kwire.security.acls import ANY, LITERAL, MATCH, STEP_ACLS, WILDCARD, Acl


class AclFilter(NamedTuple):
    """The ACLs that DescribeAcls lists or DeleteAcls deletes; None matches every name."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def selects(self, acl: Acl) -> bool:
        """Return whether the filter matches an ACL."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.operation in (ANY, acl.operation)
            and self.permission_type in (ANY, acl.permission_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._selects_pattern(acl)
        )

    def _selects_pattern(self, acl: Acl) -> bool:
        """Return whether the pattern matches; MATCH selects all patterns that cover the name."""
        if self.pattern_type not in (ANY, MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None or name == acl.resource_name:
            return True
        if self.pattern_type != MATCH:
            return False
        if acl.pattern_type == LITERAL:
            return acl.resource_name == WILDCARD
        return name.startswith(acl.resource_name)


class FilterFields(Protocol):
    """The fields of a filter in DescribeAcls and DeleteAcls."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def filter_of(fields: FilterFields) -> AclFilter:
    """Convert a filter from its form in requests."""
    return AclFilter(
        fields.resource_type_filter,
        fields.resource_name_filter,
        fields.pattern_type_filter,
        fields.principal_filter,
        fields.host_filter,
        fields.operation,
        fields.permission_type,
    )


def selecting(
    acls: Mapping[bytes, Acl], selected: AclFilter
) -> Generator[None, None, list[tuple[bytes, Acl]]]:
    """Return the ACLs that match a filter, with their ids, step by step."""
    matches = []
    for count, (acl_id, acl) in enumerate(acls.items(), 1):
        if selected.selects(acl):
            matches.append((acl_id, acl))
        if count % STEP_ACLS == 0:
            yield
    return matches
