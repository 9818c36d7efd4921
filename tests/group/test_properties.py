"""Random actions of members: a replay of the written records gives the state in memory.

After every step also the counts of a group agree with its members, and every request that waits
has a deadline.
"""

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.codec.messages.sync_group import SyncGroupResponse
from kwire.errors import KafkaError, NotEnoughReplicas
from kwire.group import requests
from kwire.group.model import TRANSITIONS, ClassicGroup, ClassicGroupState
from kwire.group.records import group_from, group_record
from kwire.group.settings import GroupSettings
from tests.support.group.sim import Sim, subscription

NAMES = st.sampled_from("abcd")
GROUPS = st.sampled_from(["g", "h"])
PROTOCOLS = st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)])


def comparable(group: ClassicGroup) -> Any:
    """Return the persistent state of a group without the order in which members joined."""
    stored = group_from(group.group_id, group_record(group).value)
    members = [member._replace(order=0) for member in stored.members_by_arrival()]
    return (
        stored.state,
        stored.generation,
        stored.protocol_type,
        stored.protocol,
        stored.leader,
        stored.since_ms,
        members,
    )


class Groups(RuleBasedStateMachine):
    """Two groups, four clients, lost answers, passing time, failing writes, restarts."""

    @initialize(delay=st.sampled_from([0, 3000]), size=st.sampled_from([2, 100]))
    def start(self, delay: int, size: int) -> None:
        self.sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=delay, group_max_size=size))
        self.ids: dict[tuple[str, str], str] = {}
        self.generations: dict[tuple[str, str], int] = {}
        self.stable: dict[str, Any] = {}

    def take_answers(self) -> None:
        for client, reply in self.sim.take_answers():
            group, name = client.split("/")
            if isinstance(reply, JoinGroupResponse):
                if reply.member_id:
                    self.ids[group, name] = reply.member_id
                if not reply.error_code:
                    self.generations[group, name] = reply.generation_id
                    assert reply.member_id

    @rule(
        name=NAMES,
        group=GROUPS,
        has_id=st.booleans(),
        static=st.booleans(),
        protocols=PROTOCOLS,
        version=st.sampled_from([3, 8, 9]),
    )
    def join(
        self,
        name: str,
        group: str,
        has_id: bool,
        static: bool,
        protocols: tuple[str, ...],
        version: int,
    ) -> None:
        self.sim.join(
            f"{group}/{name}",
            self.ids.get((group, name), "") if has_id else "",
            group=group,
            instance=f"i{name}" if static else None,
            protocols={p: subscription("t") for p in protocols},
            version=version,
        )
        self.take_answers()

    @rule(name=NAMES, group=GROUPS)
    def sync(self, name: str, group: str) -> None:
        key = (group, name)
        self.sim.sync(
            f"{group}/{name}",
            self.ids.get(key, ""),
            self.generations.get(key, -1),
            {member: member.encode() for (g, _), member in self.ids.items() if g == group},
            group=group,
        )
        for _, reply in list(self.sim.take_answers()):
            if isinstance(reply, SyncGroupResponse) and not reply.error_code:
                assert reply.protocol_type == "consumer"

    @rule(name=NAMES, group=GROUPS)
    def heartbeat(self, name: str, group: str) -> None:
        key = (group, name)
        self.sim.heartbeat(
            f"{group}/{name}", self.ids.get(key, ""), self.generations.get(key, -1), group=group
        )
        self.take_answers()

    @rule(name=NAMES, group=GROUPS, static=st.booleans())
    def leave(self, name: str, group: str, static: bool) -> None:
        leaver = ("", f"i{name}") if static else (self.ids.get((group, name), "x"), None)
        self.sim.leave(f"{group}/{name}", leaver, group=group)
        self.take_answers()

    @rule(name=NAMES, group=GROUPS, offset=st.integers(0, 9), simple=st.booleans())
    def commit(self, name: str, group: str, offset: int, simple: bool) -> None:
        key = (group, name)
        self.sim.commit(
            f"{group}/{name}",
            {("t", offset % 3): offset},
            "" if simple else self.ids.get(key, ""),
            -1 if simple else self.generations.get(key, -1),
            group=group,
        )
        self.take_answers()

    @rule(group=GROUPS)
    def delete(self, group: str) -> None:
        self.sim.send(
            f"{group}/admin", lambda shard, *when: requests.delete_group(shard, group, *when)
        )
        self.sim.take_answers()

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 11.0, 70.0, 700_000.0]))
    def wait(self, seconds: float) -> None:
        self.sim.advance(seconds)
        self.take_answers()

    @rule(name=NAMES, group=GROUPS)
    def fail_to_write_commit(self, name: str, group: str) -> None:
        """Commit while the log refuses appends: no group changes."""
        groups = dict(self.sim.groups.groups)
        self.sim.log.failure = NotEnoughReplicas()
        end_offset = self.sim.log.end
        ticket = self.sim.commit(f"{group}/{name}", {("t", 0): 1}, group=group)
        self.sim.log.failure = None
        _, wait = self.sim.waits.pop(ticket)
        self.sim.shard.waiting.pop(ticket)
        assert isinstance(wait.error, KafkaError)
        assert self.sim.log.end == end_offset
        assert self.sim.groups.groups == groups

    @rule()
    def restart(self) -> None:
        self.sim.restart()
        self.sim.waits.clear()

    @invariant()
    def replay_gives_same_state(self) -> None:
        """Invariants 11 and 72: another coordinator would have the same offsets and members."""
        replayed = self.sim.replay().machine
        live = self.sim.groups
        for group_id, group in live.groups.items():
            other = replayed.groups[group_id]
            if group.state in (ClassicGroupState.EMPTY, ClassicGroupState.STABLE):
                assert comparable(other) == comparable(group)
            else:
                assert other.generation <= group.generation
            assert replayed.offsets.of(group_id).keys() == live.offsets.of(group_id).keys()
            for topic, partitions in live.offsets.of(group_id).items():
                assert partitions == replayed.offsets.of(group_id)[topic]
        assert replayed.groups.keys() == live.groups.keys()

    @invariant()
    def counts_agree_with_members(self) -> None:
        for group in self.sim.groups.groups.values():
            members = list(group.members.values())
            assert group.joining_count == sum(m.join_ticket is not None for m in members)
            votes: dict[str, int] = {}
            for member in members:
                for name, _ in member.protocols:
                    votes[name] = votes.get(name, 0) + 1
            assert dict(group.votes) == votes
            assert {m.instance_id: m.member_id for m in members if m.instance_id} == dict(
                group.instances
            )
            assert set(group.pending_sync) <= set(group.members)
            assert not set(group.pending_join) & set(group.members)
            may_lack_leader = not members or group.state is ClassicGroupState.PREPARING
            assert group.leader in group.members or (group.leader is None and may_lack_leader)
            if group.state is ClassicGroupState.EMPTY:
                assert not members
            if group.state is ClassicGroupState.STABLE:
                assert all(m.sync_ticket is None for m in members)

    @invariant()
    def every_wait_has_a_deadline(self) -> None:
        """Every request that waits for an answer has a deadline that ends the wait."""
        timers = self.sim.shard.timers
        for group in self.sim.groups.groups.values():
            if group.state is ClassicGroupState.PREPARING:
                assert timers.at(("join", group.group_id)) is not None
            if group.state is ClassicGroupState.COMPLETING:
                assert timers.at(("sync", group.group_id)) is not None
        if self.sim.groups.groups:
            assert timers.at(("expiry",)) is not None


TestGroups = Groups.TestCase
TestGroups.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestGroups = pytest.mark.slow(TestGroups)


def test_only_a_dead_group_has_no_next_state() -> None:
    assert set(TRANSITIONS) == set(ClassicGroupState)
    assert [state for state, after in TRANSITIONS.items() if not after] == [ClassicGroupState.DEAD]
