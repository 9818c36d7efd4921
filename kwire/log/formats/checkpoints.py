"""The small text files of a log directory, and how torn files are handled.

Offset checkpoints are hints: a file that cannot be read counts as empty, and recovery computes its
content from the log. ``meta.properties`` names the node and cluster that own the directory, so it
must be readable. Files are always replaced as a whole.
"""

import json
import re
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from kwire.log.disk import Disk
from kwire.log.formats import names
from kwire.types import TopicPartition, uuid_bytes, uuid_text

VERSION: Final = "0"
SLICE_LINES: Final = 500
"""The number of lines that are parsed between two yields."""
Offsets = dict[TopicPartition, int]


class CorruptFile(ValueError):
    """A file that the broker needs is damaged."""


def offset_line(partition: TopicPartition, offset: int) -> str:
    """Return one line of an offset checkpoint."""
    return f"{partition.topic} {partition.partition} {offset}\n"


def offsets_text(lines: Sequence[str]) -> bytes:
    """Return an offset checkpoint: version, count, then ``topic partition offset`` lines."""
    return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def parsing_offsets(data: bytes) -> Generator[None, None, Offsets]:
    """Parse an offset checkpoint in steps; raises ValueError if anything in it is wrong.

    Apache Kafka creates the file empty, before there are offsets.
    """
    if not data:
        return {}
    lines = data.decode().split("\n")
    if len(lines) < 3 or lines[0] != VERSION or lines[-1]:
        raise ValueError("not an offset checkpoint")
    offsets: Offsets = {}
    for count, line in enumerate(lines[2:-1], 1):
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
        if not count % SLICE_LINES:
            yield
    if len(lines) - 3 != int(lines[1]):
        raise ValueError("offset checkpoint is cut off")
    return offsets


def reading_offsets(disk: Disk, name: str) -> Generator[None, None, tuple[Offsets, str | None]]:
    """Read a checkpoint in steps.

    Return the offsets (none if the file is missing or damaged) and a description of the damage.
    """
    try:
        return (yield from parsing_offsets(disk.read(name))), None
    except FileNotFoundError:
        return {}, None
    except ValueError as error:
        return {}, f"{name}: {error}"


class MetaProperties(NamedTuple):
    """The content of ``meta.properties``: the cluster and node that own the directory."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None = None
    """None in directories written before Kafka 3.7."""
    version: int = 1

    def to_text(self) -> bytes:
        lines = ["#", "#kwire", f"node.id={self.node_id}"]
        if self.directory_id is not None:
            lines.append(f"directory.id={uuid_text(self.directory_id)}")
        lines += [f"version={self.version}", f"cluster.id={_escape(self.cluster_id)}"]
        return ("\n".join(lines) + "\n").encode()


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java properties as in Kafka's files: ``key=value`` lines, ``#`` comments."""
    properties = {}
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            key, _, value = line.partition("=")
            properties[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    return properties


def parse_meta_properties(data: bytes) -> MetaProperties:
    """Parse ``meta.properties``; raises :class:`CorruptFile`, naming the bad property."""
    try:
        properties = parse_properties(data.decode())
        version = int(properties.get("version", "-1"))
        if version not in (0, 1):
            raise CorruptFile(f"{names.META_PROPERTIES} has version {version}, not 0 or 1")
        node = properties["broker.id"] if "broker.id" in properties else properties["node.id"]
        directory = properties.get("directory.id")
        return MetaProperties(
            cluster_id=properties["cluster.id"],
            node_id=int(node),
            directory_id=uuid_bytes(directory) if directory else None,
            version=version,
        )
    except CorruptFile:
        raise
    except KeyError as error:
        raise CorruptFile(f"{names.META_PROPERTIES} lacks {error.args[0]}") from error
    except ValueError as error:
        raise CorruptFile(f"{names.META_PROPERTIES}: {error}") from error


def partition_metadata_text(topic_id: bytes) -> bytes:
    """Return the content of ``partition.metadata``, which ends without a newline."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> bytes:
    """Return the topic id; raises ValueError if the file is torn."""
    lines = dict(line.split(": ", 1) for line in data.decode().splitlines() if ": " in line)
    if lines.get("version") != "0" or "topic_id" not in lines:
        raise ValueError("not a partition.metadata file")
    return uuid_bytes(lines["topic_id"])


def clean_shutdown_text(broker_epoch: int) -> bytes:
    """Return the content of ``.kafka_cleanshutdown``, the marker of a clean shutdown."""
    return f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode()


def parse_clean_shutdown(data: bytes) -> int:
    """Return the broker epoch at the clean shutdown; -1 if the marker has none."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def _escape(value: str) -> str:
    """Escape the characters that Java escapes in a value."""
    return re.sub(r"([\\:=#!])", r"\\\1", value)
