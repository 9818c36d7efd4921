"""The decisions of Kafka's StandardAuthorizer: whether ACLs allow an operation on a resource.

The ACLs that cover a resource are those of its literal name, of the name ``*``, and of every prefix
of its name. If one of them denies the operation to the client, it is denied; otherwise it is
allowed if one of them allows it. If no ACL covers the resource,
``allow.everyone.if.no.acl.found`` decides. Super users may do everything.

Rules: a check looks up the covering resources and never walks over ACLs; an index never changes,
and a new one shares everything but the changed resources; decisions are kept until the index
changes. Nothing here waits.
"""

import logging
from bisect import bisect_left
from collections.abc import Generator
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeAlias

import attrs
from immutables import Map, MapMutation

from kwire.errors import UnknownServerError
from kwire.security.acls import (
    ALL,
    ALLOW,
    ANY_PRINCIPAL,
    LITERAL,
    OPERATIONS,
    PREFIXED,
    RESOURCE_TYPES,
    WILDCARD,
    Acl,
)

logger = logging.getLogger(__name__)

KEPT_DECISIONS: Final = 10_000
"""The number of decisions that are kept; dropping them all takes less than a millisecond."""
KEPT_NAME_LENGTH: Final = 255
"""The longest name for which a decision is kept: clients may ask for names of 32 KB, which no topic
has."""
Resource: TypeAlias = tuple[int, int, str]
"""A resource type, a pattern type and a name."""
Who: TypeAlias = tuple[str, str]
"""A principal and a host."""


class Rights(NamedTuple):
    """The operations that are allowed and denied, as bits."""

    allowed: int = 0
    denied: int = 0


def _bits(*operations: str) -> int:
    return sum(1 << OPERATIONS[operation] for operation in (*operations, "All"))


_DENIED_BY: Final = {code: 1 << code | 1 << ALL for code in OPERATIONS.values()}
"""The operations whose denial denies an operation."""
_ALLOWED_BY: Final = _DENIED_BY | {
    OPERATIONS["Describe"]: _bits("Describe", "Read", "Write", "Delete", "Alter"),
    OPERATIONS["DescribeConfigs"]: _bits("DescribeConfigs", "AlterConfigs"),
}
"""The operations whose permission allows an operation."""
_NOBODY: Final["Map[Who, Rights]"] = Map()


class PrefixLengths(NamedTuple):
    """The lengths of the prefixed resources of one type."""

    ascending: tuple[int, ...] = ()
    counts: "Map[int, int]" = Map()
    """The number of resources of each length."""


_NO_LENGTHS: Final = PrefixLengths()


@attrs.frozen(eq=False, repr=False)
class AclIndex:
    """The ACLs at one moment, by resource."""

    resources: "Map[Resource, Map[Who, Rights]]" = attrs.field(factory=Map)
    prefix_lengths: "Map[int, PrefixLengths]" = attrs.field(factory=Map)
    """By resource type."""

    def _covering(self, resource_type: int, name: str) -> list["Map[Who, Rights]"]:
        """Return the rights of each pattern that covers a resource."""
        find = self.resources.get
        matches = [find((resource_type, LITERAL, name))]
        if name != WILDCARD:
            matches.append(find((resource_type, LITERAL, WILDCARD)))
        size = len(name)
        for length in self.prefix_lengths.get(resource_type, _NO_LENGTHS).ascending:
            if length > size:
                break
            matches.append(find((resource_type, PREFIXED, name[:length])))
        return [rights_of for rights_of in matches if rights_of is not None]

    def decide(self, who: Who, operation: int, resource_type: int, name: str) -> bool | None:
        """Return whether ACLs allow an operation; None if no ACL covers the resource."""
        covering = self._covering(resource_type, name)
        if not covering:
            return None
        denied_by, allowed_by = _DENIED_BY[operation], _ALLOWED_BY[operation]
        allowed = False
        everyone = _everyone(who)
        for rights_of in covering:
            for each in everyone:
                rights = rights_of.get(each)
                if rights is not None:
                    if rights.denied & denied_by:
                        return False
                    allowed = allowed or bool(rights.allowed & allowed_by)
        return allowed

    def deciding_on_some(
        self, who: Who, operation: int, resource_type: int
    ) -> Generator[None, None, bool]:
        """Decide step by step whether at least one resource of a type is allowed.

        A denial of all resources denies; otherwise a permission is effective unless a denial with
        the same literal name, or with a prefix of its name, covers it entirely. As in Kafka, only
        the operation itself and All are considered here.
        """
        mask, everyone = _DENIED_BY[operation], _everyone(who)
        allowed: list[Resource] = []
        denied: set[Resource] = set()
        for resource, rights_of in self.resources.items():
            yield
            if resource[0] != resource_type:
                continue
            rights = [rights_of.get(each, Rights()) for each in everyone]
            if any(each.denied & mask for each in rights):
                denied.add(resource)
            if any(each.allowed & mask for each in rights):
                allowed.append(resource)
        if (resource_type, LITERAL, WILDCARD) in denied:
            return False
        for _, pattern_type, name in allowed:
            yield
            if (pattern_type, name) == (LITERAL, WILDCARD):
                return True
            if pattern_type == LITERAL and (resource_type, LITERAL, name) in denied:
                continue
            prefixes = ((resource_type, PREFIXED, name[: end + 1]) for end in range(len(name)))
            if denied.isdisjoint(prefixes):
                return True
        return False


def _everyone(who: Who) -> tuple[Who, ...]:
    """Return the principals and hosts of ACLs that apply to a client."""
    principal, host = who
    return who, (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)


class IndexChange:
    """An index while it is being changed; used once."""

    def __init__(self, index: AclIndex) -> None:
        self._resources: MapMutation[Resource, Map[Who, Rights]] = index.resources.mutate()
        self._lengths: MapMutation[int, PrefixLengths] = index.prefix_lengths.mutate()

    def add(self, acl: Acl) -> None:
        """Add an ACL."""
        resource = (acl.resource_type, acl.pattern_type, acl.resource_name)
        rights_of = self._resources.get(resource)
        if rights_of is None:
            rights_of = _NOBODY
            self._count(resource, 1)
        who, bit = (acl.principal, acl.host), 1 << acl.operation
        allowed, denied = rights_of.get(who, Rights())
        is_allowed = acl.permission_type == ALLOW
        rights = Rights(allowed | bit, denied) if is_allowed else Rights(allowed, denied | bit)
        self._resources[resource] = rights_of.set(who, rights)

    def remove(self, acl: Acl) -> None:
        """Remove an ACL that was added."""
        resource = (acl.resource_type, acl.pattern_type, acl.resource_name)
        who, bit = (acl.principal, acl.host), 1 << acl.operation
        rights_of = self._resources[resource]
        allowed, denied = rights_of[who]
        is_allowed = acl.permission_type == ALLOW
        rights = Rights(allowed & ~bit, denied) if is_allowed else Rights(allowed, denied & ~bit)
        rights_of = rights_of.set(who, rights) if any(rights) else rights_of.delete(who)
        if rights_of:
            self._resources[resource] = rights_of
        else:
            del self._resources[resource]
            self._count(resource, -1)

    def _count(self, resource: Resource, change: int) -> None:
        resource_type, pattern_type, name = resource
        if pattern_type != PREFIXED:
            return
        ascending, counts = self._lengths.get(resource_type, _NO_LENGTHS)
        length = len(name)
        count = counts.get(length, 0) + change
        place = bisect_left(ascending, length)
        if not count:
            ascending = ascending[:place] + ascending[place + 1 :]
        elif length not in counts:
            ascending = (*ascending[:place], length, *ascending[place:])
        counts = counts.set(length, count) if count else counts.delete(length)
        self._lengths[resource_type] = PrefixLengths(ascending, counts)

    def finish(self) -> AclIndex:
        """Return the changed index."""
        return AclIndex(self._resources.finish(), self._lengths.finish())


def java_host(host: str) -> str:
    """Return an address in the form that Kafka compares with ACL hosts: IPv6 without ``::``."""
    if ":" not in host:
        return host
    address, _, scope = host.partition("%")
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    groups = parsed.exploded.split(":")
    full = ":".join(group.lstrip("0") or "0" for group in groups)
    return f"{full}%{scope}" if scope else full


@attrs.define(eq=False, repr=False)
class Authorizer:
    """Makes the authorization decisions of one node."""

    super_users: frozenset[tuple[str, str]]
    """The principals that may do everything, by kind and name."""
    allows_uncovered: bool
    """True if everything is allowed on a resource that no ACL covers."""
    is_loaded: bool = False
    """True once the ACLs in the metadata log are known; until then only super users are served."""
    _index: AclIndex = attrs.field(factory=AclIndex)
    _decisions: dict[tuple[tuple[str, str], str, str, str, str | None], bool] = attrs.field(
        factory=dict
    )
    """The decisions so far, by principal, host, operation, resource type and name; the name None
    stands for some resource."""

    @property
    def index(self) -> AclIndex:
        """The ACLs in force."""
        return self._index

    def replace_index(self, index: AclIndex) -> None:
        """Replace all ACLs, and forget the decisions that the former ones led to."""
        self._index, self.is_loaded = index, True
        self._decisions.clear()

    def allows(
        self, principal: tuple[str, str], host: str, operation: str, resource_type: str, name: str
    ) -> bool:
        """Return whether a client may perform an operation on a resource.

        Raises UnknownServerError, as Kafka does, while the ACLs are not loaded.
        """
        key = (principal, host, operation, resource_type, name)
        decision = self._decisions.get(key)
        return self._decide(key) if decision is None else decision

    def _decide(self, key: tuple[tuple[str, str], str, str, str, str]) -> bool:
        principal, host, operation, resource_type, name = key
        if principal in self.super_users:
            return True
        self._check_loaded()
        allowed = self._index.decide(
            (":".join(principal), java_host(host)),
            OPERATIONS[operation],
            RESOURCE_TYPES[resource_type],
            name,
        )
        decision = self.allows_uncovered if allowed is None else allowed
        if not decision and logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "denied principal=%s host=%s operation=%s resource=%s:%s",
                ":".join(principal),
                host,
                operation,
                resource_type,
                name,
            )
        self._keep(key, decision)
        return decision

    def allowing_some(
        self, principal: tuple[str, str], host: str, operation: str, resource_type: str
    ) -> Generator[None, None, bool]:
        """Decide step by step whether a client may perform an operation on some resource."""
        key = (principal, host, operation, resource_type, None)
        decision = self._decisions.get(key)
        if decision is None:
            index = self._index
            decision = self.allows(principal, host, operation, resource_type, "hardcode")
            if not decision:
                decision = yield from index.deciding_on_some(
                    (":".join(principal), java_host(host)),
                    OPERATIONS[operation],
                    RESOURCE_TYPES[resource_type],
                )
            if index is self._index:
                self._keep(key, decision)
        return decision

    def _check_loaded(self) -> None:
        if not self.is_loaded:
            raise UnknownServerError("the ACLs are not loaded yet")

    def _keep(self, key: tuple[tuple[str, str], str, str, str, str | None], decision: bool) -> None:
        *_, name = key
        if name is not None and len(name) > KEPT_NAME_LENGTH:
            return
        if len(self._decisions) >= KEPT_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = decision
