"""The decision on UpdateFeatures, which changes feature levels.

:mod:`kwire.raftmeta.controller.features` lists the levels that this node supports.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kwire.errors import KafkaError
from kwire.raftmeta.controller.features import elr_safety_records
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.storage.levels import CONTROLLERS, ELR, METADATA_VERSION, NEEDS, level_of

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3

KRAFT_VERSION: Final = "kraft.version"
_NEW_RECORDS_FROM: Final = (8, 11, 13, 14, 15, 17, 23, 30)
"""Levels of metadata.version that add records which the previous level cannot read."""

Refusal = Callable[[str], KafkaError]


def decide_update_features(
    state: ControllerState,
    request: UpdateFeaturesRequest,
    *,
    kraft_version: int,
    check_kraft_version: Callable[[int], None],
) -> Steps[ControllerDecision[UpdateFeaturesResponse]]:
    """Change feature levels: either all that the request names, or none.

    ``kraft_version`` is the quorum's current level. The quorum decides whether that level can be
    raised, and raises it after the other changes are committed.
    """
    current = {**state.image.features, KRAFT_VERSION: kraft_version}
    levels = {update.feature: update.max_version_level for update in request.feature_updates}
    metadata = levels.get(METADATA_VERSION, current.get(METADATA_VERSION, 0))
    records: list[r.MetadataRecord] = []
    results = []
    failed: KafkaError | None = None
    counts = Counter(update.feature for update in request.feature_updates)
    for update in request.feature_updates:
        code, text = errors.NONE, None
        try:
            if counts[update.feature] > 1:
                raise errors.InvalidRequest("Duplicate feature in the request.")
            records += _update(state, update, current.get(update.feature, 0), metadata)
            if update.feature == KRAFT_VERSION and update.max_version_level > kraft_version:
                _ask_the_quorum(update.max_version_level, check_kraft_version)
        except KafkaError as error:
            code, text = error.code, error.text
            failed = failed or error
        results.append(
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=update.feature, error_code=code, error_message=text
            )
        )
        yield
    if failed is not None:
        reply = UpdateFeaturesResponse(
            error_code=failed.code,
            error_message=f"The update failed for all features since the following feature had "
            f"an error: {failed.text}",
        )
        return ControllerDecision((), reply)
    reply = UpdateFeaturesResponse(results=results)
    return ControllerDecision(() if request.validate_only else tuple(records), reply)


def _ask_the_quorum(level: int, check: Callable[[int], None]) -> None:
    try:
        check(level)
    except KafkaError as error:
        why = f"Invalid update version {level} for feature {KRAFT_VERSION}. {error.text}"
        raise errors.InvalidUpdateVersion(why) from error


def _update(
    state: ControllerState,
    update: UpdateFeaturesRequest.FeatureUpdateKey,
    current: int,
    metadata: int,
) -> list[r.MetadataRecord]:
    name, level = update.feature, update.max_version_level
    upgrade_type = _SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type

    def refusal(why: str) -> KafkaError:
        prefix = f"Invalid update version {level} for feature {name}. "
        return errors.InvalidUpdateVersion(prefix + why)

    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise refusal("The controller does not support the given upgrade type.")
    if level < 0:
        raise refusal("A feature version cannot be less than 0.")
    _check_supported(state, name, level, refusal)
    _check_direction(name, level, current, upgrade_type, refusal)
    if name == KRAFT_VERSION:
        return []
    if level and metadata < (needed_level := NEEDS.get(name, 0)):
        raise refusal(f"{name} {level} depends on {METADATA_VERSION} level {needed_level}")
    safety = elr_safety_records(state) if name == ELR and level else []
    return [*safety, r.FeatureLevelRecord(name=name, feature_level=level)]


def _check_direction(
    name: str, level: int, current: int, upgrade_type: int, refusal: Refusal
) -> None:
    """Reject a downgrade not requested as one, or one that would lose metadata."""
    if level > current and upgrade_type != _UPGRADE:
        raise refusal("Can't downgrade to a newer version.")
    if level >= current:
        return
    if upgrade_type == _UPGRADE:
        raise refusal(
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if name == KRAFT_VERSION:
        raise refusal("Can't downgrade the version of this feature.")
    if name == METADATA_VERSION and any(level < new <= current for new in _NEW_RECORDS_FROM):
        why = "Refusing to perform the requested downgrade because it might delete metadata"
        text = f"{why} information."
        if upgrade_type == _UNSAFE_DOWNGRADE:
            text = "Unsafe metadata downgrade is not supported in this version."
        raise errors.InvalidUpdateVersion(
            f"Unsupported metadata.version downgrade from {current} to {level}. {text}"
        )


def _check_supported(state: ControllerState, name: str, level: int, refusal: Refusal) -> None:
    """Reject a level that some node does not support."""
    own = f"Local controller {state.config.node_id}"
    if name not in state.supported_features:
        text = "Feature {} not found." if not level else "{} does not support this feature."
        raise refusal(text.format(name if not level else own))
    nodes: list[tuple[str, Mapping[str, tuple[int, int]]]] = [(own, state.supported_features)]
    nodes += [(f"Broker {b.id}", b.features) for b in state.image.brokers.values()]
    nodes += [(f"Controller {c.id}", c.features) for c in state.image.controllers.values()]
    for node, features in nodes:
        low, high = features.get(name, (0, 0))
        if not low <= level <= high:
            raise refusal(f"{node} only supports versions {low}-{high}")
    if level_of(state.image.features) < CONTROLLERS:
        return  # Controllers cannot register, as in Kafka.
    node_ids = {state.config.node_id, *state.image.controllers}
    for voter in sorted(state.config.voters):
        if voter not in node_ids:
            raise refusal(
                f"controller {voter} has not registered, and may not support this feature"
            )
