"""Formats the empty data directories of a container, as the start script of Apache's image does.

Rules: a formatted directory keeps its cluster, whatever ``CLUSTER_ID`` is now. A single voter is
formatted by the node itself, which also checks what it finds. Other nodes are formatted here, even
voters: a compose file starts a whole cluster from empty volumes. So a voter whose volume is lost
starts empty without a warning (docs/containers.md).
"""

import logging

from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError
from kwire.log.disk import RealDisks
from kwire.storage_format.directories import (
    CannotOpenError,
    all_directories,
    format_node,
    holds_logs,
    is_single_voter,
    read_meta,
)

logger = logging.getLogger(__name__)


def format_if_empty(config: BrokerConfig, cluster_id: str) -> str | None:
    """Format a new node's directories; return the cluster id if the node must do it itself."""
    disks = RealDisks()
    paths = all_directories(config)
    if any(read_meta(path, disks) is not None for path in paths):
        return None
    if is_single_voter(config):
        return cluster_id
    if config.is_controller and not config.voters:
        raise ConfigError(
            "controller.quorum.voters is not set on one of several controllers; list all of them "
            "in KAFKA_CONTROLLER_QUORUM_VOTERS=ID@HOST:PORT,…"
        )
    for path in paths:
        if holds_logs(path, disks):
            raise CannotOpenError(
                f"{path} holds data but lost its meta.properties; restore a copy, or mount an "
                "empty volume"
            )
    for line in format_node(config, cluster_id, ignore_formatted=False):
        logger.info("%s", line)
    return None
