"""The files and directories of a simulated disk, as in the page cache and as on the platter.

Rules: a sync covers one file's bytes or one directory's names, never both. Each page written since
a file's last sync may or may not have reached the platter. A failed sync marks these pages as
clean, as Linux does, so the next sync does not write them. Name changes reach the platter in order:
a power loss keeps a prefix of each directory's changes since its last sync. So even a file whose
bytes are synced is lost if its name, or the name of a directory above it, was not synced.
"""

import errno
from collections.abc import Iterable, Iterator
from random import Random
from typing import Final, TypeAlias

import attrs

from kwire.records.header import Buffer

PAGE: Final = 512
"""The page size in bytes; torn writes end at a multiple of it."""


@attrs.define(eq=False)
class Inode:
    """One file's content, in the page cache and as last synced."""

    data: bytearray = attrs.Factory(bytearray)
    durable: bytes = b""
    dirty: set[int] = attrs.Factory(set)
    modified_ms: int = 0
    allocated: int = 0
    """The number of bytes allocated in advance, which may exceed the file's size."""

    @property
    def room(self) -> int:
        """The number of bytes that the file occupies on the disk."""
        return max(len(self.data), self.allocated)

    def write(self, position: int, data: Buffer) -> None:
        if not len(data):
            return
        if len(self.data) < position:
            self._touch(len(self.data), position)
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self._touch(position, position + len(data))

    def truncate(self, size: int) -> None:
        self._touch(min(size, len(self.data)), max(size, len(self.data)))
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.allocated = 0

    def sync(self) -> None:
        """Write the dirty pages to the platter; clean pages are assumed to be on it already."""
        self.durable = bytes(self._with_pages(len(self.data), self.dirty))
        self.dirty.clear()

    def fail_sync(self) -> None:
        """Fail a sync: no page is written, but all pages count as clean afterwards."""
        self.dirty.clear()

    def rot(self, position: int, mask: int) -> None:
        """Flip bits of one byte, in the cache and on the platter."""
        self.data[position] ^= mask
        durable = bytearray(self.durable)
        if position < len(durable):
            durable[position] ^= mask
        self.durable = bytes(durable)

    def lose(self, random: Random) -> None:
        """Lose power: keep a random size and a random half of the unsynced pages."""
        sizes = sorted((len(self.durable), len(self.data)))
        size = random.choice([*sizes, random.randint(*sizes) // PAGE * PAGE])
        size = max(size, sizes[0])
        pages = [
            page
            for page in sorted(self.dirty)
            if page * PAGE < min(size, len(self.data)) and random.random() < 0.5
        ]
        self.data = self._with_pages(size, pages)
        self.durable = bytes(self.data)
        self.dirty.clear()

    def _with_pages(self, size: int, pages: Iterable[int]) -> bytearray:
        """Return the platter's content at ``size``, overwritten by ``pages`` from the cache."""
        content = bytearray(self.durable[:size])
        content.extend(bytes(size - len(content)))
        for page in pages:
            start, end = page * PAGE, min((page + 1) * PAGE, size, len(self.data))
            if start < end:
                content[start:end] = self.data[start:end]
        return content

    def _touch(self, start: int, end: int) -> None:
        if start < end:
            self.dirty.update(range(start // PAGE, (end - 1) // PAGE + 1))


@attrs.define(eq=False)
class Directory:
    """A directory's names with their nodes, and its unsynced changes in order."""

    names: dict[str, "Node"] = attrs.Factory(dict)
    _durable: dict[str, "Node"] = attrs.Factory(dict)
    _changes: list[dict[str, "Node | None"]] = attrs.Factory(list)
    """The unsynced changes: each maps names to their new nodes, or to None for removed names."""

    def change(self, names: dict[str, "Node | None"]) -> None:
        """Set several names in one change; None removes a name."""
        _apply(self.names, names)
        self._changes.append(names)

    def sync(self) -> None:
        for change in self._changes:  # A copy of all names would make many small syncs slow.
            _apply(self._durable, change)
        self._changes.clear()

    def survivor(self, random: Random, lost: dict[Inode, Inode]) -> "Directory":
        """Return a copy of this directory after a power loss."""
        names = dict(self._durable)
        for change in self._changes[: random.randint(0, len(self._changes))]:
            _apply(names, change)
        copy = Directory()
        for name, node in names.items():
            if isinstance(node, Directory):
                copy.names[name] = node.survivor(random, lost)
                continue
            if node not in lost:
                lost[node] = inode = Inode(
                    bytearray(node.data),
                    node.durable,
                    set(node.dirty),
                    node.modified_ms,
                    node.allocated,
                )
                inode.lose(random)
            copy.names[name] = lost[node]
        copy._durable = dict(copy.names)
        return copy

    def durable_files(self, name: str) -> Iterator[tuple[str, bytearray, bytes]]:
        """Yield the files in a directory of this one whose names a power loss cannot remove.

        Each has its name, its bytes in the cache and its bytes on the platter.
        """
        directory = self._durable.get(name)
        if isinstance(directory, Directory):
            for file_name, node in directory._durable.items():
                if isinstance(node, Inode) and directory.names.get(file_name) is node:
                    yield file_name, node.data, node.durable

    def directory(self, path: str) -> "Directory":
        """Return the directory at a path below this one; raises FileNotFoundError."""
        node: Node = self
        for name in path.split("/") if path else ():
            following = node.names.get(name) if isinstance(node, Directory) else None
            if following is None:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            node = following
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def parent(self, path: str) -> tuple["Directory", str]:
        """Return the directory that holds a path's last name, and that name."""
        above, _, name = path.rpartition("/")
        return self.directory(above), name

    def find(self, path: str) -> "Node | None":
        """Return the node at a path, or None; FileNotFoundError if the directory is missing."""
        above, name = self.parent(path)
        return above.names.get(name)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing ``target``; raises OSError.

        As on a real disk, a directory replaces only an empty one.
        """
        above, name = self.parent(source)
        node = above.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        to, to_name = self.parent(target)
        replaced = to.names.get(to_name)
        if replaced is not node and isinstance(replaced, Directory) and replaced.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", target)
        if to is above:
            above.change({name: None, to_name: node})
        else:
            to.change({to_name: node})
            above.change({name: None})

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield every file below this directory with its path."""
        for name, node in self.names.items():
            if isinstance(node, Directory):
                yield from node.walk(f"{prefix}{name}/")
            else:
                yield prefix + name, node


Node: TypeAlias = Inode | Directory


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        names.pop(name, None)
        if node is not None:
            names[name] = node
