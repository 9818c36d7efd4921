"""A disk in memory that can fail, in place of :class:`kwire.log.disk.RealDisk`.

It records what a real disk hides: which bytes and which names were synced (see
:mod:`simulation.inodes`). ``after_kill`` models the death of the process: the page cache survives,
and a full disk stays full. ``power_loss`` models the death of the machine. Failures, torn writes
and bit rot happen only when the test requests them.
"""

import errno
import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import starmap
from random import Random
from typing import Final, TypeVar

import attrs

from kwire.log.descriptors import Descriptors
from kwire.log.directory_lock import AlreadyLocked
from kwire.log.disk import TEMPORARY, Entry, File, Lock, Space
from kwire.log.disk_health import (
    FAILED_SYNC,
    RESERVE,
    RESERVE_BYTES,
    DiskErrorKind,
    DiskHealth,
    classify,
)
from kwire.records.header import Buffer
from simulation.inodes import PAGE, Directory, Inode, Node

__all__ = ["PAGE", "Killed", "SimDisk", "SimFile"]

T = TypeVar("T")
PLENTY: Final = 1 << 40
"""The capacity of a disk that is never full."""


class Killed(BaseException):
    """Raised when the process dies in the middle of a call."""


@attrs.define(eq=False)
class SimFile:
    """A file of a :class:`SimDisk`, opened by its first use."""

    disk: "SimDisk"
    path: str
    pins: int = 0
    open_inode: Inode | None = None
    """The inode of the open descriptor, even after the name was removed or replaced."""
    is_unsynced: bool = False
    _is_closing: bool = False

    def size(self) -> int:
        return len(self._inode().data)

    def read(self, position: int, size: int) -> bytes:
        inode = self._inode()
        self.disk.call("read", self.path)
        return bytes(inode.data[position : position + size])

    def write(self, parts: Sequence[Buffer], position: int) -> None:
        data = b"".join(parts)
        self.is_unsynced = True
        inode = self._inode()
        self.disk.write_bytes(self.path, inode, position, data)

    def truncate(self, size: int) -> None:
        self.is_unsynced = True
        inode = self._inode()
        self.disk.call("truncate", self.path)
        inode.truncate(size)

    def allocate(self, position: int, size: int) -> None:
        inode = self._inode()
        try:
            self.disk.call("allocate", self.path)
        except OSError as error:
            if classify(error) is DiskErrorKind.BROKEN:
                raise
        else:
            if position + size - inode.room <= self.disk.free():
                inode.allocated = max(inode.allocated, position + size)

    def sync(self) -> None:
        inode = self._inode()
        self.is_unsynced = False
        self.disk.sync_inode(self.path, inode)
        if not self.pins:
            self.disk.descriptors.on_used(self)

    def is_cached(self, position: int, size: int) -> bool:
        return self.disk.cached

    def read_cached(self, position: int, size: int) -> Buffer | None:
        return self.read(position, size) if self.disk.cached else None

    def read_stored(self, position: int, size: int) -> bytes:
        return self.read(position, size)

    def pin(self) -> None:
        self._inode()
        self.pins += 1
        self.disk.descriptors.forget(self)

    def unpin(self) -> None:
        self.pins -= 1
        if not self.pins:
            if self._is_closing:
                self.close()
            elif self.open_inode is not None:
                self.disk.descriptors.on_used(self)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._is_closing = bool(self.pins)
        if not self.pins:
            self.open_inode = None
            self.disk.descriptors.forget(self)
            self.disk.opened.discard(self)

    def _inode(self) -> Inode:
        if self.open_inode is None:
            self._is_closing = False
            self.disk.need_descriptor(self.path)
            self.open_inode = self.disk.inode(self.path)
            self.disk.opened.add(self)
        if not self.pins:
            self.disk.descriptors.on_used(self)
        return self.open_inode


@attrs.define(eq=False)
class SimLock:
    disk: "SimDisk"
    path: str

    def release(self) -> None:
        self.disk.locked.discard(self.path)
        self.disk.unlink(self.path)


@attrs.define(eq=False)
class Failure:
    """An error to raise at calls of one kind."""

    kind: str
    """A pattern: ``write``, ``sync*``, ``*``."""
    error: BaseException
    path: str
    after: int
    times: int
    random: Random | None = None
    rate: float = 1.0

    def meets(self, kind: str, path: str) -> bool:
        """Return whether this call must fail, and count it if it matches."""
        if self.times <= 0 or self.path not in path or not fnmatchcase(kind, self.kind):
            return False
        if self.random is not None and self.random.random() >= self.rate:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


def _entry(name: str, node: Node) -> Entry:
    if isinstance(node, Directory):
        return Entry(name, 0, True, 0)
    return Entry(name, len(node.data), False, node.modified_ms)


_SYNCS: Final = frozenset(("sync", "sync_directory"))
_ALLOWED_OFFLINE: Final = frozenset(("open", "read", "entries"))
_CHANGES: Final = frozenset(("rename", "remove", "replace", "sync_directory", "sync"))


@attrs.define(eq=False)
class SimDisk(DiskHealth):
    """One log directory in memory."""

    slow: bool = False
    cached: bool = True
    root: Directory = attrs.Factory(Directory)
    locked: set[str] = attrs.Factory(set)
    opened: set[SimFile] = attrs.Factory(set)
    now_ms: int = 0
    calls: list[tuple[str, str]] = attrs.Factory(list)
    capacity: int = PLENTY
    """The number of bytes that fit, including those of removed files that are still open."""
    cut: int | None = None
    """The number of further written bytes after which the process dies."""
    changes_left: int | None = None
    """The number of further renames, removals, replacements and syncs before the process dies."""
    descriptors: Descriptors = attrs.Factory(Descriptors)
    _failures: list[Failure] = attrs.Factory(list)

    @property
    def files(self) -> dict[str, Inode]:
        """Every file by its path, as in the page cache."""
        return dict(self.root.walk())

    def __str__(self) -> str:
        return "the simulated disk"

    # -- faults that a test requests

    def fail_at(
        self, call: str, error: BaseException, *, path: str = "", after: int = 0, times: int = 1
    ) -> None:
        """Raise ``error`` at this kind of call on paths that contain ``path``.

        Kinds: open, create, read, write, truncate, allocate, sync, sync_directory, rename, remove,
        mkdir, entries; or a pattern. After ``after`` matching calls, the next ``times`` calls fail.
        """
        self._failures.append(Failure(call, error, path, after, times))

    def fail_sometimes(self, call: str, error: BaseException, random: Random, rate: float) -> None:
        """Raise ``error`` with probability ``rate`` at matching calls, until :meth:`mend`."""
        self._failures.append(Failure(call, error, "", 0, sys.maxsize, random, rate))

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Return a context without requested failures, in which a test can inspect the disk."""
        failures, self._failures = self._failures, []
        try:
            yield
        finally:
            self._failures = failures

    def mend(self) -> None:
        """Remove all requested failures; a directory that has failed stays failed."""
        self._failures.clear()

    def rot(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of one byte of a file, in the page cache and on the platter."""
        self.inode(path).rot(position, mask)

    def after_kill(self) -> "SimDisk":
        """Return the disk after a ``kill -9``, which keeps everything in the page cache."""
        return SimDisk(root=self.root, now_ms=self.now_ms, capacity=self.capacity)

    def power_loss(self, random: Random) -> "SimDisk":
        """Return the disk after a power loss."""
        survivor = self.root.survivor(random, {})
        return SimDisk(root=survivor, now_ms=self.now_ms, capacity=self.capacity)

    # -- Disk

    def open(self, path: str, *, create: bool = False) -> File:
        if create and self.root.find(path) is None:
            self.need_descriptor(path)
            self.call("create", path)
            self._link(path)
        return SimFile(self, path)

    def entries(self, path: str = "") -> list[Entry]:
        return list(self.listing(path))

    def listing(self, path: str) -> Iterator[Entry]:
        self.call("entries", path)
        yield from starmap(_entry, list(self.root.directory(path).names.items()))

    def folders(self) -> Iterator[str]:
        return (entry.name for entry in self.listing("") if entry.is_directory)

    def read(self, path: str) -> bytes:
        self.need_descriptor(path)
        inode = self.inode(path)
        self.call("read", path)
        return bytes(inode.data)

    def write(self, path: str, data: Buffer) -> None:
        """Overwrite the file, then truncate it; without a sync the old content may reappear."""
        self._with_reserve(lambda: self._overwrite(path, data))

    def _overwrite(self, path: str, data: Buffer) -> None:
        self.need_descriptor(path)
        node = self.root.find(path)
        inode = node if isinstance(node, Inode) else self._link(path)
        self.write_bytes(path, inode, 0, bytes(data))
        if len(inode.data) > len(data):
            inode.truncate(len(data))

    def replace(self, path: str, data: Buffer, *, sync: bool) -> None:
        self._with_reserve(lambda: self._replace(path, data, sync))
        if sync:
            self.sync_directory(posixpath.dirname(path))

    def _replace(self, path: str, data: Buffer, sync: bool) -> None:
        try:
            self._overwrite(path + TEMPORARY, data)
            if sync:
                self.sync_inode(path, self.inode(path + TEMPORARY))
            self._rename(path + TEMPORARY, path)
        except OSError:
            self.unlink(path + TEMPORARY)
            raise

    def rename(self, source: str, target: str) -> None:
        self._with_reserve(lambda: self._rename(source, target))

    def _rename(self, source: str, target: str) -> None:
        self.call("rename", source)
        try:
            self.root.rename(source, target)
        except OSError as error:
            self.judge(error)
            raise

    def remove(self, path: str) -> None:
        self.call("remove", path)
        self.unlink(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        inode = self.inode(path)
        self.call("set_modified", path)
        inode.modified_ms = modified_ms

    def make_directory(self, path: str) -> None:
        self._with_reserve(lambda: self.call("mkdir", path))
        above = self.root
        for name in filter(None, path.split("/")):
            if name not in above.names:
                above.change({name: Directory()})
            above = above.directory(name)

    def remove_tree(self, path: str) -> None:
        self.call("remove", path)
        directory = self.root.find(path)
        if not isinstance(directory, Directory):
            return
        for name, node in list(directory.names.items()):
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.unlink(path)

    def sync(self, path: str) -> None:
        self.need_descriptor(path)
        self.sync_inode(path, self.inode(path))

    def sync_directory(self, path: str = "") -> None:
        self.need_descriptor(path)
        self.call("sync_directory", path)
        self.root.directory(path).sync()

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise AlreadyLocked(errno.EAGAIN, f"{path} is locked by another broker")
        self.locked.add(path)
        if self.root.find(path) is None:
            self._link(path)
        return SimLock(self, path)

    def space(self) -> Space:
        return Space(self.capacity, self.free())

    def free(self) -> int:
        """Return the number of bytes that still fit."""
        return PLENTY if self.capacity == PLENTY else self.capacity - self._used_bytes()

    def take_reserve(self, free: int) -> bool:
        node = self.root.find(RESERVE)
        if isinstance(node, Inode):
            return True
        if self.free() < free:
            return False
        self._link(RESERVE).allocated = RESERVE_BYTES
        return True

    def drop_reserve(self) -> None:
        self.unlink(RESERVE)

    def mark_failed_sync(self) -> None:
        if self.root.find(FAILED_SYNC) is None:
            self._link(FAILED_SYNC)

    def _with_reserve(self, call: Callable[[], T]) -> T:
        """Make a call, and retry once if there was no room, because a reserve may now be free."""
        try:
            return call()
        except OSError as error:
            if classify(error) is not DiskErrorKind.NO_ROOM or self.failed is not None:
                raise
            return call()

    # -- calls of its files

    def inode(self, path: str) -> Inode:
        node = self.root.find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def call(self, kind: str, path: str) -> None:
        """Record a call; raise an error if the test requested one."""
        self.calls.append((kind, path))
        if self.changes_left is not None and kind in _CHANGES:
            if not self.changes_left:
                raise Killed(path)
            self.changes_left -= 1
        if kind not in _ALLOWED_OFFLINE:
            self.check()
        for failure in self._failures:
            if failure.meets(kind, path):
                if isinstance(failure.error, OSError):
                    self.judge(failure.error, by_sync=kind in _SYNCS)
                raise failure.error

    def need_descriptor(self, path: str) -> None:
        """Record that a file is opened; close other files if the process has too many open."""
        while True:
            try:
                self.call("open", path)
            except OSError as error:
                if (
                    classify(error) is not DiskErrorKind.NO_DESCRIPTORS
                    or not self.descriptors.shed()
                ):
                    raise
            else:
                return

    def claim(self) -> None:
        self.descriptors.claim()

    def shed(self) -> bool:
        return self.descriptors.shed()

    def write_bytes(self, path: str, inode: Inode, position: int, data: bytes) -> None:
        if self.cut is not None and len(data) > self.cut:
            if self.cut:
                inode.write(position, data[: self.cut])
            raise Killed(path)
        if self.cut is not None:
            self.cut -= len(data)
        self.call("write", path)
        grown = max(0, position + len(data) - inode.room)
        if grown and grown > (free := self.free()):
            inode.write(position, data[: max(0, len(data) - grown + max(0, free))])
            error = OSError(errno.ENOSPC, "no space left", path)
            self.judge(error)
            raise error
        if data:
            inode.write(position, data)
        inode.modified_ms = self.now_ms

    def sync_inode(self, path: str, inode: Inode) -> None:
        """Sync a file like fsync: after an error, the kernel marks the pages as clean, so the next
        sync succeeds without writing them."""
        is_refused = self.failed is not None  # A failed disk does not call the kernel.
        try:
            self.call("sync", path)
        except OSError:
            if not is_refused:
                inode.fail_sync()
            raise
        inode.sync()

    def unlink(self, path: str) -> None:
        """Remove a name; do nothing if it is missing."""
        above, name = self.root.parent(path)
        if name in above.names:
            above.change({name: None})

    def _link(self, path: str) -> Inode:
        above, name = self.root.parent(path)
        inode = Inode(modified_ms=self.now_ms)
        above.change({name: inode})
        return inode

    def _used_bytes(self) -> int:
        open_inodes = {file.open_inode for file in self.opened if file.open_inode is not None}
        return sum(inode.room for inode in open_inodes.union(self.files.values()))
