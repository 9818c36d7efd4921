"""Copies of a test broker's data under a name, to which a test can return.

Rules: the nodes are stopped while their directories are copied. A snapshot is complete or does not
exist. It is kept until the broker is closed, however often it is restored.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from kwire.testing.errors import BrokerError

_UNFINISHED: Final = "unfinished"


@attrs.define(eq=False)
class Snapshots:
    """The snapshots of one test broker, whose nodes always have the same directories."""

    folder: Path
    """The directory of the copies; created for the first snapshot."""
    _folders: dict[str, Path] = attrs.field(factory=dict)

    def save(self, name: str, directories: Sequence[Path]) -> None:
        """Copy directories, replacing an earlier snapshot of that name; raise BrokerError."""
        unfinished = self.folder / _UNFINISHED
        with _broker_error(f"save the snapshot {name}"):
            _clear(unfinished)
            for number, directory in enumerate(directories):
                shutil.copytree(directory, unfinished / str(number))
            target = self._folders.setdefault(name, self.folder / str(len(self._folders)))
            shutil.rmtree(target, ignore_errors=True)
            unfinished.rename(target)

    def check(self, name: str) -> None:
        """Raise BrokerError if there is no snapshot of that name."""
        if name not in self._folders:
            names = ", ".join(self._folders) or "none"
            raise BrokerError(f"there is no snapshot {name}; saved so far: {names}")

    def restore(self, name: str, directories: Sequence[Path]) -> None:
        """Replace the contents of the directories by a snapshot; raise BrokerError."""
        self.check(name)
        with _broker_error(f"restore the snapshot {name}"):
            for number, directory in enumerate(directories):
                _clear(directory)
                shutil.copytree(self._folders[name] / str(number), directory, dirs_exist_ok=True)


def _clear(directory: Path) -> None:
    """Remove the contents of a directory, but not the directory, which may be a mount point."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def _broker_error(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise BrokerError(f"cannot {what}: {error}") from error
