"""A group member in a process of its own, which can be killed and stopped.

    python -m compat_tests.nemesis.member_process ADDRESS TOPIC GROUP NAME SETTINGS

It is a consumer with `group.protocol=consumer`. It writes each observation to its standard output,
pickled, before it goes on: so what a killed process has committed was polled in the history. A
commit is written twice, before its request and after its response. SIGTERM ends the membership
cleanly.
"""

from __future__ import annotations

import json
import pickle
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from compat_tests.durability.history import RESENT_AFTER
from compat_tests.durability.observations import Call, Commit, Place, Poll
from compat_tests.durability.recording import COMMIT_SECONDS, FENCED, HARMLESS, POLL_SECONDS
from simulation.share_rules import FOREVER, Outcome

COMMITTED_RECORDS: Final = 40
COMMITTED_SECONDS: Final = 1.0
"""A member commits after so many records, or after so long."""
REFUSED: Final = FENCED | {KafkaError.FENCED_MEMBER_EPOCH, KafkaError.STALE_MEMBER_EPOCH}
"""Errors of commits by a member that the coordinator has removed, or whose epoch has passed."""
REJOINING: Final = HARMLESS | REFUSED
"""Errors that a member reports while it goes on, or joins again."""


def write(observation: object) -> None:
    """Give an observation to the process that has started this one."""
    sys.stdout.buffer.write(pickle.dumps(observation))
    sys.stdout.buffer.flush()


@attrs.define(eq=False)
class ProcessMember:
    """A member of some kind that is this process."""

    address: str
    topic: str
    group: str
    name: str
    settings: Mapping[str, Any]
    is_ended: bool = False
    """True once the process must end."""

    def run(self) -> None:
        """Be a member until the process must end."""
        raise NotImplementedError

    def on_end(self, *_: object) -> None:
        self.is_ended = True


def main(kind: type[ProcessMember]) -> None:
    """Be a member of some kind, as the arguments say."""
    address, topic, group, name, settings = sys.argv[1:]
    member = kind(address, topic, group, name, json.loads(settings))
    signal.signal(signal.SIGTERM, member.on_end)
    try:
        member.run()
    except Exception as error:
        write(f"{name}: {error!r}")
        raise


@attrs.define(eq=False)
class AssignedMember(ProcessMember):
    """A member whose partitions the coordinator assigns."""

    sessions: dict[Place, int] = attrs.field(factory=dict)
    """The number of times that each partition was assigned."""
    uncommitted: dict[Place, int] = attrs.field(factory=dict)

    def run(self) -> None:
        consumer = self._consumer()
        consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._drop
        )
        count, last = 0, time.monotonic()
        while not self.is_ended:
            count += self._poll(consumer)
            if count >= COMMITTED_RECORDS or time.monotonic() > last + COMMITTED_SECONDS:
                self._commit(consumer, self.uncommitted)
                count, last = 0, time.monotonic()
        began = time.monotonic()
        consumer.close()  # Revokes its partitions, which commits.
        write(Call(self.name, "close", began, time.monotonic(), COMMIT_SECONDS))

    def _consumer(self) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "group.protocol": "consumer",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **self.settings,
            }
        )

    def _poll(self, consumer: Any) -> int:
        """Poll one record, so that none is of an earlier assignment; return their count."""
        began = time.monotonic()
        message = consumer.poll(POLL_SECONDS)
        if message is None:
            return 0
        if message.error() is not None:
            if message.error().code() not in REJOINING:
                raise KafkaException(message.error())
            return 0
        place = (message.topic(), message.partition())
        record = (place, message.offset(), message.value())
        session = self.sessions.get(place, 0)
        ended = time.monotonic()
        write(Poll(self.name, began, ended, (record,), session, self.group, True))
        self.uncommitted[place] = message.offset() + 1
        return 1

    def _on_assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        for partition in partitions:
            place = (partition.topic, partition.partition)
            self.sessions[place] = self.sessions.get(place, 0) + 1
        self._drop(consumer, partitions)

    def _on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        places = {(partition.topic, partition.partition) for partition in partitions}
        self._commit(consumer, {p: n for p, n in self.uncommitted.items() if p in places})
        self._drop(consumer, partitions)

    def _drop(self, _: Any, partitions: Sequence[Any]) -> None:
        """Forget what was polled of partitions that this member no longer owns."""
        for partition in partitions:
            self.uncommitted.pop((partition.topic, partition.partition), None)

    def _commit(self, consumer: Any, positions: Mapping[Place, int]) -> None:
        """Commit and record these positions; those whose commit fails are committed again."""
        if not positions:
            return
        began = time.monotonic()
        commits = [
            Commit(self.group, place, offset, began, client=self.name)
            for place, offset in positions.items()
        ]
        for commit in commits:
            write(commit)
        outcome: Outcome = "ok"
        try:
            offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
            answer = consumer.commit(offsets=offsets, asynchronous=False)
            if any(partition.error is not None for partition in answer):
                outcome = "unknown"
        except KafkaException as error:
            is_refused = error.args[0].code() in REFUSED
            # The first of two requests may have been accepted.
            was_resent = time.monotonic() > began + RESENT_AFTER
            outcome = "failed" if is_refused and not was_resent else "unknown"
        ended = time.monotonic()
        write(Call(self.name, "commit", began, ended, COMMIT_SECONDS))
        for commit in commits:
            write(
                attrs.evolve(commit, ended=ended if outcome == "ok" else FOREVER, outcome=outcome)
            )
            if outcome == "ok" and self.uncommitted.get(commit.place) == commit.offset:
                del self.uncommitted[commit.place]


if __name__ == "__main__":
    main(AssignedMember)
