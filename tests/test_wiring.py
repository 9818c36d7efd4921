"""Arguments that the parts of a node get from the settings."""

import pytest

from kwire.configs.declare import ConfigError
from kwire.node import build
from kwire.storage_format.directories import Identity
from tests.support.raftmeta.clusters import node_config


def test_overrides_of_connections_per_address_are_parsed() -> None:
    config = node_config(max_connections_per_ip_overrides="127.0.0.1:5, 10.0.0.9:0")
    assert build.limits(config).max_connections_per_ip_overrides == {"127.0.0.1": 5, "10.0.0.9": 0}
    assert build.limits(node_config()).max_connections_per_ip_overrides == {}


def test_overrides_apply_to_addresses_however_they_are_written() -> None:
    config = node_config(max_connections_per_ip_overrides="[2001:DB8::0:1]:5,::ffff:10.0.0.9:0")
    overrides = build.limits(config).max_connections_per_ip_overrides
    assert overrides == {"2001:db8::1": 5, "10.0.0.9": 0}


def test_override_of_a_host_name_is_rejected_because_it_would_never_apply() -> None:
    with pytest.raises(ConfigError, match="without host names"):
        node_config(max_connections_per_ip_overrides="db.example:5")


def test_socket_buffers_have_the_configured_or_the_measured_size() -> None:
    names = ("socket_send_buffer_bytes", "socket_receive_buffer_bytes")
    for text, expected in ((None, 512 << 10), ("102400", 102400), ("-1", -1)):
        config = node_config(**({} if text is None else dict.fromkeys(names, text)))
        limits = build.limits(config)
        assert [getattr(limits, name) for name in names] == [expected, expected]


def test_quorum_settings_reach_the_quorum() -> None:
    config = node_config(
        controller_quorum_fetch_max_bytes="1234",
        controller_quorum_fetch_snapshot_max_bytes="567",
        metadata_max_retention_bytes="89",
        metadata_max_retention_ms="10",
    )
    raft = build.raft_config(config, Identity("cluster", {}), bytes(16), ())
    assert (raft.fetch_max_bytes, raft.snapshot_max_bytes) == (1234, 567)
    retention = build.metadata_retention(config)
    assert (retention.max_bytes, retention.max_ms) == (89, 10)
