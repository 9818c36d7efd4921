"""The directory of a test broker's data: in memory where the system has such a file system."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kwire.testing.errors import BrokerError

IN_MEMORY: Final = "/dev/shm"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder and remove it at the end; raise BrokerError if that is not possible."""
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK | os.X_OK) else None
    try:
        folder = tempfile.mkdtemp(prefix="kwire-", dir=place)
    except OSError as error:
        raise BrokerError(
            f"cannot create a temporary directory: {error.strerror}; set TMPDIR to another place"
        ) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
