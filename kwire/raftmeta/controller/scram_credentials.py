"""The decision on AlterUserScramCredentials: the SCRAM credentials of users.

Clients send salted passwords; the records contain only the keys derived from them.
"""

from collections.abc import Iterable

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from kwire.errors import (
    DuplicateResource,
    KafkaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from kwire.raftmeta.controller.state import (
    ControllerDecision,
    ControllerState,
    Outcome,
    check_bound,
    outcome,
)
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.storage.levels import SCRAM, level_of

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion


def decide_alter_scram(
    state: ControllerState, request: AlterUserScramCredentialsRequest
) -> Steps[ControllerDecision[AlterUserScramCredentialsResponse]]:
    """Set and delete credentials; a user that is named twice is rejected."""
    records: dict[str, r.MetadataRecord] = {}
    outcomes: dict[str, Outcome] = {}
    items: Iterable[Deletion | Upsertion] = (*request.deletions, *request.upsertions)
    for item in items:
        name = item.name
        try:
            if name in records:
                del records[name]
                raise DuplicateResource(
                    "A user credential cannot be altered twice in the same request"
                )
            if outcomes.get(name, Outcome()).code:
                continue
            if level_of(state.image.features) < SCRAM:
                raise UnsupportedVersion("The current metadata.version does not support SCRAM")
            records[name] = _record(state, item)
        except KafkaError as error:
            outcomes[name] = outcome(error)
        else:
            outcomes[name] = Outcome()
        yield
    check_bound(list(records.values()))
    shape = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    results = [
        shape(user=name, error_code=result.code, error_message=result.text)
        for name, result in outcomes.items()
    ]
    return ControllerDecision(
        tuple(records.values()), AlterUserScramCredentialsResponse(results=results)
    )


def _record(state: ControllerState, item: Deletion | Upsertion) -> r.MetadataRecord:
    from kwire.security.scram import BY_NUMBER, ITERATIONS_MAX, ITERATIONS_MIN, make_credential

    if not item.name:
        raise UnacceptableCredential("Username must not be empty")
    mechanism = BY_NUMBER.get(item.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    if isinstance(item, Deletion):
        if (item.mechanism, item.name) not in state.image.scram:
            raise ResourceNotFound("Attempt to delete a user credential that does not exist")
        return r.RemoveUserScramCredentialRecord(name=item.name, mechanism=item.mechanism)
    if item.iterations < ITERATIONS_MIN:
        raise UnacceptableCredential("Too few iterations")
    if item.iterations > ITERATIONS_MAX:
        raise UnacceptableCredential("Too many iterations")
    if not item.salted_password:  # Everybody knows the keys that follow from it.
        raise UnacceptableCredential("The salted password must not be empty")
    credential = make_credential(
        mechanism, bytes(item.salted_password), bytes(item.salt), item.iterations
    )
    return r.UserScramCredentialRecord(
        name=item.name,
        mechanism=item.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )
