"""A response that several requests share, encoded once for all of them.

Only its correlation id and the start of its body differ from request to request. Such a response is
sent to the subscribers of a partition whose long polls one append has completed, and to clients
that request the same topics' metadata: after a restart all clients of an application do, and each
does again from time to time.
"""

from collections.abc import Callable, Hashable, MutableMapping
from struct import Struct
from typing import Final

import attrs

from kwire.codec.compile import Part
from kwire.codec.frame import Body
from kwire.raftmeta.metadata.image import MetadataImage

FRAMES_MAX: Final = 32
"""The largest number of frames that are kept."""
BYTES_MAX: Final = 1 << 20
"""The size in bytes of the largest frame, and of all frames when the next one is added."""


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


@attrs.define(eq=False, repr=False)
class MetadataFrames:
    """The shared ends of the answers to Metadata requests, for one image of the metadata."""

    _image: MetadataImage | None = None
    _frames: dict[Hashable, bytes] = attrs.Factory(dict)

    def of(self, image: MetadataImage) -> dict[Hashable, bytes]:
        """Return the frames that were encoded from an image."""
        if image is not self._image:
            self._image, self._frames = image, {}
        return self._frames

    def with_room(self, image: MetadataImage) -> dict[Hashable, bytes]:
        """Return the frames of an image, to which another one may be added."""
        frames = self.of(image)
        if len(frames) >= FRAMES_MAX or sum(map(len, frames.values())) >= BYTES_MAX:
            frames = self._frames = {}
        return frames
