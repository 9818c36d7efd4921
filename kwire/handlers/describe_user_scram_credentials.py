"""DescribeUserScramCredentials (API key 50): the users with SCRAM credentials, but no secrets."""

from collections import Counter
from collections.abc import Generator
from typing import Final

from kwire.codec.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kwire.drive import run_in_slices
from kwire.errors import DuplicateResource, KafkaError, ResourceNotFound
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import MetadataImage

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_MECHANISMS: Final = (1, 2)
"""The numbers of SCRAM-SHA-256 and SCRAM-SHA-512."""


@handles(DescribeUserScramCredentialsRequest)
async def describe_user_scram_credentials(
    context: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    context.check_allowed("Describe", "Cluster", CLUSTER)
    return await run_in_slices(_describe(context.image, request))


def _describe(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> Generator[None, None, DescribeUserScramCredentialsResponse]:
    """Describe the users that a request names, or all, in small steps."""
    counts = Counter(user.name for user in request.users or ())
    if not counts:
        for _, user in image.scram:
            counts[user] = 1
            yield
    results = []
    for user, count in counts.items():
        results.append(_result(image, user, count))
        yield
    return DescribeUserScramCredentialsResponse(results=results)


def _result(image: MetadataImage, user: str, count: int) -> Result:
    error: KafkaError | None = None
    records = [image.scram.get((number, user)) for number in _MECHANISMS]
    infos = [
        Result.CredentialInfo(mechanism=record.mechanism, iterations=record.iterations)
        for record in records
        if record is not None
    ]
    if count > 1:
        error = DuplicateResource(
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        )
    elif not infos:
        error = ResourceNotFound(
            f"Attempt to describe a user credential that does not exist: {user}"
        )
    if error is not None:
        return Result(user=user, error_code=error.code, error_message=error.text)
    return Result(user=user, credential_infos=infos)
