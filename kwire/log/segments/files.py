"""The files of one segment: their names, and where they are.

Rule: a partition's directory may be renamed while its log is open; only this module keeps the
directory's path for a segment.
"""

from collections.abc import Sequence

from kwire.log.disk import Disk, File
from kwire.log.formats import names
from kwire.records.header import Buffer


class SegmentFiles:
    """The files of the segment at one base offset."""

    __slots__ = ("_stem", "directory", "disk")

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self.disk = disk
        self.directory = directory
        self._stem = names.stem(base_offset)

    def name(self, suffix: str) -> str:
        """Return the name of a file in the partition's directory."""
        return f"{self._stem}{suffix}"

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self._stem}{suffix}"

    def open(self, suffix: str, *, create: bool = False) -> File:
        return self.disk.open(self.path(suffix), create=create)

    def exists(self, suffix: str) -> bool:
        file = self.open(suffix)
        try:
            file.size()
        except FileNotFoundError:
            return False
        finally:
            file.close()
        return True

    def read(self, suffix: str) -> bytes:
        """Return a file's content, empty if there is no file."""
        try:
            return self.disk.read(self.path(suffix))
        except FileNotFoundError:
            return b""

    def write(self, suffix: str, data: Buffer) -> None:
        self.disk.write(self.path(suffix), data)

    def remove(self, *suffixes: str) -> None:
        for suffix in suffixes:
            self.disk.remove(self.path(suffix))

    def mark_deleted(self, suffixes: Sequence[str]) -> list[str]:
        """Add ``.deleted`` to the names of the existing files; return their new paths."""
        paths = []
        for suffix in suffixes:
            path = self.path(suffix)
            try:
                self.disk.rename(path, path + names.DELETED)
            except FileNotFoundError:
                continue
            paths.append(path + names.DELETED)
        return paths
