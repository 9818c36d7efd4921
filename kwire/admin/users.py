"""List, create and remove the SCRAM users of a cluster."""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from kwire.admin.connection import AdminError, Connection
from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.codec.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from kwire.errors import ResourceNotFound, error_class, kafka_name
from kwire.security.scram import (
    BY_NAME,
    BY_NUMBER,
    NONCE_BYTES,
    salt_password,
    secret_text,
)

ITERATIONS: Final = 4096
"""The default of Kafka's tools, which users that do not exist also seem to have."""
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion


class User(NamedTuple):
    """A credential of a user."""

    name: str
    mechanism: str
    iterations: int


def error_text(code: int, message: str | None) -> str:
    """Return an error in a response as text."""
    name = kafka_name(error_class(code))
    return f"{name}: {message}" if message else name


async def list_users(connection: Connection, names: Sequence[str] | None = None) -> list[User]:
    """Return the credentials of all users, or of those named; raise AdminError."""
    shape = DescribeUserScramCredentialsRequest.UserName
    users = None if names is None else [shape(name=name) for name in names]
    answer = await connection.call(DescribeUserScramCredentialsRequest(users=users))
    if answer.error_code:
        text = error_text(answer.error_code, answer.error_message)
        raise AdminError(f"cannot list users: {text}")
    result = []
    for user in answer.results:
        if user.error_code not in (0, ResourceNotFound.code):
            text = error_text(user.error_code, user.error_message)
            raise AdminError(f"cannot list the user {user.user}: {text}")
        result += [
            User(user.user, BY_NUMBER[info.mechanism].name, info.iterations)
            for info in user.credential_infos
        ]
    return sorted(result)


async def add_user(connection: Connection, name: str, mechanism: str, password: str) -> User:
    """Create a user or change the password; raise AdminError.

    The password does not leave this process: the request has a salted form of it.
    """
    scram, salt = BY_NAME[mechanism], secret_text(os.urandom(NONCE_BYTES)).encode()
    upsertion = _Upsertion(
        name=name,
        mechanism=scram.number,
        iterations=ITERATIONS,
        salt=salt,
        salted_password=salt_password(scram, password, salt, ITERATIONS),
    )
    await _alter(connection, AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    return User(name, mechanism, ITERATIONS)


async def remove_user(connection: Connection, name: str, mechanism: str | None) -> list[User]:
    """Remove a user's credentials, and return them; raise AdminError if there are none."""
    users = await list_users(connection, [name])
    removed = [user for user in users if mechanism in (None, user.mechanism)]
    if not removed:
        raise AdminError(f"there is no user {name}" + (f" with {mechanism}" if mechanism else ""))
    deletions = [_Deletion(name=name, mechanism=BY_NAME[u.mechanism].number) for u in removed]
    await _alter(connection, AlterUserScramCredentialsRequest(deletions=deletions))
    return removed


async def _alter(connection: Connection, request: AlterUserScramCredentialsRequest) -> None:
    answer = await connection.call(request)
    for result in answer.results:
        if result.error_code:
            text = error_text(result.error_code, result.error_message)
            raise AdminError(f"cannot change the user {result.user}: {text}")
