"""Reads a node's settings from the properties in its file."""

import logging
from collections.abc import Mapping

from kwire.configs import checks
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import BadValue, ConfigError
from kwire.configs.remedies import in_words

logger = logging.getLogger(__name__)


def broker_config(properties: Mapping[str, str]) -> BrokerConfig:
    """Return the settings in properties without variables, checked as a whole.

    Logs a warning for each name that Kafka does not have. Raises ConfigError for an invalid value,
    a combination that cannot work, or a request for protection that kwire lacks.
    """
    try:
        checks.check_protection(properties)
        checks.check_values(properties)
        for warning in checks.warnings(properties):
            logger.warning("%s", warning)
        config = BrokerConfig(properties)
        checks.check_node(config)
    except BadValue as error:
        raise ConfigError(in_words(error)) from error
    return config


def run_time_config(
    config: BrokerConfig, cluster: Mapping[str, str], own: Mapping[str, str]
) -> BrokerConfig:
    """Return a node's settings with those of the metadata, for all brokers and for this one.

    Listeners that the node cannot have are left out: controllers store them without a check if a
    tool sends them there, and the node must not end for that.
    """
    changed = config.with_dynamic(cluster, own)
    if checks.LISTENERS.isdisjoint(changed.own):
        return changed
    try:
        checks.check_listener_change(config, changed)
    except ConfigError as error:
        logger.warning("dynamic setting ignored reason=%s", error)
        others = {name: text for name, text in own.items() if name not in checks.LISTENERS}
        changed = config.with_dynamic(cluster, others)
    return changed
