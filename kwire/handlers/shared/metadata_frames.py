"""The encoded answers to Metadata requests that many clients send.

After a restart all clients of an application request the same topics, and each asks again from time
to time. While the cluster's metadata stay the same, equal requests get the same bytes.
"""

from collections.abc import Hashable
from typing import Final

import attrs

from kwire.raftmeta.metadata.image import MetadataImage

FRAMES_MAX: Final = 32
"""The largest number of frames that are kept."""
BYTES_MAX: Final = 1 << 20
"""The size in bytes of the largest frame, and of all frames when the next one is added."""


@attrs.define(eq=False, repr=False)
class MetadataFrames:
    """The frames that are valid for one image of the metadata."""

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
