"""A disk in memory that can die: the twin of :class:`kwire.log.disk.RealDisk`.

What it knows that a real disk hides: which bytes were synced, which names were. ``kill`` is the
death of the process (the page cache stays), ``power_loss`` that of the machine: of every write
since the file's last sync each page may have reached the platter or not, and of the changes of
names a prefix has. Failures and torn writes are asked for by the test, never random by themselves.
"""

import errno
import posixpath
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import attrs

from kwire.log.disk import TEMPORARY, AlreadyLocked, Entry, File, Lock, Space
from kwire.records.header import Buffer

PAGE: Final = 512
"""Torn writes are torn at multiples of this."""


class Killed(BaseException):
    """The process died in the middle of a call."""


@attrs.define(eq=False)
class Inode:
    """One file's content: as the page cache has it, and as it was at the last sync."""

    data: bytearray = attrs.Factory(bytearray)
    durable: bytes = b""
    dirty: set[int] = attrs.Factory(set)
    modified_ms: int = 0

    def write(self, position: int, data: Buffer) -> None:
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self.dirty.update(range(position // PAGE, (position + len(data) - 1) // PAGE + 1))

    def truncate(self, size: int) -> None:
        self.dirty.update(range(min(size, len(self.data)) // PAGE, len(self.data) // PAGE + 1))
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.dirty.clear()

    def lose(self, random: Random) -> None:
        """Keep of the unsynced pages what ``random`` says."""
        size = random.choice([len(self.durable), len(self.data)])
        survivor = bytearray(self.durable[:size])
        survivor.extend(bytes(size - len(survivor)))
        for page in sorted(self.dirty):
            start, end = page * PAGE, min((page + 1) * PAGE, size, len(self.data))
            if start < end and random.random() < 0.5:
                survivor[start:end] = self.data[start:end]
        self.data = survivor
        self.sync()


@attrs.define(eq=False)
class SimFile:
    """A file of a :class:`SimDisk`."""

    disk: "SimDisk"
    path: str
    pins: int = 0
    held: Inode | None = None

    def size(self) -> int:
        return len(self._inode().data)

    def read(self, position: int, size: int) -> bytes:
        self.disk.call("read", self.path)
        return bytes(self._inode().data[position : position + size])

    def write(self, parts: Sequence[Buffer], position: int) -> None:
        data = b"".join(parts)
        inode = self._inode()
        self.disk.write_bytes(self.path, inode, position, data)

    def truncate(self, size: int) -> None:
        self.disk.call("truncate", self.path)
        self._inode().truncate(size)

    def allocate(self, position: int, size: int) -> None:
        self.disk.call("allocate", self.path)

    def sync(self) -> None:
        self.disk.call("sync", self.path)
        self._inode().sync()

    def cached(self, position: int, size: int) -> bool:
        return self.disk.cached

    def pin(self) -> None:
        self.held = self._inode()
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if not self.pins:
            self.held = None

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        if not self.pins:
            self.held = None

    def _inode(self) -> Inode:
        return self.held if self.held is not None else self.disk.inode(self.path)


@attrs.define(eq=False)
class SimLock:
    disk: "SimDisk"
    path: str

    def release(self) -> None:
        self.disk.locked.discard(self.path)
        self.disk.files.pop(self.path, None)


@attrs.define(eq=False)
class Failure:
    """What to raise at a call, once it has been let through ``after`` times."""

    error: BaseException
    path: str
    after: int
    times: int


_CHANGES = frozenset(("rename", "remove", "replace", "sync_directory", "sync"))


@attrs.define(eq=False)
class SimDisk:
    """One log directory in memory."""

    slow: bool = False
    failed: OSError | None = None
    cached: bool = True
    files: dict[str, Inode] = attrs.Factory(dict)
    directories: set[str] = attrs.Factory(lambda: {""})
    locked: set[str] = attrs.Factory(set)
    now_ms: int = 0
    calls: list[tuple[str, str]] = attrs.Factory(list)
    capacity: int = 1 << 40
    cut: int | None = None
    """After so many more written bytes the process dies."""
    changes_left: int | None = None
    """After so many more renames, removals, replacements and syncs the process dies."""
    _failures: dict[str, Failure] = attrs.Factory(dict)
    _names: list[Callable[["SimDisk"], None]] = attrs.Factory(list)
    _durable_files: dict[str, Inode] = attrs.Factory(dict)
    _durable_directories: set[str] = attrs.Factory(lambda: {""})

    # -- what a test asks for

    def fail_at(
        self, call: str, error: BaseException, *, path: str = "", after: int = 0, times: int = 1
    ) -> None:
        """Raise ``error`` at this kind of call on paths that contain ``path``."""
        self._failures[call] = Failure(error, path, after, times)

    def killed(self) -> "SimDisk":
        """What the next process finds after ``kill -9``: everything the page cache had."""
        survivor = SimDisk(files=self.files, directories=self.directories, now_ms=self.now_ms)
        survivor._durable_files = dict(self._durable_files)
        survivor._durable_directories = set(self._durable_directories)
        survivor._names = self._names
        return survivor

    def power_loss(self, random: Random) -> "SimDisk":
        """What the next process finds after the machine died."""
        survivor = SimDisk(now_ms=self.now_ms)
        survivor.files = dict(self._durable_files)
        survivor.directories = set(self._durable_directories)
        for change in self._names[: random.randint(0, len(self._names))]:
            change(survivor)
        for inode in survivor.files.values():
            inode.lose(random)
        survivor.sync_directory()
        return survivor

    # -- Disk

    def open(self, path: str, *, create: bool = False) -> File:
        if create and path not in self.files:
            self.call("create", path)
            self._link(path, Inode(modified_ms=self.now_ms))
        return SimFile(self, path)

    def entries(self, path: str = "") -> list[Entry]:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        inside = [
            Entry(posixpath.basename(name), len(inode.data), False, inode.modified_ms)
            for name, inode in self.files.items()
            if posixpath.dirname(name) == path
        ]
        return inside + [
            Entry(posixpath.basename(name), 0, True, 0)
            for name in sorted(self.directories)
            if name and posixpath.dirname(name) == path
        ]

    def read(self, path: str) -> bytes:
        self.call("read", path)
        return bytes(self.inode(path).data)

    def write(self, path: str, data: Buffer) -> None:
        inode = Inode(modified_ms=self.now_ms)
        self._link(path, inode)
        self.write_bytes(path, inode, 0, bytes(data))

    def replace(self, path: str, data: Buffer, *, sync: bool) -> None:
        self.write(path + TEMPORARY, data)
        if sync:
            self.call("sync", path)
            self.files[path + TEMPORARY].sync()
        self.rename(path + TEMPORARY, path)
        if sync:
            self.sync_directory(posixpath.dirname(path))

    def rename(self, source: str, target: str) -> None:
        self.call("rename", source)
        if source not in self.files and source not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._change(lambda disk: disk.move(source, target))

    def remove(self, path: str) -> None:
        self.call("remove", path)
        self._change(lambda disk: disk.drop(path))

    def make_directory(self, path: str) -> None:
        self.call("mkdir", path)
        self._change(lambda disk: disk.directories.add(path))

    def remove_tree(self, path: str) -> None:
        self.call("remove", path)
        for name in [name for name in self.files if name.startswith(path + "/")]:
            self.remove(name)
        self._change(lambda disk: disk.directories.discard(path))

    def sync(self, path: str) -> None:
        self.call("sync", path)
        self.inode(path).sync()

    def sync_directory(self, path: str = "") -> None:
        self.call("sync_directory", path)
        self._durable_files = dict(self.files)
        self._durable_directories = set(self.directories)
        self._names = []

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise AlreadyLocked(errno.EAGAIN, f"{path} is locked by another broker")
        self.locked.add(path)
        if path not in self.files:
            self._link(path, Inode())
        return SimLock(self, path)

    def space(self) -> Space:
        return Space(self.capacity, self.capacity - self._used())

    # -- what its files use

    def inode(self, path: str) -> Inode:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.files[path]

    def call(self, kind: str, path: str) -> None:
        """Note a call, and fail it if the test asked for that."""
        self.calls.append((kind, path))
        if self.changes_left is not None and kind in _CHANGES:
            if not self.changes_left:
                raise Killed(path)
            self.changes_left -= 1
        if self.failed is not None and kind != "read":
            raise OSError(self.failed.errno, f"offline: {self.failed}")
        failure = self._failures.get(kind)
        if failure is None or failure.path not in path:
            return
        if failure.after:
            failure.after -= 1
            return
        failure.times -= 1
        if not failure.times:
            del self._failures[kind]
        if isinstance(failure.error, OSError):
            self.failed = failure.error
        raise failure.error

    def write_bytes(self, path: str, inode: Inode, position: int, data: bytes) -> None:
        if self.cut is not None and len(data) > self.cut:
            if self.cut:
                inode.write(position, data[: self.cut])
            raise Killed(path)
        if self.cut is not None:
            self.cut -= len(data)
        self.call("write", path)
        grown = max(0, position + len(data) - len(inode.data))
        free = self.capacity - self._used() if grown else 0
        if grown > free:
            inode.write(position, data[: len(data) - grown + free])
            self.failed = OSError(errno.ENOSPC, "no space left", path)
            raise self.failed
        if data:
            inode.write(position, data)
        inode.modified_ms = self.now_ms

    def move(self, source: str, target: str) -> None:
        """Rename a file, or a directory with all in it."""
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        self.directories.discard(source)
        self.directories.add(target)
        for name in [name for name in self.files if name.startswith(source + "/")]:
            self.files[target + name[len(source) :]] = self.files.pop(name)

    def drop(self, path: str) -> None:
        self.files.pop(path, None)

    def _link(self, path: str, inode: Inode) -> None:
        if posixpath.dirname(path) not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._change(lambda disk: disk.files.__setitem__(path, inode))

    def _change(self, change: Callable[["SimDisk"], None]) -> None:
        change(self)
        self._names.append(change)

    def _used(self) -> int:
        return sum(len(inode.data) for inode in self.files.values())
