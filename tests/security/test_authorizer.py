"""The decisions of the authorizer, case by case and against a plain reading of Kafka's rules."""

import tracemalloc
from collections.abc import Iterable
from random import Random

import pytest

from kwire.drive import run_steps
from kwire.errors import UnknownServerError
from kwire.security.acls import ALLOW, DENY, LITERAL, OPERATIONS, PREFIXED, RESOURCE_TYPES, Acl
from kwire.security.authorizer import AclIndex, Authorizer, IndexChange, java_host

ALICE, BOB, ROOT = ("User", "alice"), ("User", "bob"), ("User", "root")
HOST = "10.0.0.1"
IMPLIED = {
    "Describe": {"Describe", "Read", "Write", "Delete", "Alter"},
    "DescribeConfigs": {"DescribeConfigs", "AlterConfigs"},
}


def acl(
    name: str,
    operation: str = "Read",
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: int = LITERAL,
    permission: int = ALLOW,
    kind: str = "Topic",
) -> Acl:
    return Acl(
        RESOURCE_TYPES[kind], name, pattern, principal, host, OPERATIONS[operation], permission
    )


def index_of(acls: Iterable[Acl], index: AclIndex | None = None) -> AclIndex:
    change = IndexChange(index or AclIndex())
    for each in acls:
        change.add(each)
    return change.finish()


def authorizer(*acls: Acl, allows_uncovered: bool = False) -> Authorizer:
    subject = Authorizer(frozenset({ROOT}), allows_uncovered)
    subject.replace_index(index_of(acls))
    return subject


def may(
    subject: Authorizer,
    operation: str,
    name: str,
    principal: tuple[str, str] = ALICE,
    host: str = HOST,
    kind: str = "Topic",
) -> bool:
    answer = subject.allows(principal, host, operation, kind, name)
    assert subject.allows(principal, host, operation, kind, name) == answer, "the kept decision"
    return answer


@pytest.mark.parametrize(
    ("acls", "operation", "name", "allowed"),
    [
        ((), "Read", "t", False),
        ((acl("t"),), "Read", "t", True),
        ((acl("t"),), "Read", "tt", False),
        ((acl("t"),), "Write", "t", False),
        ((acl("t", kind="Group"),), "Read", "t", False),
        ((acl("*"),), "Read", "t", True),
        ((acl("*", pattern=PREFIXED),), "Read", "t", False),
        ((acl("*", pattern=PREFIXED),), "Read", "*t", True),
        ((acl("ab", pattern=PREFIXED),), "Read", "abc", True),
        ((acl("ab", pattern=PREFIXED),), "Read", "ab", True),
        ((acl("ab", pattern=PREFIXED),), "Read", "a", False),
        ((acl("ab"),), "Read", "abc", False),
        ((acl("t", "All"),), "AlterConfigs", "t", True),
        ((acl("t", principal="User:*"),), "Read", "t", True),
        ((acl("t", principal="User:bob"),), "Read", "t", False),
        ((acl("t", principal="Group:alice"),), "Read", "t", False),
        ((acl("t", host=HOST),), "Read", "t", True),
        ((acl("t", host="10.0.0.2"),), "Read", "t", False),
        ((acl("t"), acl("t", permission=DENY)), "Read", "t", False),
        ((acl("t"), acl("*", permission=DENY)), "Read", "t", False),
        ((acl("tt"), acl("t", pattern=PREFIXED, permission=DENY)), "Read", "tt", False),
        ((acl("t"), acl("t", "All", permission=DENY)), "Read", "t", False),
        ((acl("t"), acl("t", principal="User:*", permission=DENY)), "Read", "t", False),
        ((acl("t"), acl("t", host=HOST, permission=DENY)), "Read", "t", False),
        ((acl("t"), acl("t", host="h", permission=DENY)), "Read", "t", True),
        ((acl("t", "Alter"),), "Describe", "t", True),
        ((acl("t", "Create"),), "Describe", "t", False),
        ((acl("t", "AlterConfigs"),), "DescribeConfigs", "t", True),
        ((acl("t", "Describe"),), "DescribeConfigs", "t", False),
        ((acl("t", "Write"), acl("t", "Read", permission=DENY)), "Describe", "t", True),
        ((acl("t", "Write"), acl("t", "Describe", permission=DENY)), "Describe", "t", False),
    ],
)
def test_acls_decide(acls: tuple[Acl, ...], operation: str, name: str, allowed: bool) -> None:
    assert may(authorizer(*acls), operation, name) == allowed


def test_super_users_may_do_everything_even_before_the_acls_are_loaded() -> None:
    subject = Authorizer(frozenset({ROOT}), True)
    assert may(subject, "Delete", "t", ROOT)
    with pytest.raises(UnknownServerError):
        subject.allows(BOB, HOST, "Delete", "Topic", "t")
    subject.replace_index(index_of([acl("t", "All", principal="User:root", permission=DENY)]))
    assert may(subject, "Delete", "t", ROOT)
    assert not may(subject, "Delete", "t", BOB)


def test_uncovered_resources_are_open_to_everyone_only_if_the_setting_says_so() -> None:
    covered = acl("t", principal="User:bob")
    for allows_uncovered in (False, True):
        subject = authorizer(covered, allows_uncovered=allows_uncovered)
        assert may(subject, "Read", "other") is allows_uncovered
        assert not may(subject, "Read", "t"), "another principal's ACL covers the topic"


def test_a_changed_index_decides_at_once() -> None:
    subject = authorizer(acl("t"))
    assert may(subject, "Read", "t")
    change = IndexChange(subject.index)
    change.remove(acl("t"))
    subject.replace_index(change.finish())
    assert not may(subject, "Read", "t")


def test_ipv6_hosts_are_compared_in_the_form_of_java() -> None:
    assert java_host("::1") == "0:0:0:0:0:0:0:1"
    assert java_host("fe80::10%eth0") == "fe80:0:0:0:0:0:0:10%eth0"
    assert java_host("::ffff:10.0.0.1") == "10.0.0.1"
    subject = authorizer(acl("t", host="2001:db8:0:0:0:0:0:1"))
    assert may(subject, "Read", "t", host="2001:db8::1")


def naive(acls: list[Acl], who: tuple[str, str], operation: str, name: str) -> bool | None:
    """Decide by looking at every ACL; None if none covers the resource."""
    covering = [
        a
        for a in acls
        if (a.pattern_type == LITERAL and a.resource_name in (name, "*"))
        or (a.pattern_type == PREFIXED and name.startswith(a.resource_name))
    ]
    mine = [a for a in covering if a.principal in (who[0], "User:*") and a.host in (who[1], "*")]
    for a in mine:
        if a.permission_type == DENY and a.operation in (OPERATIONS[operation], 2):
            return False
    allowing = {2, *(OPERATIONS[each] for each in IMPLIED.get(operation, {operation}))}
    if any(a.permission_type == ALLOW and a.operation in allowing for a in mine):
        return True
    return False if covering else None


@pytest.mark.parametrize("seed", range(20))
def test_the_index_decides_as_a_scan_of_all_acls(seed: int) -> None:
    draw = Random(seed)
    names = ["*", "a", "ab", "abc", "abd", "b", "ba"]
    operations = ["Read", "Write", "Describe", "AlterConfigs", "DescribeConfigs", "All"]
    index, acls = AclIndex(), set[Acl]()
    for _ in range(30):
        change = IndexChange(index)
        for _ in range(draw.randrange(4)):
            added = acl(
                draw.choice(names),
                draw.choice(operations),
                principal=draw.choice(["User:alice", "User:*"]),
                host=draw.choice(["*", HOST]),
                pattern=draw.choice([LITERAL, PREFIXED]),
                permission=draw.choice([ALLOW, ALLOW, DENY]),
            )
            if added not in acls:
                acls.add(added)
                change.add(added)
        for removed in draw.sample(sorted(acls), min(len(acls), draw.randrange(4))):
            acls.remove(removed)
            change.remove(removed)
        index = change.finish()
        for name in [*names, "abcd", "c"]:
            for operation in operations[:-1]:
                for who in (("User:alice", HOST), ("User:bob", "h")):
                    decision = index.decide(who, OPERATIONS[operation], 2, name)
                    assert decision == naive(sorted(acls), who, operation, name), (name, operation)


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ((), False),
        ((acl("t", "Write"),), True),
        ((acl("t", "Read"),), False),
        ((acl("t", "All"),), True),
        ((acl("*", "Write"),), True),
        ((acl("t", "Write", kind="Group"),), False),
        ((acl("t", "Write", principal="User:bob"),), False),
        ((acl("t", "Write", host="h"),), False),
        ((acl("t", "Write"), acl("*", "Write", permission=DENY)), False),
        ((acl("t", "Write"), acl("t", "Write", permission=DENY)), False),
        ((acl("t", "Write"), acl("u", "Write", permission=DENY)), True),
        ((acl("tt", "Write"), acl("t", "Write", pattern=PREFIXED, permission=DENY)), False),
        ((acl("t", "Write", pattern=PREFIXED), acl("t", "Write", permission=DENY)), True),
    ],
)
def test_a_permission_on_some_resource(acls: tuple[Acl, ...], allowed: bool) -> None:
    subject = authorizer(*acls)
    for _ in range(2):
        assert run_steps(subject.allowing_some(ALICE, HOST, "Write", "Topic")) == allowed


def test_a_decision_on_changed_acls_is_not_kept() -> None:
    subject = authorizer(acl("t", "Write"))
    steps = subject.allowing_some(ALICE, HOST, "Write", "Topic")
    next(steps)
    subject.replace_index(AclIndex())
    run_steps(steps)
    assert not run_steps(subject.allowing_some(ALICE, HOST, "Write", "Topic"))


def test_decisions_on_endless_names_take_no_memory() -> None:
    """A client chooses the names, of up to 32 KB each."""
    subject = authorizer(acl("topic"))
    tracemalloc.start()
    try:
        for number in range(500):
            assert not may(subject, "Read", f"{number}" + "x" * 30_000)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1 << 20
