"""The users of a new cluster that log in with SCRAM (`kwire format --add-scram`).

A credential is an argument like that of Kafka's storage tool, or a line of a file, because every
user of the machine can see a process's arguments.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kwire.storage_format.releases import BadLevelError

if TYPE_CHECKING:
    from kwire.codec.messages.metadata_records import MetadataRecord

FILE: Final = "@"
"""The first character of an argument that names a file; no mechanism's name begins with it."""


def scram_records(
    arguments: Sequence[str], features: Mapping[str, int]
) -> "tuple[MetadataRecord, ...]":
    """Return the records of the users; raise BadLevelError for users that cannot be stored."""
    if not arguments:
        return ()
    from kwire.raftmeta.storage.levels import SCRAM, level_of
    from kwire.security.scram import NONCE_BYTES, secret_text
    from kwire.security.scram_arguments import parse_credential

    if level_of(features) < SCRAM:
        raise BadLevelError(
            "--add-scram needs metadata.version 3.5-IV2; give --release-version 3.5 or newer"
        )
    credentials = [credential for text in arguments for credential in _credentials(text)]
    salts = (secret_text(os.urandom(NONCE_BYTES)).encode() for _ in credentials)
    try:
        return tuple(map(parse_credential, credentials, salts))
    except ValueError as error:
        raise BadLevelError(f"--add-scram: {error}") from error


def _credentials(argument: str) -> list[str]:
    """Return the credentials in an argument, or in the file that it names; raise BadLevelError."""
    if not argument.startswith(FILE):
        return [argument]
    path = argument.removeprefix(FILE)
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadLevelError(f"--add-scram: cannot read {path}: {reason}") from None
    credentials = [line for line in lines if line.strip()]
    if not credentials:
        raise BadLevelError(f"--add-scram: {path} is empty; write one credential per line")
    return credentials
