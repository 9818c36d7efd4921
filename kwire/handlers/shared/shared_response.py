"""A response that several requests share, encoded once for all of them.

Only its correlation id and the start of its body differ from request to request. Such a response is
sent to the subscribers of a partition whose long polls one append has completed.
"""

from collections.abc import Callable
from struct import Struct

import attrs

from kwire.codec.compile import Encoder, Part
from kwire.codec.frame import Body, encode_response


@attrs.define(eq=False, repr=False)
class SharedResponse:
    """The response to one of the requests."""

    build: Callable[[], Body]
    """Returns the response as an object, whose encoding is bytes only."""
    frames: dict[int, bytes]
    """The shared end of the frames, by version: all but the parts that are a request's own."""
    own: bytes
    """The start of the body that is this request's own."""
    own_since: int
    """The first version whose body starts with ``own``."""

    def parts(
        self, encode: Encoder[Body], head: Struct, version: int, correlation_id: int
    ) -> list[Part]:
        """Return the parts to send."""
        own = self.own if version >= self.own_since else b""
        shared = self.frames.get(version)
        if shared is None:
            whole = b"".join(encode_response(encode, head, correlation_id, self.build()))
            self.frames[version] = whole[head.size + len(own) :]
            return [whole]
        size = head.size - 4 + len(own) + len(shared)
        return [head.pack(size, correlation_id) + own + shared]
