"""Groups with members that change the protocol, and members of both protocols in one group.

They show invariants 66, 68, 69, 71, 72 and 74.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from kwire.codec.compile import encode
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.coordinator.decision import Decision, Moment, Step
from kwire.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kwire.group.consumer import large_migration
from kwire.group.consumer import requests as consumer_requests
from kwire.group.consumer.embedded import read_assignment
from kwire.group.consumer.model import ConsumerGroup
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.decision_builder import Client
from kwire.group.model import ClassicGroupState
from kwire.group.shard import GroupShard
from tests.support.group.sim import Sim
from tests.support.group.topics import topic_id

ALL = [0, 1, 2, 3]


def subscription(*partitions: int, topics: tuple[str, ...] = ("t",)) -> bytes:
    """Return a subscription whose member says that it owns these partitions of ``t``."""
    owned = ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=list(partitions))
    message = ConsumerProtocolSubscription(
        topics=list(topics), owned_partitions=[owned] if partitions else []
    )
    return b"\0\1" + encode(message, 1)


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    topic = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=list(partitions))
    message = ConsumerProtocolAssignment(assigned_partitions=[topic], user_data=user_data)
    return b"\0\1" + encode(message, 1)


@pytest.fixture(params=["in one decision", "in slices"])
def sim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sim:
    """Return a simulation that changes the protocol of small groups as that of large ones too."""
    if request.param == "in slices":
        monkeypatch.setattr(large_migration, "_MEMBERS_AT_ONCE", 0)
    sim = Sim()
    sim.topics.put("t", 4)
    return sim


def consumer_group(sim: Sim) -> ConsumerGroup:
    group = sim.groups.consumer_group("g")
    assert group is not None
    return group


def join(sim: Sim, member_id: str, *owned: int, instance: str | None = None) -> int:
    """Have a member of the classic protocol join, and return the generation."""
    protocols = {"range": subscription(*owned)}
    reply = sim.reply(sim.join(member_id, member_id, protocols=protocols, instance=instance))
    assert reply.error_code == 0
    assert (reply.protocol_type, reply.protocol_name) == ("consumer", "range")
    assert reply.member_id == member_id
    generation: int = reply.generation_id
    return generation


def sync(sim: Sim, member_id: str, generation: int) -> list[int]:
    """Return the partitions of ``t`` that a member of the classic protocol receives."""
    reply = sim.reply(sim.sync(member_id, member_id, generation))
    if reply.error_code:
        raise RebalanceInProgress if reply.error_code == RebalanceInProgress.code else KafkaError
    partitions = read_assignment(reply.assignment, sim.topics)
    assert partitions is not None
    return sorted(number for numbers in partitions.values() for number in numbers)


def has_to_rejoin(sim: Sim, member_id: str, generation: int) -> bool:
    code: int = sim.reply(sim.heartbeat(member_id, member_id, generation)).error_code
    assert code in (0, RebalanceInProgress.code)
    return code != 0


def classic_group(sim: Sim, **options: bytes) -> str:
    """Create a classic group with one member that has all partitions; return the member's id."""
    ticket = sim.join("c", protocols={"range": subscription()})
    member_id: str = sim.reply(ticket).member_id
    ticket = sim.join("c", member_id, protocols={"range": subscription()})
    sim.fire_due()
    assert sim.reply(ticket).generation_id == 1
    sim.sync("c", member_id, 1, {member_id: options.get("assigned", assignment(*ALL))})
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE
    return member_id


def test_live_classic_group_becomes_a_consumer_group_and_shares_its_partitions(sim: Sim) -> None:
    c = classic_group(sim)
    assert sim.consume("b") == (2, {})
    assert "g" not in sim.groups.groups
    group = consumer_group(sim)
    assert (group.epoch, group.classic_count, group.state.value) == (2, 1, "Reconciling")
    assert has_to_rejoin(sim, c, 1)
    assert join(sim, c, *ALL) == 1
    assert sync(sim, c, 1) == [0, 1]
    assert has_to_rejoin(sim, c, 1)
    assert sim.consume("b", 2, owned={}) == (2, None)
    assert join(sim, c, 0, 1) == 2
    assert sync(sim, c, 2) == [0, 1]
    assert not has_to_rejoin(sim, c, 2)
    assert sim.consume("b", 2, owned={}) == (2, {"t": [2, 3]})
    assert group.state.value == "Stable"


def test_waiting_requests_of_a_classic_group_are_answered_when_it_changes(sim: Sim) -> None:
    c = classic_group(sim)
    ticket = sim.join("d", protocols={"range": subscription()})
    d: str = sim.reply(ticket).member_id
    ticket = sim.join("d", d, protocols={"range": subscription()})
    assert sim.reply(ticket) is None
    sim.consume("b")
    reply = sim.reply(ticket)
    assert (reply.error_code, reply.member_id) == (RebalanceInProgress.code, d)
    assert set(consumer_group(sim).members) == {c, d, "b"}


def test_last_consumer_that_leaves_makes_the_group_classic_again(sim: Sim) -> None:
    c = classic_group(sim)
    sim.consume("b")
    join(sim, c, *ALL)
    join(sim, c, 0, 1)
    sim.consume("b", 2, owned={})
    sim.consume("b", -1)
    assert sim.groups.consumer_group("g") is None
    group = sim.groups.groups["g"]
    assert (group.state, group.generation, list(group.members)) == (
        ClassicGroupState.PREPARING,
        2,
        [c],
    )
    assert read_assignment(group.members[c].assignment, sim.topics) == consumer_target(0, 1)
    with pytest.raises(IllegalGeneration):
        sim.reply(sim.heartbeat("c", c, 1))
    assert sim.reply(sim.heartbeat("c", c, 2)).error_code == RebalanceInProgress.code
    ticket = sim.join("c", c, protocols={"range": subscription(0, 1)})
    assert sim.reply(ticket).generation_id == 3
    replayed = sim.replay().machine
    assert replayed.consumer_group("g") is None
    assert list(replayed.groups["g"].members) == [c]


def consumer_target(*partitions: int) -> dict[bytes, frozenset[int]]:
    return {topic_id("t"): frozenset(partitions)}


def test_fenced_consumer_makes_the_group_classic_again(sim: Sim) -> None:
    c = classic_group(sim)
    sim.consume("b")
    for _ in range(10):
        sim.advance(5)
        if (group := sim.groups.consumer_group("g")) is not None:
            sim.heartbeat("c", c, group.members[c].epoch)
    assert sim.groups.consumer_group("g") is None
    assert list(sim.groups.groups["g"].members) == [c]


@pytest.mark.parametrize(
    ("policy", "upgrades"),
    [("disabled", False), ("DOWNGRADE", False), ("upgrade", True), ("Bidirectional", True)],
)
def test_policy_decides_whether_a_classic_group_may_change(
    sim: Sim, policy: str, upgrades: bool
) -> None:
    sim.consumer_settings = ConsumerSettings(assignment_interval_ms=0, migration_policy=policy)
    classic_group(sim)
    if upgrades:
        assert sim.consume("b").epoch == 2
        return
    with pytest.raises(GroupIdNotFound, match="online upgrade is disabled"):
        sim.consume("b")
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE


def test_consumer_that_joins_a_large_group_before_its_first_generation_gets_an_epoch(
    sim: Sim,
) -> None:
    """It waits for the first target; with the epoch 0, its next heartbeat would be a join."""
    sim.topics.put("t", 3_000)
    protocols = {"range": subscription()}
    member_id = sim.reply(sim.join("c", protocols=protocols)).member_id
    ticket = sim.join("c", member_id, protocols=protocols)
    reply = sim.reply(sim.beat("b", topics=["t"], owned={}, rebalance_timeout_ms=1))
    assert sim.reply(ticket).error_code == RebalanceInProgress.code
    assert reply.member_epoch == consumer_group(sim).assignment_epoch == 2
    assert join(sim, member_id) == 2


def test_group_of_another_protocol_type_stays_classic(sim: Sim) -> None:
    ticket = sim.join("c", kind="connect", protocols={"p": b"x"})
    sim.join("c", sim.reply(ticket).member_id, kind="connect", protocols={"p": b"x"})
    with pytest.raises(GroupIdNotFound, match="consumer embedded protocol"):
        sim.consume("b")


def test_group_with_a_custom_assignor_stays_classic(sim: Sim) -> None:
    """Its user data would be lost."""
    classic_group(sim, assigned=assignment(0, user_data=b"x"))
    with pytest.raises(GroupIdNotFound, match="custom assignor"):
        sim.consume("b")


def test_group_with_unreadable_assignments_stays_classic(sim: Sim) -> None:
    classic_group(sim, assigned=b"\0\1\0\0")
    with pytest.raises(GroupIdNotFound, match="malformed"):
        sim.consume("b")


def test_classic_member_joins_a_consumer_group_with_an_id_that_it_receives(sim: Sim) -> None:
    sim.consume("b")
    reply = sim.reply(sim.join("c", protocols={"range": subscription()}))
    assert reply.error_code == 79
    assert reply.member_id
    assert join(sim, reply.member_id) == 3
    assert sync(sim, reply.member_id, 3) == []


def test_consumer_group_without_migration_rejects_classic_members(sim: Sim) -> None:
    sim.consumer_settings = ConsumerSettings(migration_policy="disabled")
    sim.consume("b")
    reply = sim.reply(sim.join("c", "c", protocols={"range": subscription()}))
    assert (reply.error_code, reply.member_id) == (InconsistentGroupProtocol.code, "")


def test_classic_member_with_other_protocols_is_rejected(sim: Sim) -> None:
    """Kafka's consumer groups do not repeat the member id where they reject a classic member."""
    sim.consume("b")
    join(sim, "c")
    for kind, protocols in (("consumer", {"sticky": subscription()}), ("x", {"range": b""})):
        reply = sim.reply(sim.join("d", "d", kind=kind, protocols=protocols))
        assert (reply.error_code, reply.member_id) == (InconsistentGroupProtocol.code, "")
    reply = sim.reply(sim.join("d", "d", protocols={"range": b"\0"}))
    assert (reply.error_code, reply.member_id) == (InconsistentGroupProtocol.code, "")


def test_classic_member_gets_an_id_before_its_subscription_is_read(sim: Sim) -> None:
    """The subscription counts only when the member joins with its id, as in Kafka."""
    sim.consume("b")
    reply = sim.reply(sim.join("c", protocols={"range": b""}))
    assert reply.error_code == MemberIdRequired.code
    assert join(sim, reply.member_id) == 3


def test_empty_consumer_group_becomes_a_classic_group(sim: Sim) -> None:
    sim.consume("b")
    sim.consume("b", -1)
    sim.commit("x", {("t", 0): 3})
    member_id = classic_group(sim)
    assert sim.groups.consumer_group("g") is None
    assert sim.fetch_offsets() == {"t-0": 3}
    replayed = sim.replay().machine
    assert replayed.consumer_group("g") is None
    assert list(replayed.groups["g"].members) == [member_id]


def test_classic_member_that_does_not_rejoin_or_sync_in_time_is_fenced(sim: Sim) -> None:
    sim.consume("b")
    assert join(sim, "c") == 3
    assert sync(sim, "c", 3) == []
    sim.consume("b", 2, owned={"t": ALL})
    sim.consume("b", 2, owned={"t": [0, 1]})
    assert has_to_rejoin(sim, "c", 3), "its partitions are free"
    for _ in range(13):
        sim.advance(5)
        sim.consume("b", 3, owned={"t": [0, 1]})
        if "c" in consumer_group(sim).members:
            sim.heartbeat("c", "c", 3)
    assert list(consumer_group(sim).members) == ["b"]
    generation = join(sim, "d")
    for _ in range(13):
        sim.advance(5)
        b = consumer_group(sim).members["b"]
        sim.consume("b", b.epoch, owned={"t": list(b.assigned[topic_id("t")])})
        if "d" in consumer_group(sim).members:
            sim.heartbeat("d", "d", generation)
    assert list(consumer_group(sim).members) == ["b"], "it sent no SyncGroup"


def test_classic_requests_of_members_of_the_other_protocol_are_rejected(sim: Sim) -> None:
    sim.consume("b")
    join(sim, "c")
    for ticket in (sim.heartbeat("b", "b", 2), sim.sync("b", "b", 2), sim.heartbeat("x", "x", 1)):
        with pytest.raises(UnknownMemberId):
            sim.reply(ticket)
    with pytest.raises(IllegalGeneration):
        sim.reply(sim.sync("c", "c", 1))


def test_classic_member_leaves_a_consumer_group(sim: Sim) -> None:
    sim.consume("b")
    join(sim, "c")
    answers = sim.reply(sim.leave("c", ("c", None), ("x", None))).members
    assert [each.error_code for each in answers] == [0, UnknownMemberId.code]
    assert list(consumer_group(sim).members) == ["b"]
    assert consumer_group(sim).epoch == 4


def test_classic_members_get_the_partitions_of_the_last_consumer(sim: Sim) -> None:
    """The group must not become classic again, so that no consumer causes the next target."""
    sim.consumer_settings = ConsumerSettings(assignment_interval_ms=0, migration_policy="upgrade")
    sim.consume("b")
    assert join(sim, "c") == 3
    assert sync(sim, "c", 3) == []
    sim.consume("b", 2, owned={"t": ALL})
    assert sim.consume("b", 2, owned={"t": [0, 1]}) == (3, None)
    assert has_to_rejoin(sim, "c", 3)
    assert join(sim, "c") == 3
    assert sync(sim, "c", 3) == [2, 3]
    sim.consume("b", -1)
    assert has_to_rejoin(sim, "c", 3)
    assert join(sim, "c", 2, 3) == 4
    assert sync(sim, "c", 4) == ALL
    assert not has_to_rejoin(sim, "c", 4)


def test_static_classic_member_replaces_the_last_consumer_and_takes_its_target(sim: Sim) -> None:
    """The group is classic again, without a rebalance, because nothing else has changed."""
    sim.consume("b", instance_id="i")
    reply = sim.reply(sim.join("c", protocols={"range": subscription()}, instance="i"))
    assert reply.error_code == 0
    assert sim.groups.consumer_group("g") is None
    group = sim.groups.groups["g"]
    (member,) = group.members.values()
    assert member.member_id == reply.member_id
    assert read_assignment(member.assignment, sim.topics) == consumer_target(*ALL)
    replayed = sim.replay().machine
    assert replayed.consumer_group("g") is None
    assert list(replayed.groups["g"].members) == [member.member_id]


def test_member_that_waits_for_partitions_gets_them_from_the_classic_group(sim: Sim) -> None:
    """It would not learn of its assignment in the classic group without a rebalance."""
    sim.consume("b", instance_id="i")
    assert join(sim, "c") == 3
    assert sync(sim, "c", 3) == []
    assert sim.consume("b", -2, instance_id="i").epoch == -2
    sim.join("d", protocols={"range": subscription()}, instance="i")
    assert sim.groups.groups["g"].state is ClassicGroupState.PREPARING
    assert has_to_rejoin(sim, "c", 3)


def test_static_consumer_replaces_a_classic_member_at_once(sim: Sim) -> None:
    sim.consume("b")
    join(sim, "c")
    reply = sim.reply(sim.join("d", protocols={"range": subscription()}, instance="i"))
    assert reply.error_code == 0
    assert sim.consume("e", instance_id="i").epoch == consumer_group(sim).assignment_epoch
    assert reply.member_id not in consumer_group(sim).members


@pytest.mark.parametrize(
    "assigned", [None, (0, 1), (0, 1, 2, 3)], ids=["before a sync", "in part", "as a whole"]
)
def test_static_consumer_gets_what_the_classic_group_had_not_assigned_yet(
    sim: Sim, assigned: tuple[int, ...] | None
) -> None:
    """Only the classic group's next generation would have assigned the rest."""
    ticket = sim.join("c", protocols={"range": subscription()}, instance="i")
    sim.fire_due()
    member_id = sim.reply(ticket).member_id
    if assigned is not None:
        sim.sync("c", member_id, 1, {member_id: assignment(*assigned)})
    epoch = 1 if assigned == (0, 1, 2, 3) else 2
    assert sim.consume("e", instance_id="i") == (epoch, {"t": ALL})
    assert consumer_group(sim).epoch == epoch


@attrs.define
class Interrupted:
    """A request whose further steps are taken one by one, so that others come between them."""

    sim: Sim
    steps: Iterator[Step] = attrs.field(factory=lambda: iter(()))

    def begin(self, decide: Callable[[GroupShard, Moment, int], Decision]) -> int:
        """Send a request without taking its steps; return its ticket."""

        def first(shard: GroupShard, moment: Moment, ticket: int) -> Decision:
            decision = decide(shard, moment, ticket)
            self.steps = iter(decision.steps)
            return decision._replace(steps=())

        return self.sim.send("b", first)

    def step(self) -> None:
        self.sim.perform(next(self.steps)(self.sim.moment))

    def finish(self) -> None:
        for step in self.steps:
            self.sim.perform(step(self.sim.moment))


def beat_request(epoch: int, **fields: Any) -> Callable[[GroupShard, Moment, int], Decision]:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="b",
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
        **fields,
    )
    return lambda shard, *when: consumer_requests.heartbeat(shard, request, Client(), *when)


@pytest.fixture
def large_sim(monkeypatch: pytest.MonkeyPatch) -> Sim:
    """Return a simulation that changes the protocol of each group in many steps."""
    monkeypatch.setattr(large_migration, "_MEMBERS_AT_ONCE", 0)
    monkeypatch.setattr(large_migration, "_ITEMS_A_STEP", 1)
    sim = Sim()
    sim.topics.put("t", 4)
    return sim


def test_member_that_joins_while_its_large_group_changes_is_not_lost(large_sim: Sim) -> None:
    sim, request = large_sim, Interrupted(large_sim)
    c = classic_group(sim)
    ticket = request.begin(beat_request(0))
    for _ in range(3):
        request.step()
    d = sim.reply(sim.join("d", protocols={"range": subscription()})).member_id
    joining = sim.join("d", d, protocols={"range": subscription()})
    assert sim.groups.groups["g"].state is ClassicGroupState.PREPARING
    request.finish()
    assert sim.reply(ticket).member_epoch == 3
    assert sim.reply(joining).error_code == RebalanceInProgress.code
    assert set(consumer_group(sim).members) == {c, d, "b"}
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert set(replayed.members) == {c, d, "b"}


def test_member_that_joins_a_large_group_which_becomes_empty_joins_a_classic_group(
    large_sim: Sim,
) -> None:
    """It must not be alone in a consumer group, which only a consumer makes classic again."""
    sim, join_of_static = large_sim, Interrupted(large_sim)
    sim.consume("b", instance_id="i")
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription())
        ],
    )
    ticket = join_of_static.begin(lambda shard, *when: shard.join(request, Client(), *when))
    join_of_static.step()
    sim.consume("b", -1, instance_id="i")
    join_of_static.finish()
    assert sim.reply(ticket).error_code == RebalanceInProgress.code
    sim.join("c", protocols={"range": subscription()}, instance="i")
    assert sim.groups.consumer_group("g") is None
    assert len(sim.groups.groups["g"].members) == 1


def test_large_group_that_never_rests_changes_its_protocol_too(large_sim: Sim) -> None:
    sim, request = large_sim, Interrupted(large_sim)
    classic_group(sim)
    ticket = request.begin(beat_request(0))
    for number in range(50):
        sim.join(f"d{number}", protocols={"range": subscription()})
        if (step := next(request.steps, None)) is None:
            break
        decision = step(sim.moment)
        if decision.steps:
            request.steps = iter(decision.steps)
            decision = decision._replace(steps=())
        sim.perform(decision)
    assert sim.reply(ticket).member_epoch == 2
    assert "b" in consumer_group(sim).members


def test_consumer_that_joins_while_the_last_one_leaves_keeps_the_group(large_sim: Sim) -> None:
    sim, request = large_sim, Interrupted(large_sim)
    c = classic_group(sim)
    sim.consume("b")
    ticket = request.begin(beat_request(-1))
    request.step()
    assert sim.reply(ticket) is None
    sim.consume("e")
    request.finish()
    assert sim.reply(ticket).error_code == 0
    assert set(consumer_group(sim).members) == {c, "e"}


def test_change_of_a_large_group_that_cannot_be_written_is_refused(large_sim: Sim) -> None:
    sim, request = large_sim, Interrupted(large_sim)
    classic_group(sim)
    ticket = request.begin(beat_request(0))
    request.step()
    sim.log.failure = CoordinatorNotAvailable()
    request.finish()
    with pytest.raises(CoordinatorNotAvailable):
        sim.reply(ticket)
    sim.log.failure = None
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE
    assert sim.groups.consumer_group("g") is None
    assert sim.consume("b").epoch == 2


def test_member_that_could_not_be_fenced_is_fenced_later(large_sim: Sim) -> None:
    sim = large_sim
    c = classic_group(sim)
    sim.consume("b")
    join(sim, c, *ALL)
    join(sim, c, 0, 1)
    sync(sim, c, 2)
    sim.consume("b", 2, owned={})
    for second in range(150):
        sim.log.failure = CoordinatorNotAvailable() if 40 < second < 60 else None
        sim.advance(1)
        if sim.groups.consumer_group("g") is None:
            break
        sim.heartbeat("c", c, 2)
    assert list(sim.groups.groups["g"].members) == [c]


def test_loaded_group_of_both_protocols_continues(sim: Sim) -> None:
    c = classic_group(sim)
    sim.consume("b")
    sim.restart()
    assert has_to_rejoin(sim, c, 1)
    assert join(sim, c, *ALL) == 1
    assert join(sim, c, 0, 1) == 2
    assert sync(sim, c, 2) == [0, 1]
    sim.advance(11)
    assert list(consumer_group(sim).members) == ["b"]
