"""A node that others connect to, and the request that it answers."""

from functools import partial

import attrs
import trio

from kwire.codec.frame import read_header, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.net.framing import Disconnect
from kwire.net.server import NetServer
from kwire.waits import Slow

SUPPORTED = [
    ApiVersionsResponse.ApiVersion(api_key=12, min_version=0, max_version=3),
    ApiVersionsResponse.ApiVersion(api_key=17, min_version=0, max_version=1),
    ApiVersionsResponse.ApiVersion(api_key=36, min_version=0, max_version=2),
    ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4),
]


@attrs.define
class Other:
    """A node that answers Heartbeat, or hangs or closes if the group id says so."""

    service: NetServer = attrs.field(factory=NetServer)
    connection_count: int = 0

    def identify(self, user: str) -> None:
        """Do nothing, because no client shows a certificate."""

    def only_reads(self, frame: memoryview) -> bool:
        return True

    def may_begin_early(self, frame: memoryview) -> bool:
        return False

    def on_closed(self) -> None: ...

    def answer_now(self, frame: memoryview) -> Slow[list[bytes]]:
        return Slow(partial(self.begin, frame))

    async def begin(self, frame: memoryview) -> list[bytes]:
        head, position = read_header(frame)
        if head.api_key == 18:
            self.connection_count += 1
            response = ApiVersionsResponse(api_keys=SUPPORTED)
            return response_parts(18, head.api_version, head.correlation_id, response)
        from kwire.codec.compile import decoder

        request, _ = decoder(HeartbeatRequest, head.api_version)(frame, position)
        if request.group_id == "silent":
            await trio.sleep_forever()
        if request.group_id == "close":
            raise Disconnect("close")
        answer = HeartbeatResponse(error_code=request.generation_id)
        return response_parts(12, head.api_version, head.correlation_id, answer)

    muted_s: float = 0.0

    @property
    def port(self) -> int:
        return self.service.listeners["L"].address.port


def heartbeat(group: str, generation: int = 7) -> HeartbeatRequest:
    """Return a request whose error code will be ``generation``."""
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id="m")
