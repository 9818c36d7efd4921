"""The stories in tests/golden/group: commands of clients, and all effects that can be observed.

A story is a list of blocks: a command, ``----`` and its effects, which are answers, records
(``+``), and the group afterwards (``=``).  ``KWIRE_REWRITE=1`` rewrites the stories with the
effects of the present code, for review.  Apache Kafka 4.3.1 gave the same answers to the stories
that need neither other settings nor hours.

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
from tests.support.group.sim import Sim, error_name, subscription

STORIES = sorted((Path(__file__).parent.parent / "golden" / "group").glob("*.txt"))


@attrs.define
class Player:
    """Plays a story; it stores each client's member id and generation by the client's name."""

    sim: Sim = attrs.field(factory=Sim)
    ids: dict[str, str] = attrs.field(factory=dict)
    generations: dict[str, int] = attrs.field(factory=dict)
    rosters: dict[str, list[str]] = attrs.field(factory=dict)
    shown_end: int = 0
    """The end offset of the records that were shown."""

    def play(self, command: str) -> str:
        word, *rest = command.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        names = [part for part in rest if "=" not in part]
        output = getattr(self, f"do_{word}")(names, options) or []
        if word != "wait":
            self.sim.fire_due()
        return "\n".join([*output, *self.answers(), *self.new_records(), *self.state()])

    # Effects

    def answers(self) -> list[str]:
        answers = self.sim.take_answers()
        return [f"{client}: {self.describe(client, reply)}" for client, reply in answers]

    def describe(self, client: str, reply: Any) -> str:
        if isinstance(reply, KafkaError):
            return error_name(reply)
        match reply:
            case JoinGroupResponse():
                return self.describe_join(client, reply)
            case SyncGroupResponse():
                return error_name(reply) or f"assigned {reply.assignment.decode() or '-'}"
            case HeartbeatResponse():
                return error_name(reply) or "alive"
            case LeaveGroupResponse():
                return ", ".join(
                    f"{m.member_id or m.group_instance_id} {error_name(m) or 'left'}"
                    for m in reply.members
                )
            case OffsetCommitResponse():
                return ", ".join(
                    f"{t.name}-{p.partition_index} {error_name(p) or 'committed'}"
                    for t in reply.topics
                    for p in t.partitions
                )
        return str(reply)

    def describe_join(self, client: str, reply: JoinGroupResponse) -> str:
        if reply.member_id and error_name(reply) in ("", "MEMBER_ID_REQUIRED"):
            self.ids[client] = reply.member_id
        if reply.error_code:
            return f"{error_name(reply)} {reply.member_id}".rstrip()
        self.generations[client] = reply.generation_id
        self.rosters[client] = [m.member_id for m in reply.members]
        leads = f" leads {','.join(self.rosters[client])}" if reply.members else ""
        skips = " skips assignment" if reply.skip_assignment else ""
        place = f"{reply.member_id} in generation {reply.generation_id} {reply.protocol_name}"
        return f"{place}{leads}{skips}"

    def new_records(self) -> list[str]:
        data = self.sim.log.data
        lines = []
        for pos, header in headers(data):
            if header.base_offset < self.shown_end:
                continue
            for stored in records(data, pos, header):
                record = load(stored.key or b"", stored.value)
                assert record is not None
                lines.append(f"+ {_record(record)}")
            self.shown_end = header.next_offset
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
        client = names[0]
        protocols = options.get("protocols", "range").split(",")
        topics = options.get("topics", "t").split(",")
        member = "" if "anew" in names else self.ids.get(client, "")
        self.sim.join(
            client,
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
        client = names[0]
        assignments = dict(part.split(":") for part in options.get("assign", "").split(",") if part)
        self.sim.sync(
            client,
            self.ids[client],
            int(options.get("generation", self.generations.get(client, 0))),
            {self.ids[name]: partitions.encode() for name, partitions in assignments.items()},
            instance=options.get("instance"),
            protocol=options.get("protocol"),
        )

    def do_heartbeat(self, names: list[str], options: dict[str, str]) -> None:
        for client in names:
            self.sim.heartbeat(
                client,
                options.get("member", self.ids.get(client, client)),
                int(options.get("generation", self.generations.get(client, 0))),
                instance=options.get("instance"),
                group=options.get("group", "g"),
            )

    def do_leave(self, names: list[str], options: dict[str, str]) -> None:
        members: list[tuple[str, str | None]] = [(self.ids.get(n, n), None) for n in names]
        if "instances" in options:
            members += [("", instance) for instance in options["instances"].split(",")]
        self.sim.leave("leave", *members)

    def do_commit(self, names: list[str], options: dict[str, str]) -> None:
        client = names[0]
        topic, offset = options.get("offset", "t-0:1").split(":")
        name, _, partition = topic.rpartition("-")
        self.sim.commit(
            client,
            {(name, int(partition)): int(offset)},
            self.ids.get(client, ""),
            int(options.get("generation", self.generations.get(client, -1))),
            group=options.get("group", "g"),
            instance=options.get("instance"),
            metadata="m" * int(options.get("metadata", 0)),
        )

    def do_fetch(self, names: list[str], _: dict[str, str]) -> list[str]:
        offsets = self.sim.fetch_offsets(*names)
        return [f"{partition} {offset}" for partition, offset in sorted(offsets.items())]

    def do_describe(self, names: list[str], _: dict[str, str]) -> list[str]:
        try:
            group = requests.describe(self.sim.groups, *names)
        except KafkaError as error:
            return [f"{error_name(error)} {error.text}"]
        lines = [f"{group.group_state} {group.protocol_type or '-'} {group.protocol_data or '-'}"]
        lines += [
            f"{m.member_id} {m.group_instance_id} {m.client_id} {m.client_host} "
            f"{len(m.member_metadata)} {m.member_assignment.decode() or '-'}"
            for m in group.members
        ]
        return lines

    def do_delete(self, names: list[str], _options: dict[str, str]) -> list[str]:
        for name in names:
            self.sim.send(name, lambda shard, *w, name=name: requests.delete_group(shard, name, *w))
        return [
            f"{name} {error_name(reply) if isinstance(reply, KafkaError) else 'deleted'}"
            for name, reply in self.sim.take_answers()
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
        self.sim.send("delete", lambda shard, *w: requests.delete_offsets(shard, request, *w))
        ((_, reply),) = self.sim.take_answers()
        if isinstance(reply, KafkaError):
            return [error_name(reply)]
        return [
            f"{t.name}-{p.partition_index} {error_name(p) or 'deleted'}"
            for t in reply.topics
            for p in t.partitions
        ]

    def do_list(self, _: list[str], options: dict[str, str]) -> list[str]:
        states = options["states"].split(",") if "states" in options else []
        kinds = options["types"].split(",") if "types" in options else []
        groups = requests.list_groups(self.sim.groups, states, kinds)
        return [group.group_id for group in groups]

    def do_wait(self, names: list[str], _: dict[str, str]) -> None:
        self.sim.advance(float(names[0]))

    def do_beat(self, names: list[str], _: dict[str, str]) -> None:
        """Wait in steps of 3 s while the named clients keep their sessions."""
        seconds, *alive = names
        for _step in range(int(seconds) // 3):
            self.sim.advance(3)
            for client in alive:
                self.sim.heartbeat(client, self.ids[client], self.generations.get(client, 0))
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
    """Return command and effects of each block; comments (``#``) belong to the command below."""
    pairs = []
    for block in text.strip().split("\n\n"):
        command, _, expected = block.partition("\n----")
        pairs.append((command, expected.strip("\n")))
    return pairs


def play_story(text: str, play: Callable[[str], str]) -> str:
    """Return the story with the effects that its commands have now."""
    story = []
    for command, _ in blocks(text):
        line = command.splitlines()[-1]
        story.append(f"{command}\n----\n{play(line)}".rstrip())
    return "\n\n".join(story) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_clients_observe_the_effects_of_the_story(path: Path) -> None:
    text = path.read_text()
    story = play_story(text, Player().play)
    if os.environ.get("KWIRE_REWRITE"):
        path.write_text(story)
    assert story == text


def test_all_stories_are_there() -> None:
    assert len(STORIES) >= 10
    assert kafka_name(BY_CODE[25]) == "UNKNOWN_MEMBER_ID"
