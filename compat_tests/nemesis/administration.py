"""Faults of administrators: changes of replicas, topics and settings while clients work.

Rules: a change is requested with a client's Admin API, in the middle of other faults, and may fail
for those; any other error is a problem. What a change leaves to do, such as the end of a setting
that allows one in-sync replica, is done by :meth:`Administrator.heal` at the latest. Every
partition keeps two replicas or more, so that it is writable with ``min.insync.replicas=2``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import attrs
from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError as PythonError

from compat_tests.cluster.nodes import Node
from compat_tests.durability.observations import Place
from compat_tests.harness.wait import eventually
from compat_tests.nemesis.clients import IMPATIENT, ClusterRun
from compat_tests.nemesis.directories import folder_of, log_directories
from compat_tests.nemesis.faults import End, Nemesis
from compat_tests.nemesis.replicas import metadata
from compat_tests.nemesis.side_topic import SIDE_TOPIC, SideTopic

CALL_SECONDS: Final = 5.0
HEAL_SECONDS: Final = 60.0
PARTITIONS_MAX: Final = 8
THROTTLED_BYTES: Final = "20000"
"""The rate of a reassignment that is cancelled: it must not be over before."""
PASSING: Final = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY_BROKER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.BROKER_NOT_AVAILABLE,
}
"""Errors of a request while there is no controller, or while too few brokers are up."""
PASSING_ELECTIONS: Final = PASSING | {
    KafkaError.ELECTION_NOT_NEEDED,
    KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
PASSING_MOVES: Final = {
    "NoReassignmentInProgressError",
    "NotControllerError",
    "RequestTimedOutError",
    "KafkaTimeoutError",
}
MIN_ISR: Final = "min.insync.replicas"
TOPIC_SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "compression.type": ("producer", "zstd", "lz4", "gzip", "snappy", "uncompressed"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "internal.segment.bytes": ("50000", "200000", "1000000"),
    "segment.ms": ("2000", "604800000"),
    "index.interval.bytes": ("100", "500", "4096"),
    "flush.messages": ("1", "9223372036854775807"),
    "preallocate": ("true", "false"),
    "file.delete.delay.ms": ("1000", "5000"),
    MIN_ISR: ("1", "1", "2"),
}
BROKER_SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "num.replica.fetchers": ("1", "2"),
    "num.io.threads": ("8", "16"),
    "background.threads": ("5", "10"),
    "log.cleaner.threads": ("1", "2"),
    "log.segment.delete.delay.ms": ("1000", "3000"),
    "message.max.bytes": ("1048588", "2097152"),
}
"""The values of each setting. A number of threads is at most twice another: Kafka refuses more."""
Settings = Mapping[str, str | None]
"""The values by name; None removes a value."""


def nothing() -> None:
    """End a fault that ends by itself."""


@attrs.define(eq=False)
class Administrator:
    """The faults of administrators; ``problems`` has what went wrong."""

    nemesis: Nemesis
    run: ClusterRun
    problems: list[str] = attrs.field(factory=list)
    _tasks: dict[str, Callable[[], bool]] = attrs.field(factory=dict)
    """The work still to do, in this order; each function returns whether it is done."""
    _side_topic: SideTopic = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._side_topic = SideTopic(self.run.address, self.problems)

    def faults(self) -> dict[str, Callable[[], End]]:
        faults = {
            "reassignment": self._reassign,
            "cancelled reassignment": self._reassign_and_cancel,
            "reassignment to a dead node": self._reassign_to_dead,
            "elections": self._elect,
            "topic settings": self._set_topics,
            "broker settings": self._set_brokers,
            "new partitions": self._grow,
            "side topic": self._create_side_topic,
        }
        if self.nemesis.directories > 1:
            faults["directory moves"] = self._move_directories
        return faults

    def heal(self) -> None:
        """Do what is left to do (invariant 110)."""
        eventually(
            self._do_tasks, lambda: f"administrators have done {[*self._tasks]}", HEAL_SECONDS
        )

    def _do_tasks(self) -> bool:
        for name, do in list(self._tasks.items()):
            if not do():
                return False
            del self._tasks[name]
        return True

    def _try_tasks(self) -> None:
        """End a fault: do the work that is left, as far as other faults let it."""
        self._do_tasks()

    # Requests ------------------------------------------------------------------------------

    def _client(self) -> AdminClient:
        settings: dict[str, Any] = {"log_level": 0, **IMPATIENT}
        return AdminClient({"bootstrap.servers": self.run.address, **settings})

    def _is_done(self, what: str, call: Callable[[], object], passing: set[int] = PASSING) -> bool:
        """Make a call; return False if it may be repeated, and note an error that may not be."""
        if not self.nemesis.cluster.living:
            return False
        try:
            call()
        except KafkaException as failure:
            error = failure.args[0]
            if error.retriable() or error.code() in passing:
                return False
            self.problems.append(f"{what}: {error}")
        return True

    def _alter(self, kind: ResourceType, name: str, settings: Settings) -> bool:
        entries = [
            ConfigEntry(
                key,
                value,
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for key, value in settings.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        client = self._client()

        def alter() -> None:
            answers = client.incremental_alter_configs([resource], request_timeout=CALL_SECONDS)
            answers[resource].result(2 * CALL_SECONDS)

        return self._is_done(f"settings {dict(settings)} of {name}", alter)

    def _request_moves(self, moves: Mapping[Place, Sequence[int] | None]) -> bool:
        """Request reassignments, or with None their end; return whether all are accepted."""
        if not (moves and self.nemesis.cluster.living):
            return False
        try:
            with closing(self._python_client()) as client:
                answers = client.alter_partition_reassignments(
                    {TopicPartition(*place): nodes for place, nodes in moves.items()},
                    timeout_ms=int(CALL_SECONDS * 1000),
                )
        except PythonError as error:
            return self._note_moves({type(error).__name__}, error.retriable)
        return self._note_moves({error.__name__ for error in answers.values() if error}, False)

    def _note_moves(self, names: set[str], is_retriable: bool) -> bool:
        if not is_retriable and names - PASSING_MOVES:
            self.problems.append(f"reassignment: {names}")
        return not names

    def _python_client(self) -> KafkaAdminClient:
        milliseconds = int(CALL_SECONDS * 1000)
        return KafkaAdminClient(
            bootstrap_servers=self.run.address.split(","),
            request_timeout_ms=milliseconds,
            bootstrap_timeout_ms=milliseconds,
        )

    # Replicas ------------------------------------------------------------------------------

    def _brokers(self) -> list[Node]:
        return self.nemesis.cluster.brokers

    def _places(self) -> list[Place]:
        """Return all partitions as the first node that answers knows them; may be empty."""
        for node in self._brokers():
            answer = metadata(node) if node.alive else None
            if answer is not None:
                return sorted(
                    (topic.name, partition.partition_index)
                    for topic in answer.topics
                    if topic.name is not None and topic.name != SIDE_TOPIC
                    for partition in topic.partitions
                )
        return []

    def _draw_moves(self, node_id: int | None = None) -> dict[Place, list[int]]:
        """Draw new replicas of some partitions, which include a node."""
        chance = self.nemesis.random
        ids = [node.id for node in self._brokers()]
        places = self._places()
        moves = {}
        for place in chance.sample(places, chance.randint(min(1, len(places)), len(places))):
            nodes = chance.sample(ids, chance.choice((2, 3, 3)))
            if node_id is not None and node_id not in nodes:
                nodes[-1] = node_id
            moves[place] = nodes
        return moves

    def _reassign(self) -> End:
        moves = self._draw_moves()
        is_accepted = self._request_moves(moves)
        self.nemesis.report(f"reassignment ({is_accepted}): {_texts(moves)}")
        return nothing

    def _reassign_and_cancel(self) -> End:
        moves = self._draw_moves()
        self._throttle(THROTTLED_BYTES, sorted({topic for topic, _ in moves}))
        is_accepted = self._request_moves(moves)
        self.nemesis.report(f"reassignment to be cancelled ({is_accepted}): {_texts(moves)}")

        def end() -> None:
            self._request_moves(dict.fromkeys(moves))
            self._try_tasks()

        return end

    def _throttle(self, rate: str, topics: Sequence[str]) -> None:
        """Throttle all replication to replicas that are not in sync, until it is undone."""
        kinds = ("leader", "follower")
        rates = {f"{kind}.replication.throttled.rate": rate for kind in kinds}
        replicas = {f"{kind}.replication.throttled.replicas": "*" for kind in kinds}
        resources = [
            *((ResourceType.BROKER, str(node.id), rates) for node in self._brokers()),
            *((ResourceType.TOPIC, topic, replicas) for topic in topics),
        ]
        is_set = True
        for kind, name, settings in resources:
            is_set = is_set and self._alter(kind, name, settings)
            self._plan_settings(kind, name, dict.fromkeys(settings))

    def _plan_settings(self, kind: ResourceType, name: str, settings: Settings) -> None:
        self._tasks[f"{[*settings]} of {name}"] = lambda: self._alter(kind, name, settings)

    def _reassign_to_dead(self) -> End:
        node = self.nemesis.random.choice(self._brokers())
        self.nemesis.bring_down(node)
        moves = self._draw_moves(node.id)
        is_accepted = self._request_moves(moves)
        self.nemesis.report(f"reassignment to the dead {node.id} ({is_accepted}): {_texts(moves)}")
        return lambda: self.nemesis.launch(node)

    def _elect(self) -> End:
        """Elect preferred leaders; unclean ones only if there is none to lose records to."""
        kinds = [ElectionType.PREFERRED]
        if self.nemesis.was_settled:
            kinds.append(ElectionType.UNCLEAN)
        self.nemesis.report(f"elections {[kind.name for kind in kinds]}")
        for kind in kinds:
            self._is_done("elections", partial(self._request_elections, kind))
        return nothing

    def _request_elections(self, kind: ElectionType) -> None:
        client = self._client()
        answers = client.elect_leaders(kind, None)  # confluent-kafka 2.16 takes no time-out.
        for place, error in answers.result(2 * CALL_SECONDS).items():
            if error is not None and error.code() not in PASSING_ELECTIONS:
                self.problems.append(f"{kind.name} election of {place}: {error}")

    def _move_directories(self) -> End:
        """Move some replicas of a node to others of its log directories."""
        chance = self.nemesis.random
        node = chance.choice(self._brokers())
        directories = log_directories(node, self.nemesis.directories)
        places = [p for p in self._places() if folder_of(node, f"{p[0]}-{p[1]}").is_dir()]
        moves = {
            (topic, index, node.id): str(chance.choice(directories))
            for topic, index in chance.sample(places, chance.randint(0, len(places)))
        }
        answers: object = "no answer"
        try:
            with closing(self._python_client()) as client:
                results = client.alter_replica_log_dirs(moves) if moves and node.alive else {}
            answers = sorted({error.__name__ for error in results.values()})
        except PythonError as error:
            answers = repr(error)
        self.nemesis.report(f"directory moves of {len(moves)} replicas of {node.id}: {answers}")
        return nothing

    # Settings ------------------------------------------------------------------------------

    def _draw_settings(self, table: Mapping[str, Sequence[str]]) -> dict[str, str]:
        chance = self.nemesis.random
        names = chance.sample(sorted(table), chance.randint(1, 3))
        return {name: chance.choice(table[name]) for name in names}

    def _set_topics(self) -> End:
        kind = ResourceType.TOPIC
        for topic in self.run.topics():
            settings = self._draw_settings(TOPIC_SETTINGS)
            is_set = self._alter(kind, topic, settings)
            self.nemesis.report(f"settings of {topic} ({is_set}): {settings}")
            if MIN_ISR in settings:
                self._plan_settings(kind, topic, {MIN_ISR: None})
        return self._try_tasks

    def _set_brokers(self) -> End:
        for node in self._brokers():
            settings = self._draw_settings(BROKER_SETTINGS)
            is_set = self._alter(ResourceType.BROKER, str(node.id), settings)
            self.nemesis.report(f"settings of {node.id} ({is_set}): {settings}")
        return nothing

    # Topics --------------------------------------------------------------------------------

    def _grow(self) -> End:
        """Add a partition to each topic, which clients use once all brokers know it."""
        count = self.run.partitions + 1
        self.nemesis.report(f"new partitions: {count}")
        if count > PARTITIONS_MAX:
            return nothing
        for topic in reversed(self.run.topics()):  # The topic of results before its sources.
            self._tasks[f"new partitions of {topic}"] = partial(self._add, topic, count)
        self._tasks["use of new partitions"] = lambda: self._use(count)
        self._try_tasks()
        return nothing

    def _add(self, topic: str, count: int) -> bool:
        client = self._client()

        def add() -> None:
            answers = client.create_partitions(
                [NewPartitions(topic, count)], request_timeout=CALL_SECONDS
            )
            answers[topic].result(2 * CALL_SECONDS)

        repeated = {KafkaError.INVALID_PARTITIONS}
        is_added = self._is_done(f"new partitions of {topic}", add, PASSING | repeated)
        return is_added or self._are_known([topic], count)

    def _are_known(self, topics: Sequence[str], count: int) -> bool:
        """Return whether all brokers know ``count`` partitions of each topic, all with leaders."""
        for node in self._brokers():
            answer = metadata(node, topics) if node.alive else None
            if answer is None or any(len(topic.partitions) != count for topic in answer.topics):
                return False
            if any(p.leader_id < 0 for topic in answer.topics for p in topic.partitions):
                return False
        return True

    def _use(self, count: int) -> bool:
        if self._are_known(self.run.topics(), count):
            self.run.partitions = count
            return True
        return False

    def _create_side_topic(self) -> End:
        """Create a topic that has been deleted, write to it, and read and delete it."""
        side = self._side_topic
        late = {KafkaError.TOPIC_ALREADY_EXISTS}  # An earlier request that had no answer.
        is_created = self._is_done("creation of the side topic", side.create, PASSING | late)
        self.nemesis.report(f"side topic {side.number} ({is_created})")
        if is_created:
            side.write()
            self._tasks["reading the side topic"] = side.is_read
        self._tasks["deletion of the side topic"] = lambda: self._is_done(
            "deletion of the side topic", side.delete
        )
        self._tasks["end of the side topic"] = self._is_side_topic_gone
        return self._try_tasks

    def _is_side_topic_gone(self) -> bool:
        for node in self._brokers():
            answer = metadata(node) if node.alive else None
            if answer is None or any(topic.name == SIDE_TOPIC for topic in answer.topics):
                return False
        return True


def _texts(moves: Mapping[Place, Sequence[int]]) -> str:
    return ", ".join(f"{topic}-{index} {[*nodes]}" for (topic, index), nodes in moves.items())
