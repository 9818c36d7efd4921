"""A member of a share group in a process of its own, as `member_process.py` for other groups.

    python -m compat_tests.nemesis.share_member_process ADDRESS TOPIC GROUP NAME SETTINGS

It acknowledges each poll's records before the next poll, and releases some of them on purpose.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

import attrs
from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, ShareConsumer

from compat_tests.durability.observations import Call, Place
from compat_tests.durability.recording import COMMIT_SECONDS, POLL_SECONDS
from compat_tests.nemesis.member_process import REJOINING, ProcessMember, main, write
from simulation.share_rules import FOREVER, Acknowledgement, Delivery, Kind, Outcome

RELEASED_SHARE: Final = 0.1
"""The part of the deliveries that a member releases, for the group to deliver again."""
TYPES: Final[Mapping[Kind, AcknowledgeType]] = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
}


@attrs.define(eq=False)
class ShareMember(ProcessMember):
    """A member that shares partitions with others."""

    chance: random.Random = attrs.field(factory=random.Random)

    def run(self) -> None:
        self.chance = random.Random(self.name)
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **self.settings,
            }
        )
        consumer.subscribe([self.topic])
        while not self.is_ended:
            self._acknowledge(consumer, self._poll(consumer))
        began = time.monotonic()
        consumer.close()
        write(Call(self.name, "close", began, time.monotonic(), COMMIT_SECONDS))

    def _poll(self, consumer: Any) -> list[Any]:
        """Poll once and return the records, recorded as delivered."""
        began = time.monotonic()
        messages = list(consumer.poll(POLL_SECONDS))
        ended = time.monotonic()
        records = [message for message in messages if message.error() is None]
        for message in messages:
            if message.error() is not None and message.error().code() not in REJOINING:
                raise KafkaException(message.error())
        for m in records:
            record = ((m.topic(), m.partition()), m.offset())
            write(Delivery(self.name, record, m.value(), m.delivery_count(), began, ended))
        return records

    def _acknowledge(self, consumer: Any, messages: list[Any]) -> None:
        if not messages:
            return
        began = time.monotonic()
        acknowledgements = []
        for m in messages:
            kind: Kind = "release" if self.chance.random() < RELEASED_SHARE else "accept"
            record = ((m.topic(), m.partition()), m.offset())
            acknowledgements.append(
                Acknowledgement(self.name, record, kind, m.delivery_count(), began)
            )
            write(acknowledgements[-1])
            consumer.acknowledge(m, TYPES[kind])
        outcomes: dict[Place, Outcome] = {}
        try:
            answer = consumer.commit_sync(float(COMMIT_SECONDS))
            for partition, error in answer.items():
                outcomes[partition.topic, partition.partition] = outcome_of(error)
        except KafkaException:
            pass  # Nothing is certain.
        ended = time.monotonic()
        write(Call(self.name, "commit", began, ended, COMMIT_SECONDS))
        for acknowledgement in acknowledgements:
            outcome = outcomes.get(acknowledgement.record[0], "unknown")
            is_ok = outcome == "ok"
            write(attrs.evolve(acknowledgement, outcome=outcome, ended=ended if is_ok else FOREVER))


def outcome_of(error: KafkaException | None) -> Outcome:
    """Return the outcome of a partition's acknowledgements, which are accepted together."""
    if error is None:
        return "ok"
    return "failed" if error.args[0].code() == KafkaError.INVALID_RECORD_STATE else "unknown"


if __name__ == "__main__":
    main(ShareMember)
