"""The directory of a test broker's data: in memory if the system supports that and has room.

Rules: the owner of a folder holds a lock on a file in it. The next test broker removes folders
whose owner was killed, because they would fill the machine's memory.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kwire.operating_system import UnsupportedSystemError, check_system
from kwire.testing.errors import BrokerError

IN_MEMORY: Final = "/dev/shm"
ROOM_BYTES: Final = 32 << 20
"""With less room in memory, the data are in the temporary directory. /dev/shm of a container has 64
MB by default, and a broker without room does not create a log."""
_PREFIX: Final = "kwire-test-"
_OWNER: Final = "owner"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder and remove it at the end; raise BrokerError if that fails."""
    try:
        check_system()
    except UnsupportedSystemError as error:
        raise BrokerError(str(error)) from error
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
    except OSError as error:
        raise BrokerError(
            f"cannot create a temporary directory: {error.strerror}; set TMPDIR to another place"
        ) from error
    try:
        owner = os.open(folder / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            _lock(owner, exclusively=False)
            yield folder
        finally:
            os.close(owner)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _place() -> str:
    """Return the directory in memory or the temporary one, without abandoned folders."""
    if os.access(IN_MEMORY, os.W_OK | os.X_OK):
        _remove_abandoned(Path(IN_MEMORY))
        if shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES:
            return IN_MEMORY
    place = tempfile.gettempdir()
    _remove_abandoned(Path(place))
    return place


def _remove_abandoned(place: Path) -> None:
    """Remove the folders that are no longer locked by any process."""
    for path in place.glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError):  # It is in use, belongs to another user, or was removed meanwhile.
            owner = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _lock(owner, exclusively=True)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(owner)


def _lock(owner: int, *, exclusively: bool) -> None:
    import fcntl  # pytest loads this module on Windows too.

    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusively else fcntl.LOCK_SH)
