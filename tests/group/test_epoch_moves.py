"""The usual step to a new target: member and record are those of the general way."""

from typing import Final

import hypothesis.strategies as st
from hypothesis import given

from kwire.group.consumer.epoch_moves import epoch_move
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember, MemberState
from kwire.group.consumer.reconciliation import reconcile
from kwire.group.consumer.records import current_record
from kwire.group.consumer.target import topic_ids_of
from kwire.group.records import store
from kwire.records.build import encode_record
from tests.support.group.topics import FakeTopics, topic_id

NAMES: Final = ["a", "b", "c"]
GROUP_IDS: Final = st.sampled_from(["g", "gruppe-ä", "g" * 300])
NUMBERS: Final = st.sets(st.integers(0, 3), max_size=3) | st.sampled_from(
    [frozenset(range(31)), frozenset(range(32)), frozenset(range(200))]
)
PARTITIONS: Final = st.dictionaries(st.sampled_from(NAMES), NUMBERS, max_size=3)


@st.composite
def moves(draw: st.DrawFn) -> tuple[ConsumerGroup, ConsumerMember]:
    """Draw a group with a member that is behind the target, which often has what is assigned."""
    target = draw(PARTITIONS)
    owned = target if draw(st.booleans()) else draw(PARTITIONS)
    epochs = draw(st.sampled_from([{0: 3, 1: 1}, {}]))
    assigned = {
        topic_id(name): {number: epochs.get(number, 2) for number in numbers}
        for name, numbers in owned.items()
        if numbers
    }
    member = ConsumerMember(
        "m",
        epoch=4,
        previous_epoch=draw(st.integers(-1, 4)),
        state=draw(st.sampled_from([MemberState.STABLE] * 4 + [MemberState.UNRELEASED])),
        instance_id=draw(st.sampled_from([None, "i"])),
        topics=frozenset(draw(st.sampled_from([NAMES, NAMES, ["a"]]))),
        assigned=assigned,
    )
    group = ConsumerGroup(draw(GROUP_IDS), epoch=6, assignment_epoch=6)
    group.target["m"] = {topic_id(name): frozenset(target[name]) for name in target}
    group.apply_member(member)
    return group, member


@given(moves(), st.sampled_from([NAMES, NAMES, ["a", "b"]]))
def test_move_is_the_one_of_the_general_way(
    drawn: tuple[ConsumerGroup, ConsumerMember], existing: list[str]
) -> None:
    group, member = drawn
    topics = FakeTopics(dict.fromkeys(existing, 200))
    draft = epoch_move(group, member, topics, 1000)
    subscribed = topic_ids_of(member.topics, topics)
    target = group.target["m"]
    expected = reconcile(group, member, 6, target, subscribed, None, has_subscription_changed=False)
    keeps = expected.state == member.state == MemberState.STABLE
    if draft is None:
        same = [*target] == [*member.assigned] and subscribed >= target.keys()
        assert not (keeps and same and expected.assigned == member.assigned)
    else:
        assert keeps
        assert draft.change.member == expected
        record = store(current_record(group.group_id, expected))
        assert draft.payload == encode_record(0, 0, *record)
        assert draft.count == 1
