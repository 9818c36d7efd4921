"""The file protocols that the log uses, and the real disk.

Rules of this file: only this file and :mod:`kwire.log.directory_lock` call the operating system.
Paths are relative to the disk's root and use ``/``; one :class:`RealDisk` is one log directory, so
its ``slow`` and ``failed`` apply to all partitions in it.

A file is opened when it is used and may be closed between two uses (see
:mod:`kwire.log.descriptors`), unless it is pinned. Another thread may call its methods only while
the file is pinned. :mod:`kwire.log.disk_health` decides what an error means for the directory.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from kwire.log.descriptors import Descriptors, files_limit, raise_descriptor_limit
from kwire.log.directory_lock import DirectoryLock
from kwire.log.disk_health import (
    FAILED_SYNC,
    RESERVE,
    RESERVE_BYTES,
    DiskErrorKind,
    DiskHealth,
    classify,
)
from kwire.log.write_speed import SLOW_WRITE_SECONDS, Pace
from kwire.records.header import Buffer

PARTS_MAX: Final = 1000
"""The largest number of buffers in one gathered write; the kernel's limit is 1024."""
TEMPORARY: Final = ".tmp"
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""Linux: makes a read fail with EAGAIN instead of waiting for the disk."""
_DONTNEED: Final[int | None] = getattr(os, "POSIX_FADV_DONTNEED", None)
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)
T = TypeVar("T")
_Item: TypeAlias = "os.DirEntry[str]"


class Entry(NamedTuple):
    """One file in a directory listing."""

    name: str
    size: int
    is_directory: bool
    modified_ms: int


class Space(NamedTuple):
    """The size and free space, in bytes, of the volume that holds a log directory."""

    total: int
    usable: int


class File(Protocol):
    """One file, read and written at positions; nothing is buffered above the page cache."""

    path: str

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""

    def write(self, parts: Sequence[Buffer], position: int) -> None:
        """Write all of ``parts``, back to back; after an error some of it may have been written."""

    def truncate(self, size: int) -> None:
        """Cut the file, or fill it with zeros, to ``size``; free blocks allocated beyond it."""

    def allocate(self, position: int, size: int) -> None:
        """Reserve blocks without moving the end of the file; does nothing where unsupported."""

    def sync(self) -> None: ...

    def is_cached(self, position: int, size: int) -> bool:
        """Return whether the first and last page of this range can be read without waiting."""

    def read_cached(self, position: int, size: int) -> Buffer | None:
        """Read like :meth:`read`; return None if that would, or might, wait for the disk."""

    def read_stored(self, position: int, size: int) -> bytes:
        """Read like :meth:`read`, but from the disk itself; leave the page cache unchanged.

        If the system cannot drop synced pages from the cache, this is the same as :meth:`read`.
        """

    def pin(self) -> None:
        """Keep the descriptor open until :meth:`unpin`, even through ``close`` and removal."""

    def unpin(self) -> None: ...

    def fileno(self) -> int:
        """Return the descriptor of a pinned file; -1 if it has none."""

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive claim on a directory."""

    def release(self) -> None: ...


class Disk(Protocol):
    """One log directory."""

    slow: bool
    """True while writes go through a thread; see :mod:`kwire.log.write_speed`."""
    failed: OSError | None
    full: bool
    """True while records are rejected; see :class:`kwire.log.disk_health.DiskHealth`."""

    def judge(self, error: OSError, *, by_sync: bool = False) -> None:
        """Decide what an error means for the directory (see :mod:`kwire.log.disk_health`)."""

    def fail(self, error: OSError) -> None:
        """Mark the directory as failed, whatever the kind of error."""

    def keep_room(self) -> None: ...

    def has_room(self) -> bool: ...

    def drop_reserve(self) -> None: ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Return a handle; the file is opened on first use, or created now with ``create``."""

    def entries(self, path: str = "") -> list[Entry]: ...

    def listing(self, path: str) -> Iterator[Entry]:
        """Yield the entries of a directory, each looked up when it is requested."""

    def folders(self) -> Iterator[str]:
        """Yield the names of the directories in the root."""

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: Buffer) -> None:
        """Write a whole small file in place, for files whose content may be lost in a crash."""

    def replace(self, path: str, data: Buffer, *, sync: bool) -> None:
        """Replace a file atomically; with ``sync``, the old or new content survives a crash."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set a file's modification time; the next write to the file changes it again."""

    def make_directory(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync(self, path: str) -> None:
        """Sync a file by its name, without its handle; for other threads."""

    def sync_directory(self, path: str = "") -> None: ...

    def lock(self, path: str) -> Lock:
        """Lock a directory; raises :class:`.AlreadyLocked` if another broker holds the lock."""

    def space(self) -> Space: ...

    def claim(self) -> None:
        """Declare the calling thread to be the event loop's thread."""

    def shed(self) -> bool:
        """Close files that are not in use, after a call in a thread ran out of descriptors.

        Return whether any was closed. Call this only on the event loop.
        """


class Disks(Protocol):
    """The disks that a node may open, by the absolute path of the log directory."""

    def open(self, path: str) -> Disk:
        """Return the disk of a log directory, which may not exist yet."""

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links, the same for two names of one directory."""


def pin_all(files: Iterable[File]) -> None:
    """Pin all of these files or, if one of them cannot be opened, none."""
    pinned: list[File] = []
    try:
        for file in files:
            file.pin()
            pinned.append(file)
    except OSError:
        for file in pinned:
            file.unpin()
        raise


class RealFile:
    """A file of a :class:`RealDisk`."""

    __slots__ = ("_closing", "_disk", "_fd", "_pins", "is_unsynced", "path")

    def __init__(self, disk: "RealDisk", path: str) -> None:
        self._disk = disk
        self.path = path
        self._fd = -1
        self._pins = 0
        self._closing = False
        self.is_unsynced = False

    def size(self) -> int:
        return os.fstat(self._open()).st_size

    def read(self, position: int, size: int) -> bytes:
        fd = self._open()
        try:
            data = os.pread(fd, size, position)
            while len(data) < size:
                more = os.pread(fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            self._disk.judge(error)
            raise
        return data

    def write(self, parts: Sequence[Buffer], position: int) -> None:
        disk = self._disk
        self.is_unsynced = True
        unsynced = disk.descriptors.unsynced
        if self in unsynced:  # The file is open.
            unsynced.move_to_end(self)
            fd = self._fd
        else:
            fd = self._open()
        if disk.failed is not None:
            disk.check()
        started = time.perf_counter()
        try:
            size = sum(map(len, parts))
            if len(parts) > PARTS_MAX or os.pwritev(fd, parts, position) != size:
                self._write_rest(fd, parts, position)
        except OSError as error:
            disk.judge(error)
            raise
        ended = time.perf_counter()
        if disk.slow or ended - started > SLOW_WRITE_SECONDS:
            disk.slow = disk.pace.is_slow_after(ended - started, ended)

    @staticmethod
    def _write_rest(fd: int, parts: Sequence[Buffer], position: int) -> None:
        """Write all of ``parts`` from the start, after a first call wrote only some of them."""
        for first in range(0, len(parts), PARTS_MAX):
            rest = memoryview(b"".join(parts[first : first + PARTS_MAX]))
            while rest:
                written = os.pwrite(fd, rest, position)
                rest = rest[written:]
                position += written

    def truncate(self, size: int) -> None:
        self.is_unsynced = True
        with self._disk.failing():
            os.ftruncate(self._open(), size)

    def allocate(self, position: int, size: int) -> None:
        self._disk.allocate(self._open(), position, size)

    def sync(self) -> None:
        fd = self._open()
        self.is_unsynced = False  # Before the fsync, because a concurrent write sets it again.
        with self._disk.failing(by_sync=True):
            os.fsync(fd)
        if not self._pins:
            self._disk.descriptors.on_used(self)

    def is_cached(self, position: int, size: int) -> bool:
        return (
            self.read_cached(position, 1) is not None
            and self.read_cached(position + max(0, size - 1), 1) is not None
        )

    def read_cached(self, position: int, size: int) -> Buffer | None:
        if _NOWAIT is None or not self._disk.can_probe:
            return None
        fd = self._open()
        data = bytearray(size)
        try:
            count = os.preadv(fd, (data,), position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                self._disk.judge(error)
                raise
            self._disk.can_probe = False
            return None
        if count < size:
            if position + count < self.size():
                return None  # The next page is not cached.
            del data[count:]
        return data

    def read_stored(self, position: int, size: int) -> bytes:
        was_cached = self.is_cached(position, size)
        self._drop_cached(position, size)
        data = self.read(position, size)
        if not was_cached:
            self._drop_cached(position, size)
        return data

    def _drop_cached(self, position: int, size: int) -> None:
        if _DONTNEED is not None:
            with suppress(OSError):  # The call is only a hint.
                os.posix_fadvise(self._open(), position, size, _DONTNEED)

    def pin(self) -> None:
        if not self._pins:
            if self._fd < 0:
                self._open()
            self._disk.descriptors.forget(self)
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._pins == 0:
            if self._closing:
                self.close()
            elif self._fd >= 0:
                self._disk.descriptors.on_used(self)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._pins:
            self._closing = True
        elif self._fd >= 0:
            self._disk.descriptors.forget(self)
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _open(self) -> int:
        if self._fd < 0:
            self._closing = False
            self._fd = self._disk.descriptor(self.path, os.O_RDWR)
        if not self._pins:
            self._disk.descriptors.on_used(self)
        return self._fd


def _entry(item: _Item) -> Entry | None:
    """Return the entry, or None if it has been removed meanwhile."""
    try:
        stat = item.stat()
    except FileNotFoundError:
        return None
    return Entry(item.name, stat.st_size, item.is_dir(), stat.st_mtime_ns // 1_000_000)


def _folder(item: _Item) -> str | None:
    """Return the name of a directory, with no system call except for a symbolic link."""
    return item.name if item.is_dir() else None


class RealDisk(DiskHealth):
    """A directory of the file system."""

    def __init__(self, root: str, *, descriptors: Descriptors | None = None) -> None:
        self.root = root
        self.slow = False
        self.pace = Pace()
        self.can_probe = True
        self.can_allocate = True
        self._identity: os.stat_result | None = None
        """The directory itself, once it is in use: another one may get its name later."""
        self.descriptors = Descriptors() if descriptors is None else descriptors

    def __str__(self) -> str:
        return self.root

    def open(self, path: str, *, create: bool = False) -> File:
        file = RealFile(self, path)
        if create:
            with self.failing():
                flags = os.O_RDWR | os.O_CREAT
                os.close(self._with_reserve(lambda: self.descriptor(path, flags)))
        return file

    def entries(self, path: str = "") -> list[Entry]:
        return list(self.listing(path))

    def listing(self, path: str) -> Iterator[Entry]:
        return self._scan(path, _entry)

    def folders(self) -> Iterator[str]:
        return self._scan("", _folder)

    def _scan(self, path: str, look_at: Callable[[_Item], T | None]) -> Iterator[T]:
        """Yield what ``look_at`` returns for each entry, except None."""
        try:
            with os.scandir(self._full(path)) as items:
                yield from (entry for item in items if (entry := look_at(item)) is not None)
        except OSError as error:
            self.judge(error)
            raise

    def read(self, path: str) -> bytes:
        fd = self.descriptor(path, os.O_RDONLY)
        try:
            data = os.read(fd, 1 << 16)
            while more := os.read(fd, 1 << 20) if data else b"":
                data += more
            return data
        except OSError as error:
            self.judge(error)
            raise
        finally:
            os.close(fd)

    def write(self, path: str, data: Buffer) -> None:
        """Overwrite the file, then truncate it: ext4 flushes a file that is emptied first."""
        with self.failing():
            self._with_reserve(lambda: self._overwrite(path, data))

    def _overwrite(self, path: str, data: Buffer) -> None:
        fd = self.descriptor(path, os.O_WRONLY | os.O_CREAT)
        try:
            self.write_all(fd, data)
            if os.fstat(fd).st_size > len(data):
                os.ftruncate(fd, len(data))
        finally:
            os.close(fd)

    def replace(self, path: str, data: Buffer, *, sync: bool) -> None:
        with self.failing():
            self._check_present()
            self._with_reserve(lambda: self._replace(path, data, sync))
        if sync:
            self.sync_directory(path.rpartition("/")[0])

    def _replace(self, path: str, data: Buffer, sync: bool) -> None:
        temporary = path + TEMPORARY
        fd = self.descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                self.write_all(fd, data)
                if sync:
                    with self.failing(by_sync=True):
                        os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(self._full(temporary), self._full(path))
        except OSError:
            with suppress(OSError):  # The temporary file would occupy scarce space.
                os.unlink(self._full(temporary))
            raise

    def rename(self, source: str, target: str) -> None:
        with self.failing():
            self._with_reserve(lambda: os.replace(self._full(source), self._full(target)))

    def remove(self, path: str) -> None:
        with self.failing(), suppress(FileNotFoundError):
            os.unlink(self._full(path))

    def set_modified(self, path: str, modified_ms: int) -> None:
        nanoseconds = modified_ms * 1_000_000
        with self.failing():
            os.utime(self._full(path), ns=(nanoseconds, nanoseconds))

    def make_directory(self, path: str) -> None:
        with self.failing():
            self._check_present()  # Otherwise the call would recreate it.
            self._with_reserve(lambda: os.makedirs(self._full(path), exist_ok=True))

    def remove_tree(self, path: str) -> None:
        with self.failing(), suppress(FileNotFoundError):
            shutil.rmtree(self._full(path))

    def sync(self, path: str) -> None:
        self._sync(self.descriptor(path, os.O_RDWR))

    def sync_directory(self, path: str = "") -> None:
        self._sync(self.descriptor(path, os.O_RDONLY))

    def _sync(self, fd: int) -> None:
        try:
            with self.failing(by_sync=True):
                os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        lock = DirectoryLock(self._full(path))
        self._identity = os.stat(self.root)
        return lock

    def space(self) -> Space:
        usage = shutil.disk_usage(self.root)
        return Space(usage.total, usage.free)

    def judge(self, error: OSError, *, by_sync: bool = False) -> None:
        super().judge(error, by_sync=by_sync)
        if error.errno in _MISSING and not self._is_present():
            self.fail(error)

    def _is_present(self) -> bool:
        """Return whether the root is still the directory that is in use.

        It may have been removed or moved away; or its volume was unmounted, which leaves the mount
        point. While the lock file is open, no new directory gets the old one's inode number.
        """
        if self._identity is None:
            return True
        try:
            return os.path.samestat(os.stat(self.root), self._identity)
        except OSError as error:
            return error.errno not in _MISSING

    def _check_present(self) -> None:
        """Raise FileNotFoundError if the root is no longer the directory that is in use."""
        if not self._is_present():
            raise FileNotFoundError(errno.ENOENT, "removed, moved or unmounted", self.root)

    def failing(self, *, by_sync: bool = False) -> "_Failing":
        """Return a context that raises if the disk has failed, and judges an OSError inside."""
        return _Failing(self, by_sync)

    def descriptor(self, path: str, flags: int) -> int:
        """Open a file, closing the least recently used files if the process has too many open."""
        full = self._full(path)
        flags |= os.O_CLOEXEC
        while True:
            try:
                return os.open(full, flags, 0o644)
            except OSError as error:
                if classify(error) is DiskErrorKind.NO_DESCRIPTORS and self.descriptors.shed():
                    continue
                self.judge(error)
                raise

    def claim(self) -> None:
        self.descriptors.claim()

    def shed(self) -> bool:
        return self.descriptors.shed()

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Reserve blocks ahead on Linux, which makes an append into them much cheaper.

        Only EIO counts as an error; any other failure is left to the write that follows.
        """
        fallocate = _fallocate() if self.can_allocate else None
        while fallocate is not None:
            number = fallocate(fd, _KEEP_SIZE, position, size)
            if number == errno.EIO:
                error = OSError(number, os.strerror(number))
                self.judge(error)
                raise error
            if number in _CANNOT_ALLOCATE:
                self.can_allocate = False
            if number != errno.EINTR:
                return

    def take_reserve(self, free: int) -> bool:
        path = self._full(RESERVE)
        try:
            if not self.full and os.path.getsize(path) == RESERVE_BYTES:
                return True  # A process that was killed has left the reserve behind.
        except OSError:
            pass
        try:
            if self.space().usable < free:
                return False
            fd = self.descriptor(RESERVE, os.O_RDWR | os.O_CREAT)
            try:
                _fill(fd, free)
                os.ftruncate(fd, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            self.drop_reserve()
            return False
        return True

    def drop_reserve(self) -> None:
        with suppress(OSError):
            os.unlink(self._full(RESERVE))

    def mark_failed_sync(self) -> None:
        with suppress(OSError):
            os.close(os.open(self._full(FAILED_SYNC), os.O_WRONLY | os.O_CREAT, 0o644))

    def _with_reserve(self, call: Callable[[], T]) -> T:
        """Make a call; if the disk has no room for it, give up the reserve and retry once."""
        try:
            return call()
        except OSError as error:
            if classify(error) is not DiskErrorKind.NO_ROOM or self.failed is not None:
                raise
            self.judge(error)
            return call()

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    @staticmethod
    def write_all(fd: int, data: Buffer) -> None:
        """Write all of ``data`` at the descriptor's position, in as many calls as needed."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]


class RealDisks:
    """The directories of this computer's file systems, which share a limit of open files."""

    def __init__(self) -> None:
        self._descriptors = Descriptors(files_limit(raise_descriptor_limit()))

    def open(self, path: str) -> RealDisk:
        return RealDisk(path, descriptors=self._descriptors)

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)


class _Failing:
    """The context of :meth:`RealDisk.failing`; a class because it is entered often."""

    __slots__ = ("_by_sync", "_disk")

    def __init__(self, disk: RealDisk, by_sync: bool) -> None:
        self._disk = disk
        self._by_sync = by_sync

    def __enter__(self) -> None:
        self._disk.check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self._disk.judge(error, by_sync=self._by_sync)


class _Fallocate(Protocol):
    """A call that returns an error number, 0 for success."""

    def __call__(self, fd: int, mode: int, position: int, size: int) -> int: ...


_KEEP_SIZE: Final = 1
_CANNOT_ALLOCATE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)
"""Error numbers of file systems, kernels and sandboxes that never support ``fallocate``."""


def _fill(fd: int, size: int) -> None:
    """Allocate blocks for a file up to ``size``."""
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        try:
            allocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (*_CANNOT_ALLOCATE, errno.EINVAL):
                raise
        else:
            return
    for position in range(0, size, 1 << 20):
        os.lseek(fd, position, os.SEEK_SET)
        RealDisk.write_all(fd, bytes(min(1 << 20, size - position)))


@cache
def _fallocate() -> _Fallocate | None:
    """Return ``fallocate(2)``, looked up on first use because ctypes is slow to import."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64
    except AttributeError:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int

    def fallocate(fd: int, mode: int, position: int, size: int) -> int:
        return ctypes.get_errno() if function(fd, mode, position, size) else 0

    return fallocate
