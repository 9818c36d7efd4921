"""Older releases of Kafka that a test broker or the proxy can emulate.

Pure. Rules: clients see the APIs, versions and features of a new cluster of that release, except
those that the broker lacks; a request in any other version is answered as that release would answer
it. Only the available versions of an API change, not its behaviour.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from kwire.codec.apis import APIS, BY_KEY, BY_NAME
from kwire.codec.frame import RequestHead, read_response, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.errors import UnsupportedVersion
from kwire.net.framing import Disconnect
from kwire.storage_format.format import KRAFT_VERSION
from kwire.storage_format.releases import BadLevelError, feature_levels
from kwire.testing.alterations import Alteration, Ending, answer_as_is
from kwire.testing.arguments import check_text
from kwire.testing.errors import BrokerError
from kwire.testing.release_versions import LAST_VERSIONS, OLDER_RELEASES

API_VERSIONS: Final = BY_NAME["ApiVersions"].key
NEWEST: Final = "4.3"
RELEASES: Final = (*OLDER_RELEASES, NEWEST)
_DYNAMIC_VOTERS: Final = "3.9"
"""The first release with kraft.version."""
_SIZE_BYTES: Final = 4


@attrs.frozen(eq=False, repr=False)
class Release:
    """One release: the last version of each API by key, and the levels of its features."""

    name: str
    last_versions: Mapping[int, int]
    features: Mapping[str, int]

    def check(self, head: RequestHead) -> None:
        """Raise Disconnect for a request that the release answers by closing the connection."""
        if head.api_key == API_VERSIONS:
            return
        if head.api_version > self.last_versions.get(head.api_key, -1):
            name = BY_KEY[head.api_key].name
            raise Disconnect(f"Kafka {self.name} has no version {head.api_version} of {name}")

    def alter(
        self, head: RequestHead, frame: memoryview, course: Alteration | None
    ) -> Alteration | None:
        """Return how the release alters a request; ``course``: how a fault alters it, if any."""
        if head.api_key != API_VERSIONS:
            return course
        if head.api_version > self.last_versions[API_VERSIONS]:
            refusal = Ending(self._refuse_version(head))
            return Alteration((), lambda answer: refusal)
        course = course or Alteration((frame,), answer_as_is)
        end = course.end

        def end_limited(answer: memoryview | None) -> Ending:
            return end(answer and memoryview(self._limit(head, answer))[_SIZE_BYTES:])

        return attrs.evolve(course, end=end_limited)

    def _refuse_version(self, head: RequestHead) -> bytes:
        """Return the response to an unknown version of ApiVersions, listing only that API."""
        api = ApiVersionsResponse.ApiVersion(
            api_key=API_VERSIONS, min_version=0, max_version=self.last_versions[API_VERSIONS]
        )
        response = ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=[api])
        return _encode(head, 0, response)

    def _limit(self, head: RequestHead, answer: memoryview) -> bytes:
        """Limit a response to ApiVersions to the versions and features of the release."""
        response: ApiVersionsResponse
        _, response = read_response(API_VERSIONS, head.api_version, answer)
        shown = []
        for api in response.api_keys:
            api.max_version = min(api.max_version, self.last_versions.get(api.api_key, -1))
            if api.min_version <= api.max_version:
                shown.append(api)
        response.api_keys = shown
        for supported in response.supported_features:
            supported.max_version = min(supported.max_version, self.features.get(supported.name, 0))
        for finalized in response.finalized_features:
            newest = self.features.get(finalized.name, 0)
            finalized.max_version_level = min(finalized.max_version_level, newest)
            finalized.min_version_level = finalized.max_version_level
        response.supported_features = [
            each
            for each in response.supported_features
            if each.max_version > 0 and each.min_version <= each.max_version
        ]
        response.finalized_features = [
            each for each in response.finalized_features if each.max_version_level > 0
        ]
        return _encode(head, head.api_version, response)


def parse_release(name: str) -> Release:
    """Return the release ``3.7`` or ``3.7.1``; raise BrokerError if it is not in the table."""
    check_text("max_versions", name)
    minor = ".".join(name.split(".")[:2])
    if minor not in RELEASES:
        raise BrokerError(
            f"the API versions of Kafka {name} are unknown; choose one of {', '.join(RELEASES)}"
        )
    return Release(minor, _last_versions(minor), _features(minor))


def _last_versions(release: str) -> dict[int, int]:
    """Return the last versions of a release, by API key."""
    if release == NEWEST:
        return {api.key: api.stable for api in APIS}
    position = RELEASES.index(release)
    versions = {}
    for name, changes in LAST_VERSIONS.items():
        last = "-"
        for change in changes.split():
            since, _, version = change.partition("=")
            if RELEASES.index(since) <= position:
                last = version
        if last != "-":
            versions[BY_NAME[name].key] = int(last)
    return versions


def _features(release: str) -> dict[str, int]:
    try:
        features = feature_levels(release, (), {}, dynamic=False)
    except BadLevelError:  # Before 3.3, new clusters had no features.
        return {}
    if RELEASES.index(release) >= RELEASES.index(_DYNAMIC_VOTERS):
        features[KRAFT_VERSION] = 1
    return features


def _encode(head: RequestHead, version: int, response: ApiVersionsResponse) -> bytes:
    parts = response_parts(API_VERSIONS, version, head.correlation_id, response)
    return b"".join(map(bytes, parts))
