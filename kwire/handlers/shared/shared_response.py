"""A response that several requests share, encoded once for all of them.

Only its correlation id and the start of its body differ from request to request. Such a response is
sent to the subscribers of a partition whose long polls one append has completed, and to clients
that request the same topics' metadata.
"""

from collections.abc import Callable, Hashable, MutableMapping
from struct import Struct

import attrs

from kwire.codec.compile import Part
from kwire.codec.frame import Body


@attrs.define(eq=False, repr=False)
class SharedResponse:
    """The response to one of the requests."""

    build: Callable[[], Body]
    """Returns the response as an object, whose encoding is bytes only. It is called unless the
    response is encoded already."""
    frames: MutableMapping[Hashable, bytes]
    """The shared end of the frames, by :attr:`key`: all but the parts that are a request's own."""
    own: bytes
    """The start of the body that is this request's own."""
    own_since: int
    """The first version whose body starts with ``own``."""
    key: Hashable = None
    """The values that the frame depends on; None if that is only the version."""

    def parts(self, head: Struct, version: int, correlation_id: int) -> list[Part] | None:
        """Return the parts to send, or None if the response is not encoded yet."""
        shared = self.frames.get(version if self.key is None else self.key)
        if shared is None:
            return None
        own = self.own if version >= self.own_since else b""
        size = head.size - 4 + len(own) + len(shared)
        return [head.pack(size, correlation_id) + own + shared]

    def keep(self, parts: list[Part], head: Struct, version: int) -> list[Part]:
        """Share the response, whose parts are given, with later requests; return the parts."""
        whole = b"".join(parts)
        own_size = len(self.own) if version >= self.own_since else 0
        self.frames[version if self.key is None else self.key] = whole[head.size + own_size :]
        return [whole]
