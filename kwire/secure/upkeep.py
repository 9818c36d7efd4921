"""The tasks of a node with `--secure`: create users, write client files, renew certificates.

Rules: the node itself creates the users, as the super user, before it is announced, so a node with
existing data is protected as well. Until the client files have been written, each start sets the
admin's password. Later starts set it only if the admin does not exist, so that a password changed
by the user stays. The nodes' password is always the one in the folder.
"""

import logging
import os
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Principal
from kwire.node.server import Server
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.secure.folder import SecureFolder
from kwire.secure.location import ADMIN
from kwire.secure.settings import MECHANISM, NODE
from kwire.security.scram import (
    BY_NAME,
    NONCE_BYTES,
    make_credential,
    salt_password,
    secret_text,
)
from kwire.types import in_address

logger = logging.getLogger(__name__)

CHECK_S: Final = 3600.0
"""The time between two checks of the certificate."""
_RETRY_S: Final = 0.2
_IN_FORCE_S: Final = 5.0
_ALTER_SCRAM: Final = 51
_SCRAM: Final = BY_NAME[MECHANISM]
_ITERATIONS: Final = 4096
"""The number of iterations that Kafka's tools use by default; unknown users appear to have it."""
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion


@attrs.define(eq=False, repr=False)
class Upkeep:
    """The tasks of one node with `--secure`."""

    folder: SecureFolder
    hosts: Sequence[str]
    """The hosts of the node's listeners, which its certificate names."""
    writes_client_files: bool = True
    """False for a node of a cluster, whose client files name all nodes."""

    async def run(
        self, server: Server, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Prepare a node that can answer requests, report started, and renew its certificate."""
        await self.prepare(server)
        task_status.started()
        while True:
            await trio.sleep(CHECK_S)
            await self.renew(server.core.clock.now_ms())

    async def prepare(self, server: Server) -> None:
        """Create the missing users, then write the client files."""
        if server.broker is None:
            return  # A node that is only a controller has no SCRAM users.
        while upsertions := await trio.to_thread.run_sync(
            self._lacking, server.services.current.image
        ):
            await self._upsert(server, upsertions)
        if self.writes_client_files:
            bootstrap = client_address(server)
            await trio.to_thread.run_sync(self.folder.write_client_files, bootstrap)

    def _lacking(self, image: MetadataImage) -> list[_Upsertion]:
        """Return the credentials to set; runs in a thread, because it salts passwords."""
        passwords = self.folder.passwords
        result = []
        for user, password in ((ADMIN, passwords.admin), (NODE, passwords.node)):
            record = image.scram.get((_SCRAM.number, user))
            if record is not None:
                if user == ADMIN and self.folder.has_client_files:
                    continue
                salted = salt_password(_SCRAM, password, record.salt, record.iterations)
                credential = make_credential(_SCRAM, salted, record.salt, record.iterations)
                if credential.stored_key == record.stored_key:
                    continue
            salt = secret_text(os.urandom(NONCE_BYTES)).encode()
            result.append(
                _Upsertion(
                    name=user,
                    mechanism=_SCRAM.number,
                    iterations=_ITERATIONS,
                    salt=salt,
                    salted_password=salt_password(_SCRAM, password, salt, _ITERATIONS),
                )
            )
        return result

    async def _upsert(self, server: Server, upsertions: Sequence[_Upsertion]) -> None:
        """Set credentials, and wait until they are in force on this node."""
        request = AlterUserScramCredentialsRequest(upsertions=list(upsertions))
        endpoint = server.config.broker_endpoints[0]
        requests = Dispatcher(server.services, ListenerType.BROKER).for_connection(
            endpoint.name, endpoint.host, principal=Principal("User", ADMIN)
        )
        frame = request_frame(_ALTER_SCRAM, 0, 1, "kwire --secure", request)
        parts = await requests.answer(memoryview(frame)[4:])
        assert parts is not None, "the request has a response"
        answer = read_response(_ALTER_SCRAM, 0, b"".join(map(bytes, parts))[4:])[1]
        for result in answer.results:
            if result.error_code:
                logger.warning(
                    "user not created user=%s error=%s", result.user, result.error_message
                )
        if any(result.error_code for result in answer.results):
            await trio.sleep(_RETRY_S)
            return
        salts = {upsertion.name: upsertion.salt for upsertion in upsertions}

        def is_set(image: MetadataImage) -> bool:
            records = {user: image.scram.get((_SCRAM.number, user)) for user in salts}
            return all(r is not None and r.salt == salts[user] for user, r in records.items())

        with trio.move_on_after(_IN_FORCE_S):  # Another node may set them at the same time.
            await server.core.publisher.wait_for(is_set)

    async def renew(self, now_ms: int) -> None:
        """Renew the certificate if that is due; log the reason if that fails."""
        try:
            if await trio.to_thread.run_sync(self.folder.renew, self.hosts, now_ms):
                logger.info("certificate renewed file=%s", self.folder.server)
        except Exception as error:  # noqa: BLE001  The node keeps running with the old certificate.
            logger.error("certificate not renewed reason=%s", error)


def client_address(server: Server) -> str:
    """Return the address that the node advertises for its first listener for clients."""
    name = server.config.broker_endpoints[0].name
    endpoint = next(each for each in server.core.endpoints if each.name == name)
    return f"{in_address(endpoint.host)}:{endpoint.port}"
