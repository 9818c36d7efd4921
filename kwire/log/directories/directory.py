"""One log directory: its lock, its partitions' logs, its checkpoints, its clean shutdown.

Synchronous; :mod:`kwire.log.manager` decides when, and in which thread, its methods run. Rules: a
directory belongs to one broker at a time. A topic's data is identified by the topic id, so the
directory of an older topic with the same name is set aside, never reused. A crash may follow any
step of a deletion: the next start removes or ignores a directory whose name has a mark.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import attrs

from kwire.log import recovery
from kwire.log.config import LogConfig
from kwire.log.disk import Disk, Entry, Lock
from kwire.log.disk_health import (
    FAILED_SYNC,
    RETRY_SECONDS,
    DiskErrorKind,
    classify,
    ignore_no_room,
    lacks_descriptors,
)
from kwire.log.formats import checkpoints, names
from kwire.log.formats.checkpoints import Offsets
from kwire.log.partition_log import PartitionLog, create
from kwire.types import METADATA_TOPIC, ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)

LOST_ID: Final = b"\xff" * 16
"""The topic id of a log whose ``partition.metadata`` was torn by a crash.

Every flush syncs that file, so no record in the log was acknowledged as durable. The log may even
belong to an older topic with the same name, deleted just before a power loss. It belongs to no
topic.
"""


OPENING_RETRIES: Final = 30
"""The number of retries to open a partition if there are too few descriptors."""
SLICE_NAMES: Final = 100
"""The number of names of partitions or files that a start looks at between two yields."""


class Unopened(NamedTuple):
    """A partition whose log cannot be opened, with its checkpointed offsets."""

    topic_id: bytes
    offsets: recovery.StoredOffsets


@attrs.define(eq=False, repr=False)
class LogDirectory:
    """An open log directory."""

    disk: Disk
    name: str
    """The directory's path, for log lines and for DescribeLogDirs."""
    directory_id: bytes = ZERO_UUID  # Also if ``meta.properties`` could not be read.
    logs: dict[TopicPartition, PartitionLog] = attrs.Factory(dict)
    futures: dict[TopicPartition, PartitionLog] = attrs.Factory(dict)
    """Logs that are being copied here from other directories (KIP-113)."""
    moved_here: set[TopicPartition] = attrs.Factory(set)
    """Partitions that were moved here shortly before the last run ended."""
    deleted_directories: list[str] = attrs.Factory(list)
    """Directories of deleted partitions, still to be removed."""
    unopened: dict[TopicPartition, Unopened] = attrs.Factory(dict)
    """Partitions whose files are here but cannot be read; the files are left unchanged."""
    retired: dict[TopicPartition, set[str]] = attrs.Factory(dict)
    """Retired partitions, with the checkpoint files on disk that may still name them."""
    is_loaded: bool = False
    """True once :attr:`logs` and :attr:`unopened` contain every partition in the directory."""
    previous_epoch: int = -1
    """The broker epoch at the last clean shutdown, else -1; set when the directory is loaded."""
    on_offline: Callable[["LogDirectory"], None] = lambda directory: None
    """Called once when the directory has failed; its logs raise storage errors from then on."""
    _lock: Lock | None = None
    _is_failure_noted: bool = False

    @property
    def online(self) -> bool:
        return self.disk.failed is None

    def note_failure(self) -> bool:
        """Take the directory offline, once, if its disk has failed; return whether it has."""
        if self.online:
            return False
        if not self._is_failure_noted:
            self._is_failure_noted = True
            logger.error("directory offline name=%s error=%s", self.name, self.disk.failed)
            self.on_offline(self)
        return True

    def has_failed_sync(self) -> bool:
        """Return whether an fsync has failed here and no later start has synced everything."""
        try:
            self.disk.read(FAILED_SYNC)
        except FileNotFoundError:
            return False
        return True

    def holds(self, log: PartitionLog) -> bool:
        """Return whether a log is still in this directory; otherwise its files may be gone."""
        partition = log.partition
        return self.logs.get(partition) is log or self.futures.get(partition) is log

    @property
    def all_logs(self) -> list[PartitionLog]:
        """The open logs, including logs that are being copied to this directory."""
        return [*self.logs.values(), *self.futures.values()]

    def lock(self) -> None:
        """Claim the directory; raises AlreadyLocked."""
        if self._lock is None:
            self._lock = self.disk.lock(names.LOCK)
            self.disk.keep_room()

    def load(
        self, config_of: Callable[[str], LogConfig], now_ms: int
    ) -> Generator[float | None, None, None]:
        """Remove the marker, then open the partitions; yield None to pause, or seconds to wait."""
        self.lock()
        clean = self._take_marker()
        stored: dict[str, Offsets] = {}
        for file in _OFFSETS:
            stored[file] = yield from _reading_offsets(self.disk, self.name, file)
        points, watermarks, starts, clean_ends = stored.values()
        directories, futures = list[str](), list[str]()
        for count, name in enumerate(self.disk.folders(), 1):
            (directories if names.parse_future(name) is None else futures).append(name)
            if not count % SLICE_NAMES:
                yield None
        doubled = _discard_doubled_futures(self.disk, futures, self.deleted_directories)
        for name in directories + futures:
            future = names.parse_future(name)
            partition = self._partition(name) if future is None else TopicPartition(*future)
            if partition is None:
                continue
            offsets = recovery.StoredOffsets(
                clean=clean,
                recovery_point=points.get(partition, 0),
                log_start=starts.get(partition, 0),
                high_watermark=watermarks.get(partition, 0),
                clean_end=clean_ends.get(partition),
            )
            if partition in doubled:  # The checkpoints may refer to the discarded log.
                offsets = recovery.StoredOffsets(clean=False)
            load = partial(self._load, name, partition, offsets, config_of, now_ms)
            yield from _retrying(self.disk, name, load)
            yield None
        yield from _comparing_checkpoints(self, stored)
        self.is_loaded = True

    def _load(
        self,
        name: str,
        partition: TopicPartition,
        offsets: recovery.StoredOffsets,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        is_last: bool,
    ) -> Generator[None, None, None]:
        """Open one partition; if it cannot be read, record it in :attr:`unopened`.

        Unless ``is_last``, raise OSError if there are too few descriptors. A future replica that
        cannot be read is ignored: the current replica has all its records.
        """
        is_future, topic_id = names.parse_future(name) is not None, ZERO_UUID
        try:
            stored_id, files = _topic_id(self.disk, name), (yield from _listing(self.disk, name))
            if stored_id is None and _are_foreign(files):
                logger.warning("skipped directory without segments path=%s/%s", self.name, name)
                return
            topic_id = stored_id or ZERO_UUID
            if names.MOVED_HERE in files and not is_future:
                self.moved_here.add(partition)
            if not files or names.NAMED_AGAIN in files:  # The checkpoints may refer to another log.
                self.retired[partition] = _files_naming(offsets.clean_end)
                offsets = recovery.StoredOffsets(clean=offsets.clean)
            log = yield from recovery.opening(
                self.disk,
                name,
                partition,
                now_ms=now_ms,
                config=config_of(partition.topic),
                offsets=offsets,
                entries=files.values(),
            )
        except (OSError, ValueError) as error:
            if not self.online or (lacks_descriptors(error) and not is_last):
                raise
            text = "cannot open partition=%s directory=%s error=%s"
            logger.error(text, partition, self.name, error)
            if not is_future:
                self.unopened[partition] = Unopened(topic_id, offsets)
            return
        log.topic_id = topic_id
        (self.futures if is_future else self.logs)[partition] = log

    def create(
        self,
        partition: TopicPartition,
        topic_id: bytes,
        config: LogConfig,
        now_ms: int,
        future: tuple[str, int] | None = None,
    ) -> PartitionLog:
        """Create a partition's log without a sync, because an empty log can be recreated.

        ``future``: the directory name and the first offset of a future replica.
        """
        directory, base_offset = future or (names.directory(*partition), 0)
        self.disk.make_directory(directory)
        if partition in self.retired:
            self.disk.write(f"{directory}/{names.NAMED_AGAIN}", b"")
        path = f"{directory}/{names.PARTITION_METADATA}"
        self.disk.write(path, checkpoints.partition_metadata_text(topic_id))
        log = create(
            self.disk,
            directory,
            partition,
            now_ms=now_ms,
            config=config,
            base_offset=base_offset,
        )
        log.topic_id = topic_id
        log.flush_state.unsynced.sync_later(names.PARTITION_METADATA)
        (self.logs if future is None else self.futures)[partition] = log
        return log

    def adopt(self, log: PartitionLog, topic_id: bytes) -> None:
        """Assign a log from before topic ids were introduced to this topic."""
        path = f"{log.segments.directory}/{names.PARTITION_METADATA}"
        self.disk.replace(path, checkpoints.partition_metadata_text(topic_id), sync=True)
        log.topic_id = topic_id

    def retire(self, partition: TopicPartition, unique: bytes, suffix: str) -> str:
        """Remove a partition and mark its directory; return the directory's new name."""
        marked = names.marked_directory(*partition, unique.hex(), suffix)
        unopened = self.unopened.pop(partition, None)
        if unopened is not None:
            self.retired[partition] = _files_naming(unopened.offsets.clean_end)
            self.disk.rename(names.directory(*partition), marked)
            return marked
        log = self.logs.pop(partition, None) or self.futures.pop(partition)
        self.retired[partition] = files_naming(log)
        set_aside(log, marked)
        return marked

    @property
    def stale_files(self) -> set[str]:
        """The checkpoint files that may still name retired partitions."""
        return set().union(*self.retired.values())

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of the checkpoint file ``name``, each built when it is requested.

        A partition without an entry in this file yields an empty string.
        """
        line = checkpoints.offset_line
        for log in self.all_logs:
            offset = _OFFSETS[name](log)
            yield "" if offset is None else line(log.partition, offset)
        for partition, unopened in list(self.unopened.items()):  # Kept until the log can be read.
            stored = _STORED[name](unopened.offsets)
            yield line(partition, stored) if stored else ""

    def checkpoint(self, name: str) -> bytes:
        """Return the content of the checkpoint file ``name``."""
        return checkpoints.offsets_text([line for line in self.lines(name) if line])

    def is_named_again(self, partition: TopicPartition) -> bool:
        """Return whether checkpoints may still hold the offsets of an earlier log of this name."""
        return partition in self.retired and self.find(partition) is not None

    def find(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the partition's log or future replica in this directory, if any."""
        return self.logs.get(partition) or self.futures.get(partition)

    def forget_retired(
        self, file: str, retired: Iterable[tuple[TopicPartition, set[str]]]
    ) -> list[str]:
        """Record that a checkpoint file no longer names these partitions; return stale markers."""
        markers = []
        for partition, files in retired:
            files.discard(file)
            if not files and self.retired.get(partition) is files:
                del self.retired[partition]
                log = self.find(partition)
                if log is not None:
                    markers.append(f"{log.segments.directory}/{names.NAMED_AGAIN}")
        return markers

    def remove_markers(self, markers: Iterable[str]) -> None:
        """Remove marker files; not in a thread, because a new log might take the name meanwhile."""
        for marker in markers:
            self.disk.remove(marker)

    def write_checkpoints(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Replace checkpoint files and sync them, in a thread."""
        for name, text in texts:
            self.disk.replace(name, text, sync=True)

    def finish(self, broker_epoch: int) -> None:
        """Write the checkpoints and the clean-shutdown marker; all logs must be synced."""
        checkpoint_names = [names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS]
        if names.CLEANER_OFFSETS in self.stale_files:
            checkpoint_names.append(names.CLEANER_OFFSETS)
        files = [(name, self.checkpoint(name)) for name in checkpoint_names]
        if all(unopened.offsets.clean for unopened in self.unopened.values()):
            marker = checkpoints.clean_shutdown_text(broker_epoch)
            files.append((names.CLEAN_SHUTDOWN, marker))
        self.write_checkpoints(files[: len(checkpoint_names)])
        for name in checkpoint_names:
            markers = self.forget_retired(name, list(self.retired.items()))
            self.remove_markers(markers)
            sync_removed_markers(self.disk, markers)
        self.write_checkpoints(files[len(checkpoint_names) :])

    def unlock(self) -> None:
        if self._lock is not None:
            self.disk.drop_reserve()
            self._lock.release()
            self._lock = None

    def _partition(self, name: str) -> TopicPartition | None:
        """Return the partition whose log has to be opened from this directory, if any."""
        if name.endswith(names.DELETE_DIRECTORY):
            self.deleted_directories.append(name)
            return None
        parsed = names.parse_directory(name)
        if parsed is None:
            logger.info("skipped directory that is not a partition path=%s/%s", self.name, name)
            return None
        return None if parsed[0] == METADATA_TOPIC else TopicPartition(*parsed)

    def _take_marker(self) -> bool:
        """Remove the clean-shutdown marker; return whether it existed and no sync has failed.

        From then on the directory does not count as clean until the next clean shutdown.
        """
        try:
            marker = self.disk.read(names.CLEAN_SHUTDOWN)
        except FileNotFoundError:
            return False
        self.disk.remove(names.CLEAN_SHUTDOWN)
        self.disk.sync_directory()
        if self.has_failed_sync():
            return False
        self.previous_epoch = checkpoints.parse_clean_shutdown(marker)
        return True


def _retrying(
    disk: Disk, name: str, load: Callable[[bool], Generator[None, None, None]]
) -> Generator[float | None, None, None]:
    """Load a partition, again if too many files are open: nothing would open it after the start."""
    for _ in range(OPENING_RETRIES):
        try:
            yield from load(False)
        except OSError as error:
            if not lacks_descriptors(error):
                raise
            text = "start waits for file descriptors directory=%s/%s error=%s"
            logger.warning(text, disk, name, error)
            disk.shed()
            yield RETRY_SECONDS
        else:
            return
    yield from load(True)


def _comparing_checkpoints(directory: LogDirectory, stored: dict[str, Offsets]) -> Iterator[None]:
    """Compare the checkpoint files with the opened logs, in steps."""
    for file, named in stored.items():
        for count, partition in enumerate(named, 1):
            if directory.find(partition) is None and partition not in directory.unopened:
                # The broker crashed after removing it and before rewriting this file.
                directory.retired.setdefault(partition, set()).add(file)
            if not count % SLICE_NAMES:
                yield
    clean_ends, is_stale = stored[names.CLEANER_OFFSETS], False
    for count, log in enumerate(directory.all_logs, 1):
        is_stale |= clean_ends.get(log.partition) != log.clean_state.clean_end
        if not count % SLICE_NAMES:
            yield
    if is_stale:  # The old offset would become valid again once the log has grown past it.
        yield from _replacing_clean_ends(directory)


def _replacing_clean_ends(directory: LogDirectory) -> Iterator[None]:
    """Rewrite the cleaner's checkpoint in steps; without room, remove it.

    In that case passes begin at the log starts until a later checkpoint writes the file again.
    """
    lines = list[str]()
    for count, line in enumerate(directory.lines(names.CLEANER_OFFSETS), 1):
        if line:
            lines.append(line)
        if not count % SLICE_NAMES:
            yield
    try:
        directory.write_checkpoints([(names.CLEANER_OFFSETS, checkpoints.offsets_text(lines))])
    except OSError as error:
        if classify(error) is not DiskErrorKind.NO_ROOM:
            raise
        directory.disk.remove(names.CLEANER_OFFSETS)
        directory.disk.sync_directory()


def _listing(disk: Disk, directory: str) -> Generator[None, None, dict[str, Entry]]:
    """List the files of a partition's directory in steps."""
    files: dict[str, Entry] = {}
    for count, entry in enumerate(disk.listing(directory), 1):
        files[entry.name] = entry
        if not count % SLICE_NAMES:
            yield
    return files


def _discard_doubled_futures(
    disk: Disk, futures: list[str], discarded: list[str]
) -> set[TopicPartition]:
    """Mark all but one future replica of each partition as deleted.

    The last run may have died between a request that ended a move and the renaming of the future
    replica. The directories are removed from ``futures``, and their new names are added to
    ``discarded``. Return the partitions.
    """
    partitions, doubled = set[TopicPartition](), set[TopicPartition]()
    for name in list(futures):
        future = names.parse_future(name)
        assert future is not None
        partition = TopicPartition(*future)
        if partition in partitions:
            marked = name.removesuffix(names.FUTURE_DIRECTORY) + names.DELETE_DIRECTORY
            with ignore_no_room():
                disk.rename(name, marked)
                discarded.append(marked)
            futures.remove(name)
            doubled.add(partition)
        partitions.add(partition)
    return doubled


def sync_removed_markers(disk: Disk, markers: Iterable[str]) -> None:
    """Make the removal of marker files durable, in a thread."""
    for marker in markers:
        with suppress(FileNotFoundError):
            disk.sync_directory(marker.rpartition("/")[0])


def set_aside(log: PartitionLog, marked: str) -> None:
    """Rename the directory of a log that its log directory no longer holds, and close its files.

    The indexes of its last segment are written if there is enough space and a descriptor, because
    Kafka warns about a segment without indexes. Raises OSError.
    """
    log.disk.rename(log.segments.directory, marked)
    log.segments.move(marked)
    try:
        for segment in log.segments:
            segment.write_indexes()
    except OSError as error:
        if classify(error) is DiskErrorKind.BROKEN:
            raise
    finally:
        log.segments.release()


def files_naming(log: PartitionLog) -> set[str]:
    """Return the checkpoint files that may name a log."""
    return _files_naming(log.clean_state.clean_end)


def _reading_offsets(disk: Disk, directory: str, name: str) -> Generator[None, None, Offsets]:
    """Return the offsets in the checkpoint file ``name``; none if the file is damaged."""
    offsets, problem = yield from checkpoints.reading_offsets(disk, name)
    if problem is not None:
        logger.warning("checkpoint ignored directory=%s problem=%s", directory, problem)
    return offsets


def _topic_id(disk: Disk, directory: str) -> bytes | None:
    """Return the topic id of a partition's directory; None if it has none."""
    try:
        data = disk.read(f"{directory}/{names.PARTITION_METADATA}")
        return checkpoints.parse_partition_metadata(data)
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("topic id lost directory=%s problem=%s", directory, error)
        return LOST_ID


def _are_foreign(files: Collection[str]) -> bool:
    """Return whether a directory without a topic id contains these files but no segment."""
    return bool(files) and not any(map(_of_a_segment, files))


def _of_a_segment(file: str) -> bool:
    return file.endswith(names.LOG) and names.stem_offset(file) is not None


def _log_start(log: PartitionLog) -> int | None:
    """Return the log start, or None if the name of the first segment already gives it.

    The log start is below the first segment if remote storage has the records between the two. It
    is also returned from the start of a cut, or of a removal of old segments, until the change is
    synced: a power loss can bring the removed files back, or lose the new segment's name. It is
    never above the offset of a pending cut: recovery would remove records that are appended there.
    """
    cut_offset = log.flush_state.cut_offset
    log_start = log.log_start if cut_offset is None else min(log.log_start, cut_offset)
    is_unnamed = log_start != log.segments[0].base_offset
    is_name_unsynced = log.flush_state.removal_unsynced or log.flush_state.cut_unsynced
    return log_start if is_unnamed or is_name_unsynced else None


def _files_naming(clean_end: int | None) -> set[str]:
    """Return the checkpoint files that may name a partition with this cleaner checkpoint."""
    return {name for name in _OFFSETS if name != names.CLEANER_OFFSETS or clean_end is not None}


def _stored_clean_end(log: PartitionLog) -> int | None:
    """Return a log's first dirty offset; during a cut, records appended after it count as dirty."""
    clean_end, cut_offset = log.clean_state.clean_end, log.flush_state.cut_offset
    if clean_end is None or cut_offset is None:
        return clean_end
    return min(clean_end, log.segments[log.segments.index_of(cut_offset)].base_offset)


_OFFSETS: Final[dict[str, Callable[[PartitionLog], int | None]]] = {
    names.RECOVERY_POINTS: lambda log: log.flush_state.stored_recovery_point(log.end_offset),
    names.HIGH_WATERMARKS: lambda log: log.high_watermark,
    names.LOG_STARTS: _log_start,
    names.CLEANER_OFFSETS: _stored_clean_end,
}
_STORED: Final[dict[str, Callable[[recovery.StoredOffsets], int]]] = {
    names.RECOVERY_POINTS: lambda offsets: offsets.recovery_point,
    names.HIGH_WATERMARKS: lambda offsets: offsets.high_watermark,
    names.LOG_STARTS: lambda offsets: offsets.log_start,
    names.CLEANER_OFFSETS: lambda offsets: offsets.clean_end or 0,
}
