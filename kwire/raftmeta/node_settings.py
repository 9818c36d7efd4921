"""A node's settings in force: its file under what was set at run time."""

from kwire.configs.broker import BrokerConfig
from kwire.raftmeta.metadata.image import BROKER, MetadataImage
from kwire.raftmeta.metadata.image_change import MetadataDelta


def settings_in_force(base: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    """``base`` is the file's; the result is a snapshot to swap in."""
    own = str(base.node_id)
    return base.with_dynamic(image.config(BROKER, ""), image.config(BROKER, own))


def touches_settings(base: BrokerConfig, delta: MetadataDelta) -> bool:
    """Whether a publication changes this node's settings."""
    return bool(delta.configs & {(BROKER, ""), (BROKER, str(base.node_id))})
