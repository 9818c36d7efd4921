"""UpdateFeatures on a node; the codes and texts are those of Apache Kafka 4.3.1."""

import pytest

from kwire.codec.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.update_features import update_features
from tests.support.handlers.admin_node import AdminNode, admin_node

UP, SAFE, UNSAFE = 1, 2, 3
WRONG = 95


async def update(
    node: AdminNode, *updates: tuple[str, int, int], validate_only: bool = False
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=kind
            )
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    reply = await update_features(Context(services=node.services), request)
    assert isinstance(reply, UpdateFeaturesResponse)
    return reply


async def test_kraft_version_is_raised_and_never_lowered(autojump_clock: object) -> None:
    async with admin_node() as node:
        assert node.quorum.kraft_version == 0
        assert (await update(node, ("kraft.version", 1, UP), validate_only=True)).error_code == 0
        reply = await update(node, ("kraft.version", 1, UP), ("group.version", 77, UP))
        assert reply.error_code == WRONG
        assert node.quorum.kraft_version == 0
        assert (await update(node, ("kraft.version", 1, UP))).error_code == 0
        assert node.quorum.kraft_version == 1
        assert "kraft.version" not in node.publisher.image.features
        assert (await update(node, ("kraft.version", 1, UP))).error_code == 0
        for kind in (UP, SAFE, UNSAFE):
            assert (await update(node, ("kraft.version", 0, kind))).error_code == WRONG
        assert node.quorum.kraft_version == 1


@pytest.mark.parametrize(
    ("level", "kind", "text"),
    [
        (29, SAFE, "from 30 to 29. Refusing to perform the requested downgrade because"),
        (29, UNSAFE, "from 30 to 29. Unsafe metadata downgrade is not supported"),
        (0, UNSAFE, "Local controller 1 only supports versions 7-30"),
        (31, UP, "Local controller 1 only supports versions 7-30"),
    ],
)
async def test_metadata_version_change_is_refused(
    level: int, kind: int, text: str, autojump_clock: object
) -> None:
    async with admin_node() as node:
        reply = await update(node, ("metadata.version", level, kind))
        assert reply.error_code == WRONG
        assert text in (reply.error_message or "")
        assert node.publisher.image.features["metadata.version"] == 30
