"""The assertions with which this node requests access tokens.

Their files are read for each request, so that a new assertion or key takes effect with the next
request.
"""

from pathlib import Path
from typing import Protocol

import attrs

from kwire.net.oauth.documents import DOCUMENT_BYTES_MAX, Unavailable


class Assertions(Protocol):
    """The source of assertions."""

    def read(self) -> str:
        """Return an assertion; raise Unavailable. It reads files, so it runs in a thread."""


@attrs.frozen(eq=False, repr=False)
class WrittenAssertion:
    """The assertions that another program writes to a file."""

    path: str

    def read(self) -> str:
        return read_file(self.path).decode(errors="replace").strip()


def read_file(path: str) -> bytes:
    """Return the bytes of a small file; raise Unavailable."""
    try:
        with Path(path).open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from None
