"""The stories in tests/golden/group: what clients do, and all that can be seen of it.

A story is blocks of a command, ``----`` and what it led to: answers, records (``+``), and the
group afterwards (``=``).  ``KWIRE_REWRITE=1`` writes down what happens now, to be read in review.
Played against Apache Kafka 4.3.1 the stories gave the same answers, as far as they need neither
changed settings nor hours.

They show invariants 66, 67, 68, 69, 71, 72, 73 and 76: cooperative (66), errors (67, 69, 71, 76),
leave_expire (67), static and static_absent (68, 69), rebalance_timeout and initial_delay (71),
restart (72), retention and offsets (69, 73, 76).
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from kwire.codec.messages.heartbeat import HeartbeatResponse
from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.codec.messages.leave_group import LeaveGroupResponse
from kwire.codec.messages.offset_commit import OffsetCommitResponse
from kwire.codec.messages.sync_group import SyncGroupResponse
from kwire.errors import BY_CODE, KafkaError, kafka_name
from kwire.group import requests
from kwire.group.records import load
from kwire.records.header import headers
from kwire.records.iterate import records
from tests.support.group.sim import Sim, name_of, subscription

STORIES = sorted((Path(__file__).parent.parent / "golden" / "group").glob("*.txt"))


@attrs.define
class Player:
    """Plays a story: knows each client by name, with its member id and generation."""

    sim: Sim = attrs.field(factory=Sim)
    ids: dict[str, str] = attrs.field(factory=dict)
    generations: dict[str, int] = attrs.field(factory=dict)
    rosters: dict[str, list[str]] = attrs.field(factory=dict)
    shown: int = 0

    def play(self, command: str) -> str:
        word, *rest = command.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        names = [part for part in rest if "=" not in part]
        said = getattr(self, f"do_{word}")(names, options) or []
        if word != "wait":
            self.sim.settle()
        return "\n".join([*said, *self.answers(), *self.written(), *self.state()])

    # What is seen

    def answers(self) -> list[str]:
        return [f"{who}: {self.told(who, reply)}" for who, reply in self.sim.answered()]

    def told(self, who: str, reply: Any) -> str:
        if isinstance(reply, KafkaError):
            return name_of(reply)
        match reply:
            case JoinGroupResponse():
                return self.told_join(who, reply)
            case SyncGroupResponse():
                return name_of(reply) or f"assigned {reply.assignment.decode() or '-'}"
            case HeartbeatResponse():
                return name_of(reply) or "alive"
            case LeaveGroupResponse():
                return ", ".join(
                    f"{m.member_id or m.group_instance_id} {name_of(m) or 'left'}"
                    for m in reply.members
                )
            case OffsetCommitResponse():
                return ", ".join(
                    f"{t.name}-{p.partition_index} {name_of(p) or 'committed'}"
                    for t in reply.topics
                    for p in t.partitions
                )
        return str(reply)

    def told_join(self, who: str, reply: JoinGroupResponse) -> str:
        if reply.member_id and name_of(reply) in ("", "MEMBER_ID_REQUIRED"):
            self.ids[who] = reply.member_id
        if reply.error_code:
            return f"{name_of(reply)} {reply.member_id}".rstrip()
        self.generations[who] = reply.generation_id
        self.rosters[who] = [m.member_id for m in reply.members]
        leads = f" leads {','.join(self.rosters[who])}" if reply.members else ""
        skips = " skips assignment" if reply.skip_assignment else ""
        place = f"{reply.member_id} in generation {reply.generation_id} {reply.protocol_name}"
        return f"{place}{leads}{skips}"

    def written(self) -> list[str]:
        data = self.sim.log.data
        lines = []
        for pos, header in headers(data):
            if header.base_offset < self.shown:
                continue
            for stored in records(data, pos, header):
                record = load(stored.key or b"", stored.value)
                assert record is not None
                lines.append(f"+ {_record(record)}")
            self.shown = header.next_offset
        return lines

    def state(self) -> list[str]:
        lines = []
        for group in self.sim.groups.groups.values():
            members = ",".join(
                m.member_id + ("*" if m.member_id == group.leader else "")
                for m in group.members_by_arrival()
            )
            pending_ids = ",".join(sorted(group.pending_join))
            pending = f" pending {pending_ids}" if pending_ids else ""
            place = f"{group.group_id} {group.state.value} {group.generation}"
            lines.append(f"= {place} {members or '-'}{pending}")
        return lines

    # Commands

    def do_settings(self, _: list[str], options: dict[str, str]) -> None:
        self.sim.settings = attrs.evolve(
            self.sim.settings, **{key: int(value) for key, value in options.items()}
        )

    def do_join(self, names: list[str], options: dict[str, str]) -> None:
        who = names[0]
        protocols = options.get("protocols", "range").split(",")
        topics = options.get("topics", "t").split(",")
        member = "" if "anew" in names else self.ids.get(who, "")
        self.sim.join(
            who,
            options.get("member", member),
            group=options.get("group", "g"),
            instance=options.get("instance"),
            kind=options.get("kind", "consumer"),
            protocols={name: subscription(*topics) for name in protocols if name},
            session_ms=int(options.get("session", 10_000)),
            rebalance_ms=int(options.get("rebalance", 60_000)),
            version=int(options.get("version", "9")),
        )

    def do_sync(self, names: list[str], options: dict[str, str]) -> None:
        who = names[0]
        shares = dict(part.split(":") for part in options.get("assign", "").split(",") if part)
        self.sim.sync(
            who,
            self.ids[who],
            int(options.get("generation", self.generations.get(who, 0))),
            {self.ids[name]: share.encode() for name, share in shares.items()},
            instance=options.get("instance"),
            protocol=options.get("protocol"),
        )

    def do_heartbeat(self, names: list[str], options: dict[str, str]) -> None:
        for who in names:
            self.sim.heartbeat(
                who,
                options.get("member", self.ids.get(who, who)),
                int(options.get("generation", self.generations.get(who, 0))),
                instance=options.get("instance"),
                group=options.get("group", "g"),
            )

    def do_leave(self, names: list[str], options: dict[str, str]) -> None:
        members: list[tuple[str, str | None]] = [(self.ids.get(n, n), None) for n in names]
        if "instances" in options:
            members += [("", instance) for instance in options["instances"].split(",")]
        self.sim.leave("leave", *members)

    def do_commit(self, names: list[str], options: dict[str, str]) -> None:
        who = names[0]
        topic, offset = options.get("offset", "t-0:1").split(":")
        name, _, partition = topic.rpartition("-")
        self.sim.commit(
            who,
            {(name, int(partition)): int(offset)},
            self.ids.get(who, ""),
            int(options.get("generation", self.generations.get(who, -1))),
            group=options.get("group", "g"),
            instance=options.get("instance"),
            metadata="m" * int(options.get("metadata", 0)),
        )

    def do_fetch(self, names: list[str], _: dict[str, str]) -> list[str]:
        return [f"{spot} {offset}" for spot, offset in self.sim.fetched(*names).items()]

    def do_describe(self, names: list[str], _: dict[str, str]) -> list[str]:
        try:
            group = requests.describe(self.sim.groups, *names)
        except KafkaError as error:
            return [f"{name_of(error)} {error.text}"]
        lines = [f"{group.group_state} {group.protocol_type or '-'} {group.protocol_data or '-'}"]
        lines += [
            f"{m.member_id} {m.group_instance_id} {m.client_id} {m.client_host} "
            f"{len(m.member_metadata)} {m.member_assignment.decode() or '-'}"
            for m in group.members
        ]
        return lines

    def do_delete(self, names: list[str], _options: dict[str, str]) -> list[str]:
        for name in names:
            self.sim.ask(name, lambda shard, *w, name=name: requests.delete_group(shard, name, *w))
        return [
            f"{name} {name_of(reply) if isinstance(reply, KafkaError) else 'deleted'}"
            for name, reply in self.sim.answered()
        ]

    def do_deltopic(self, names: list[str], _: dict[str, str]) -> None:
        for step in self.sim.groups.remove_deleted_topics({bytes(16): names[0]}):
            self.sim.perform(step(self.sim.moment))

    def do_deloffset(self, names: list[str], options: dict[str, str]) -> list[str]:
        from kwire.codec.messages.offset_delete import OffsetDeleteRequest

        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
        request = OffsetDeleteRequest(
            group_id=options.get("group", "g"),
            topics=[
                topic(
                    name=name.rpartition("-")[0],
                    partitions=[
                        topic.OffsetDeleteRequestPartition(
                            partition_index=int(name.rpartition("-")[2])
                        )
                    ],
                )
                for name in names
            ],
        )
        self.sim.ask("delete", lambda shard, *w: requests.delete_offsets(shard, request, *w))
        ((_, reply),) = self.sim.answered()
        if isinstance(reply, KafkaError):
            return [name_of(reply)]
        return [
            f"{t.name}-{p.partition_index} {name_of(p) or 'deleted'}"
            for t in reply.topics
            for p in t.partitions
        ]

    def do_list(self, _: list[str], options: dict[str, str]) -> list[str]:
        states = options["states"].split(",") if "states" in options else []
        kinds = options["types"].split(",") if "types" in options else []
        return [group.group_id for group in self.sim.groups.list_groups(states, kinds)]

    def do_wait(self, names: list[str], _: dict[str, str]) -> None:
        self.sim.advance(float(names[0]))

    def do_beat(self, names: list[str], _: dict[str, str]) -> None:
        """Wait in steps of 3 s while the named clients keep their sessions."""
        seconds, *alive = names
        for _step in range(int(seconds) // 3):
            self.sim.advance(3)
            for who in alive:
                self.sim.heartbeat(who, self.ids[who], self.generations.get(who, 0))
                self.sim.waits.popitem()

    def do_restart(self, _: list[str], __: dict[str, str]) -> None:
        self.sim.restart()


def _record(record: Any) -> str:
    key, value = record.key, record.value
    if hasattr(key, "topic"):
        end = "removed" if value is None else f"{value.offset} v{record.version}"
        return f"offset {key.group} {key.topic}-{key.partition} {end}"
    if value is None:
        return f"group {key.group} removed"
    members = ",".join(f"{m.member_id}:{m.assignment.decode() or '-'}" for m in value.members)
    return f"group {key.group} generation {value.generation} {value.protocol} {members or '-'}"


def blocks(text: str) -> list[tuple[str, str]]:
    """Comments (``#``) belong to the command below them."""
    found = []
    for block in text.strip().split("\n\n"):
        command, _, expected = block.partition("\n----")
        found.append((command, expected.strip("\n")))
    return found


def played(text: str, play: Callable[[str], str]) -> str:
    told = []
    for command, _ in blocks(text):
        line = command.splitlines()[-1]
        told.append(f"{command}\n----\n{play(line)}".rstrip())
    return "\n\n".join(told) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text()
    seen = played(text, Player().play)
    if os.environ.get("KWIRE_REWRITE"):
        path.write_text(seen)
    assert seen == text


def test_there_are_stories() -> None:
    assert len(STORIES) >= 10
    assert kafka_name(BY_CODE[25]) == "UNKNOWN_MEMBER_ID"
