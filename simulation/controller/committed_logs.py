"""The replicas that hold everything committed, as far as the controller simulation models logs."""

import attrs

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.types import TopicIdPartition


@attrs.define
class CommittedLogs:
    """The logs of all partitions, without their content."""

    safe: dict[TopicIdPartition, set[int]] = attrs.field(factory=dict)
    """The replicas that hold every record committed to a partition."""
    lost: set[tuple[TopicIdPartition, int]] = attrs.field(factory=set)
    """Partitions, each with a broker whose log became empty because its disk was replaced."""
    _hidden: dict[tuple[TopicIdPartition, int], bytes] = attrs.field(factory=dict)
    """The directories that may come back with all committed records, by partition and broker."""
    _hidden_directories: set[bytes] = attrs.field(factory=set)

    def on_created(self, record: r.PartitionRecord) -> None:
        """Add a partition, which has no records yet."""
        place = record.topic_id, record.partition_id
        self.safe[place] = set(record.isr)
        for replica, directory in zip(record.replicas, record.directories or (), strict=False):
            if directory in self._hidden_directories:
                self._hidden[place, replica] = directory

    def on_committed(self, place: TopicIdPartition, isr: set[int], *, enough: bool) -> None:
        """Commit records to the whole ISR; without ``enough`` members, nothing is committed."""
        self.safe[place] = isr | (set() if enough else self.safe[place])
        if enough:
            self._forget_hidden(place)

    def restart(self, place: TopicIdPartition, isr: set[int]) -> None:
        """Begin anew with the log of an uncleanly elected leader."""
        self.safe[place] = isr
        self._forget_hidden(place)

    def on_crash(self, broker: int) -> None:
        """Remove a broker that died without flushing from the safe replicas."""
        for safe in self.safe.values():
            safe.discard(broker)

    def on_disk_replaced(self, image: MetadataImage, broker: int, directory: bytes) -> None:
        """Remove a broker from the safe replicas of the partitions in a replaced directory."""
        for place in _places_in(image, broker, directory):
            self.on_log_lost(place, broker)

    def on_directory_hidden(self, image: MetadataImage, broker: int, directory: bytes) -> None:
        """Remove a broker from the safe replicas, until the directory comes back."""
        self._hidden_directories.add(directory)
        for place in _places_in(image, broker, directory):
            if broker in self.safe[place]:
                self._hidden[place, broker] = directory
            self.on_log_lost(place, broker)

    def on_directory_restored(self, broker: int, directory: bytes) -> None:
        """Add a broker to the safe replicas of partitions to which nothing was committed since."""
        self._hidden_directories.discard(directory)
        for key, hidden in list(self._hidden.items()):
            place = key[0]
            if key[1] == broker and hidden == directory:
                del self._hidden[key]
                if place in self.safe:
                    self.safe[place].add(broker)

    def on_log_lost(self, place: TopicIdPartition, broker: int) -> None:
        """Remove a broker, which has lost its log, from the safe replicas of a partition."""
        self.safe[place].discard(broker)
        self.lost.add((place, broker))

    def _forget_hidden(self, place: TopicIdPartition) -> None:
        """Forget hidden logs of a partition, because they lack records that are committed now."""
        self._hidden = {key: path for key, path in self._hidden.items() if key[0] != place}


def _places_in(image: MetadataImage, broker: int, directory: bytes) -> list[TopicIdPartition]:
    """Return the partitions that the metadata have in a broker's directory."""
    return [
        (topic_id, number)
        for topic_id, topic in image.topics.items()
        for number, partition in topic.partitions.items()
        if partition.directory(broker) == directory
    ]
