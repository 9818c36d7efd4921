"""The copies of the partitions and the metadata that the nodes of a cluster have."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.durability.observations import Batch, Place, View
from compat_tests.durability.sessions import Session
from compat_tests.nemesis.directories import partitions
from compat_tests.nemesis.group_clients import ask
from kwire.codec.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kwire.codec.messages.metadata import MetadataRequest, MetadataResponse
from kwire.records.header import HEADER_SIZE, BatchHeader, parse

ANSWER_SECONDS: Final = 5.0
Position = tuple[int, int, BatchHeader]
"""The start and the end of a batch in its segment, and its header."""


def batch_positions(contents: bytes) -> list[Position]:
    """Return the whole batches of a segment, without what Apache Kafka preallocates."""
    positions: list[Position] = []
    start = 0
    while start + HEADER_SIZE <= len(contents):
        header = parse(contents, start)
        if header.length <= 0 or start + header.size > len(contents):
            break
        positions.append((start, start + header.size, header))
        start += header.size
    return positions


def read_copy(folder: Path) -> tuple[tuple[Batch, ...], dict[int, Session]]:
    """Return the batches in a partition's directory, and each record's producer session."""
    batches: list[Batch] = []
    sessions: dict[int, Session] = {}
    for path in sorted(folder.glob("*.log")):
        contents = path.read_bytes()
        for start, end, header in batch_positions(contents):
            digest = hashlib.blake2b(contents[start:end], digest_size=8).digest()
            batches.append(Batch(header.base_offset, header.next_offset, digest))
            session = Session(header.producer_id, header.producer_epoch)
            sessions |= dict.fromkeys(range(header.base_offset, header.next_offset), session)
    return tuple(batches), sessions


def metadata(node: Node, topics: Iterable[str] | None = None) -> MetadataResponse | None:
    """Return a node's answer about some topics, by default all; None if it has no answer."""
    topic = MetadataRequest.MetadataRequestTopic
    names = None if topics is None else [topic(name=name) for name in topics]
    return ask(node.address, MetadataRequest(topics=names), 12, ANSWER_SECONDS)


def views(cluster: Cluster) -> dict[int, dict[Place, View]] | None:
    """Return each broker's metadata of all partitions; None if one does not answer."""
    by_node: dict[int, dict[Place, View]] = {}
    for node in cluster.brokers:
        answer = metadata(node)
        if answer is None:
            return None
        by_node[node.id] = {
            (topic.name or "", partition.partition_index): View(
                partition.leader_id,
                partition.leader_epoch,
                frozenset(partition.replica_nodes),
                frozenset(partition.isr_nodes),
            )
            for topic in answer.topics
            for partition in topic.partitions
        }
    return by_node


def is_in_sync(cluster: Cluster) -> bool:
    """Whether all brokers agree that every partition has a leader and all replicas in sync."""
    by_node = views(cluster)
    if by_node is None or len({frozenset(view.items()) for view in by_node.values()}) != 1:
        return False
    (partitions, *_) = by_node.values()
    in_sync = all(view.leader >= 0 and view.isr == view.replicas for view in partitions.values())
    return in_sync and not is_reassigning(cluster)


def is_reassigning(cluster: Cluster) -> bool:
    """Whether a reassignment goes on, or no broker can tell."""
    request = ListPartitionReassignmentsRequest(topics=None)
    for node in cluster.brokers:
        answer = ask(node.address, request, 0, ANSWER_SECONDS)
        if answer is not None:
            return bool(answer.error_code or answer.topics)
    return True


def find_misplaced_copies(
    cluster: Cluster, by_node: Mapping[int, Mapping[Place, View]]
) -> list[str]:
    """Return what is wrong with the places of copies: each replica has one, other nodes none.

    Invariant 36: after a reassignment its former replicas are deleted, and only those.
    """
    problems = []
    for node in cluster.brokers:
        names = Counter(folder.name for folder in partitions(node))
        expected = Counter(
            f"{topic}-{index}"
            for (topic, index), view in by_node[node.id].items()
            if node.id in view.replicas
        )
        problems += [
            f"node {node.id} has {names[name]} of {expected[name]} directories {name}"
            for name in sorted(names.keys() | expected.keys())
            if names[name] != expected[name]
        ]
    return problems
