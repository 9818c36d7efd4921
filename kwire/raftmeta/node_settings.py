"""A node's settings in force: those of its file, overridden by those set at run time."""

from kwire.configs.broker import BrokerConfig
from kwire.configs.resource_types import BROKER
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import MetadataDelta


def settings_in_force(base: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    """Return the settings of the file, ``base``, overridden by those of the image."""
    own = str(base.node_id)
    return base.with_dynamic(image.config(BROKER, ""), image.config(BROKER, own))


def touches_settings(base: BrokerConfig, delta: MetadataDelta) -> bool:
    """Whether a published change affects this node's settings."""
    return bool(delta.configs & {(BROKER, ""), (BROKER, str(base.node_id))})
