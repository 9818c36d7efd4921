"""Reads a node's settings from the properties in its file."""

import logging
from collections.abc import Mapping

from kwire.configs import checks
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import BadValue, ConfigError
from kwire.configs.remedies import in_words

logger = logging.getLogger(__name__)


def broker_config(properties: Mapping[str, str]) -> BrokerConfig:
    """Return the settings in a properties file, checked as a whole.

    Logs a warning for each name that Kafka does not have. Raises ConfigError for an invalid value,
    a combination that cannot work, or a request for protection that kwire lacks.
    """
    try:
        properties = with_variables(properties)
        checks.check_protection(properties)
        checks.check_values(properties)
        for warning in checks.warnings(properties):
            logger.warning("%s", warning)
        config = BrokerConfig(properties)
        checks.check_node(config)
    except BadValue as error:
        raise ConfigError(in_words(error)) from error
    return config


def with_variables(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties with the values of config providers; raise ConfigError."""
    if not properties.get("config.providers"):
        return properties
    from kwire.configs.providers import resolve

    return resolve(properties)
