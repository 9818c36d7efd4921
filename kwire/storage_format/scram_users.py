"""The users of a new cluster that log in with SCRAM (`kwire format --add-scram`)."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kwire.storage_format.releases import BadLevelError

if TYPE_CHECKING:
    from kwire.codec.messages.metadata_records import MetadataRecord


def scram_records(
    credentials: Sequence[str], features: Mapping[str, int]
) -> "tuple[MetadataRecord, ...]":
    """Return the records of the users; raise BadLevelError for what cannot be stored."""
    if not credentials:
        return ()
    from kwire.raftmeta.storage.levels import SCRAM, level_of
    from kwire.security.scram import NONCE_BYTES, secret_text
    from kwire.security.scram_arguments import parse_credential

    if level_of(features) < SCRAM:
        raise BadLevelError(
            "--add-scram needs metadata.version 3.5-IV2; give --release-version 3.5 or newer"
        )
    salts = (secret_text(os.urandom(NONCE_BYTES)).encode() for _ in credentials)
    try:
        return tuple(map(parse_credential, credentials, salts))
    except ValueError as error:
        raise BadLevelError(f"--add-scram: {error}") from error
