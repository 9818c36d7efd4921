"""The files of one segment: their names and paths.

Rules: a partition's directory may be renamed while its log is open, so only this module stores the
path of a segment's directory. The files of a removed segment are renamed, and a new segment may
reuse their old names; code that still reads the removed segment finds its files by the new names.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from kwire.log.disk import Disk, File
from kwire.log.formats import names
from kwire.records.header import Buffer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SegmentFiles:
    """The files of the segment at one base offset."""

    __slots__ = ("_mark", "_next_mark", "_stem", "directory", "disk")

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self.disk = disk
        self.directory = directory
        self._stem = names.stem(base_offset)
        self._mark = ""
        """The end of the files' names: empty, or a mark of files that will be removed soon."""
        self._next_mark: str | None = None
        """The mark that a rename in progress is adding, else None."""

    @property
    def is_removed(self) -> bool:
        """True once the files have been renamed because they will be removed."""
        return bool(self._mark)

    def name(self, suffix: str) -> str:
        """Return the name of a file in the partition's directory."""
        return f"{self._stem}{suffix}{self._mark}"

    def unmarked_name(self, suffix: str) -> str:
        """Return the name that a file has until the segment is removed."""
        return f"{self._stem}{suffix}"

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self._stem}{suffix}{self._mark}"

    def unmarked_path(self, suffix: str) -> str:
        """Return a file's path without the mark of a removed segment."""
        return f"{self.directory}/{self._stem}{suffix}"

    def open(self, suffix: str, *, create: bool = False) -> File:
        return self.disk.open(self.path(suffix), create=create)

    def open_now(self, suffix: str) -> File:
        """Open and pin a file of this segment, in any thread; raises FileNotFoundError.

        :meth:`open` would be wrong in a thread: it opens at the first use, when another segment's
        file may have the name.
        """

        def open_pinned(path: str) -> File:
            file = self.disk.open(path)
            file.pin()
            return file

        return self._find(suffix, open_pinned, _unpin)

    def read(self, suffix: str) -> bytes:
        """Return a file's content, or nothing if the file does not exist; in any thread."""
        try:
            return self._find(suffix, self.disk.read, _drop)
        except FileNotFoundError:
            return b""

    def _find(self, suffix: str, look: Callable[[str], T], discard: Callable[[T], None]) -> T:
        """Call ``look`` with the path of a file of this segment, which may be renamed meanwhile.

        The result is used only if the name still belongs to this segment afterwards, because a new
        segment may take the unmarked name after the rename. Other results are passed to
        ``discard``. Raises FileNotFoundError.
        """
        while True:
            marks = self._mark, self._next_mark
            for mark in marks:
                if mark is None:
                    continue
                try:
                    result = look(f"{self.directory}/{self._stem}{suffix}{mark}")
                except FileNotFoundError as error:
                    missing = error
                    continue
                if mark or self._mark == marks[0]:
                    return result
                discard(result)
            if marks == (self._mark, self._next_mark):
                raise missing

    def write(self, suffix: str, data: Buffer) -> None:
        self.disk.write(self.path(suffix), data)

    def remove(self, *suffixes: str) -> None:
        for suffix in suffixes:
            self.disk.remove(self.path(suffix))

    def mark_deleted(
        self, suffixes: Sequence[str], mark: str = names.DELETED, *, may_leave: bool = False
    ) -> list[str]:
        """Append ``mark`` to the names of the existing files; return their new paths.

        ``mark`` must end with ``.deleted``, because a restart removes such files. Raises OSError;
        if the first file cannot be renamed, nothing has changed. With ``may_leave``, any later file
        that cannot be renamed is removed or, if that fails too, left until the next start.
        """
        paths: list[str] = []
        self._next_mark = mark
        for suffix in suffixes:
            path = self.unmarked_path(suffix)
            try:
                self.disk.rename(path, path + mark)
            except FileNotFoundError:
                continue
            except OSError as error:
                if not paths:
                    self._next_mark = None
                if not paths or not may_leave:
                    raise
                if self.disk.failed is not None:
                    break
                self._remove_or_leave(path, error)
                continue
            paths.append(path + mark)
        self._mark, self._next_mark = mark, None
        return paths

    def unmark(self, paths: Sequence[str]) -> None:
        """Give files their names from before :meth:`mark_deleted`; raises OSError."""
        for path in paths:
            self.disk.rename(path, path.removesuffix(self._mark))
        self._mark = ""

    def _remove_or_leave(self, path: str, error: OSError) -> None:
        """Remove a file that could not be renamed; unlike renaming, this needs no disk space."""
        try:
            self.disk.remove(path)
        except OSError:
            logger.warning("file left until the next start path=%s error=%s", path, error)


def _unpin(file: File) -> None:
    file.unpin()
    file.close()


def _drop(data: bytes) -> None: ...
