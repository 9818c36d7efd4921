"""Feature levels: the nodes that have to support them."""

from functools import partial

import pytest

from kwire import errors
from kwire.codec.messages.metadata_records import (
    BeginTransactionRecord,
    MetadataRecord,
    RegisterControllerRecord,
)
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.controller.brokers import decide_register_controller
from kwire.raftmeta.controller.feature_updates import decide_update_features
from kwire.raftmeta.controller.features import SUPPORTED, bootstrap_records
from kwire.raftmeta.storage.levels import CONTROLLERS, ELR, TRANSACTIONS
from kwire.storage_format.format import feature_records
from tests.support.raftmeta.clusters import ENDPOINTS, Cluster, node_config


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


def test_controllers_are_neither_registered_nor_expected_before_their_level() -> None:
    """Apache Kafka cannot write a snapshot with a controller's registration before 3.7-IV0."""
    cluster = Cluster(controller_quorum_voters="1@localhost:9093,2@localhost:9094")
    cluster.write(*feature_records({"metadata.version": CONTROLLERS - 1}))
    request = controller_registration(node_config(), b"c" * 16, ENDPOINTS, SUPPORTED)
    with pytest.raises(errors.UnsupportedVersion):
        cluster.do(decide_register_controller, request)
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="metadata.version", max_version_level=CONTROLLERS, upgrade_type=1
    )
    decide = partial(
        decide_update_features, kraft_version=0, check_kraft_version=lambda level: None
    )
    reply = cluster.do(decide, UpdateFeaturesRequest(feature_updates=[update]))
    assert reply.error_code == errors.NONE
    cluster.do(decide_register_controller, request)
    assert cluster.kinds() == ["RegisterController"]


@pytest.mark.parametrize("level", [TRANSACTIONS - 1, TRANSACTIONS])
def test_first_records_are_a_transaction_from_its_level_onwards(level: int) -> None:
    state = Cluster().state
    checkpoint: list[MetadataRecord] = list(feature_records({"metadata.version": level}))
    records = bootstrap_records(state, checkpoint)
    has_transaction = level >= TRANSACTIONS
    assert len(records) == len(checkpoint) + 2 * has_transaction
    assert isinstance(records[0], BeginTransactionRecord) is has_transaction
