"""The checks of groups whose partitions the coordinator assigns find each anomaly."""

import attrs

from compat_tests.durability.group_views import GroupMember, GroupView
from compat_tests.durability.history import History, anomalies
from compat_tests.durability.observations import Commit, Place

GROUP = "group"
FIRST: Place = ("orders", 0)
SECOND: Place = ("orders", 1)


def make_member(name: str, epoch: int, *owned: Place) -> GroupMember:
    return GroupMember(name, epoch, frozenset(owned), frozenset(owned))


def make_view(*members: GroupMember, epoch: int = 2, ended: float = 10.0) -> GroupView:
    return GroupView(GROUP, "Stable", epoch, members, ended)


def find_anomalies(*views: GroupView, commits: tuple[Commit, ...] = ()) -> list[str]:
    by_check = anomalies(History(group_views=list(views), commits=list(commits)))
    return by_check.get("group_anomalies", [])


def test_partition_that_moves_at_a_new_epoch_has_one_owner() -> None:
    before = make_view(make_member("a", 2, FIRST), make_member("b", 2, SECOND))
    after = make_view(make_member("b", 3, FIRST, SECOND), epoch=3, ended=11.0)
    assert find_anomalies(before, after) == []


def test_two_members_of_one_description_own_a_partition() -> None:
    """Invariant 66."""
    view = make_view(make_member("a", 2, FIRST), make_member("b", 3, FIRST))
    assert len(find_anomalies(view)) == 1


def test_two_members_own_a_partition_at_one_epoch() -> None:
    """Invariant 66."""
    before = make_view(make_member("a", 2, FIRST))
    after = make_view(make_member("b", 2, FIRST), ended=11.0)
    assert len(find_anomalies(before, after)) == 1


def test_last_description_has_an_epoch_below_an_earlier_one() -> None:
    """Invariant 72; a former coordinator may answer late, but not in the end."""
    views = [make_view(epoch=epoch, ended=epoch_time) for epoch_time, epoch in enumerate((2, 4, 3))]
    assert len(find_anomalies(*views)) == 1
    assert find_anomalies(*views, make_view(epoch=4, ended=9.0)) == []


def test_former_owner_commits_below_the_next_owner() -> None:
    """Invariant 69."""
    view = make_view()
    commit = Commit(GROUP, FIRST, 20, 1.0, 2.0, "ok", client="b")
    late = Commit(GROUP, FIRST, 10, 3.0, 4.0, "ok", client="a")
    assert len(find_anomalies(view, commits=(commit, late))) == 1
    for sound in (
        attrs.evolve(late, outcome="failed"),
        attrs.evolve(late, client="b"),
        attrs.evolve(late, began=1.5),
        attrs.evolve(late, offset=20),
    ):
        assert find_anomalies(view, commits=(commit, sound)) == []


def test_group_is_settled_when_each_member_owns_its_target_and_no_partition_is_missing() -> None:
    both = frozenset({FIRST, SECOND})
    settled = make_view(make_member("a", 2, FIRST), make_member("b", 2, SECOND))
    assert settled.is_settled(both)
    assert not attrs.evolve(settled, state="Reconciling").is_settled(both)
    assert not make_view(make_member("a", 2, FIRST)).is_settled(both)
    moving = GroupMember("b", 2, frozenset({SECOND}), both)
    assert not make_view(make_member("a", 2, FIRST), moving).is_settled(both)
