"""The broker's settings for share groups (KIP-932): members, partitions and stored states."""

from kwire.configs.share_coordinator import ShareCoordinatorConfig
from kwire.configs.share_groups import ShareGroupConfig
from kwire.configs.share_partitions import SharePartitionConfig


class ShareConfig(ShareCoordinatorConfig, ShareGroupConfig, SharePartitionConfig):
    """All broker settings for share groups."""
