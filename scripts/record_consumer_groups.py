#!/usr/bin/env python3
"""Record conversations of members of consumer groups (KIP-848) with Apache Kafka's coordinator.

    record_consumer_groups.py FILE

Starts Apache Kafka 4.3.1, plays seeded conversations of several kinds, and writes FILE (gzip, a
JSON object per line): the topics, each request with its response, and the records that Kafka wrote
for the group. `tests/group/test_recorded_conversations.py` plays the requests to kwire and compares
the rest. The broker is in a rack, which is part of the hash of the topics' metadata.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from kwire.codec.messages.incremental_alter_configs import (  # noqa: E402
    IncrementalAlterConfigsRequest,
)
from kwire.configs.resource_types import GROUP  # noqa: E402
from kwire.testing.wire import WireClient  # noqa: E402
from scripts.consumer_conversations import (  # noqa: E402
    SESSION_S,
    Conversation,
    ExpiringMembers,
    Expressions,
    RackedMembers,
    StaticMembers,
)
from scripts.group_recorder import create_topics, record_to  # noqa: E402
from scripts.migrating_conversations import Migration  # noqa: E402

PORT = 29_192
RACK = "r1"
SETTINGS = {
    "broker.rack": RACK,
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": "3600000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3600000",
    "group.coordinator.append.linger.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}
KINDS: tuple[tuple[type[Conversation], int, int], ...] = (
    (Conversation, 24, 40),
    (StaticMembers, 8, 30),
    (RackedMembers, 4, 25),
    (Expressions, 8, 24),
    (Migration, 10, 24),
    (ExpiringMembers, 6, 20),
    (Expressions, 2, 24),
    (RackedMembers, 2, 25),
)
"""Each kind of conversation, with the number of conversations and of steps."""
EXPIRING = {
    "consumer.session.timeout.ms": int(SESSION_S * 1000),
    "consumer.heartbeat.interval.ms": 1_000,
}
LEFT_OUT = {39, 42}
"""Seeds in which a member joins with an expression that is not resolved yet, while the target is
outdated. Kafka then gives it partitions of topics to which only the other members subscribe."""
_SET = 0


def record_all(client: WireClient) -> list[dict[str, Any]]:
    kinds = [(kind, steps) for kind, count, steps in KINDS for _ in range(count)]
    seeds = [each for each in enumerate(kinds) if each[0] not in LEFT_OUT]
    return [record(client, seed, *kind) for seed, kind in seeds]


def record(
    client: WireClient, seed: int, kind: type[Conversation], step_count: int
) -> dict[str, Any]:
    draw = random.Random(seed)
    assignor = "range" if seed % 4 != 3 or kind is Expressions else "uniform"
    names = "abc" if kind is Expressions else "ab"
    counts = {f"s{seed}{name}": draw.randint(1, 9) for name in names}
    topics = create_topics(client, counts)
    time.sleep(1)  # The coordinator learns of the topics a little later than clients.
    talk = kind(client, draw, f"g{seed}", topics, dict(counts), assignor)
    settings = EXPIRING if kind is ExpiringMembers else {}
    set_group(client, talk.group, settings)
    started = {name: [topics[name], count] for name, count in counts.items()}
    talk.run(step_count)
    print(talk.group, kind.__name__, len(talk.steps), flush=True)
    return {
        "group": talk.group,
        "topics": started,
        "rack": RACK,
        "settings": settings,
        "steps": talk.steps,
        "end_at": talk.now(),
    }


def set_group(client: WireClient, group: str, settings: dict[str, int]) -> None:
    """Set settings of a group, and wait until the coordinator has seen them."""
    if not settings:
        return
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=name, config_operation=_SET, value=str(value))
        for name, value in settings.items()
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=GROUP, resource_name=group, configs=configs)],
        validate_only=False,
    )
    (answer,) = client.call(request, 1).responses
    assert answer.error_code == 0, answer.error_message
    time.sleep(1)


if __name__ == "__main__":
    record_to(Path(sys.argv[1]), PORT, SETTINGS, record_all)
