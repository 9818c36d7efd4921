"""Feature levels: the nodes that have to support them."""

from functools import partial

from kwire import errors
from kwire.codec.messages.metadata_records import RegisterControllerRecord
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.raftmeta.controller.feature_updates import decide_update_features
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.storage.levels import ELR
from tests.support.raftmeta.clusters import Cluster


def test_feature_is_not_raised_before_all_controllers_have_registered() -> None:
    """A voter that has not registered could not take over."""
    voters = "1@localhost:9093,2@localhost:9094"
    cluster = Cluster(controller_quorum_voters=voters)
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature=ELR, max_version_level=1, upgrade_type=1
    )
    decide = partial(
        decide_update_features, kraft_version=0, check_kraft_version=lambda level: None
    )

    def code() -> int:
        reply = cluster.do(decide, UpdateFeaturesRequest(feature_updates=[update]))
        return int(reply.error_code)

    assert code() == errors.InvalidUpdateVersion.code
    features = [
        RegisterControllerRecord.ControllerFeature(
            name=name, min_supported_version=low, max_supported_version=high
        )
        for name, (low, high) in SUPPORTED.items()
    ]
    registered = RegisterControllerRecord(
        controller_id=2, incarnation_id=b"c" * 16, zk_migration_ready=False, features=features
    )
    cluster.write(registered)
    assert code() == errors.NONE
